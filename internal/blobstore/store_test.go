package blobstore

import (
	"bytes"
	"fmt"
	"log/slog"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Not the key of anything, but base64 as a key is.
const testKey = "c2VjcmV0LWtleS1vZi10aGUtdGVzdA=="

var keyed = AzureCredentials{ConnectionString: "AccountName=votes;AccountKey=" + testKey}

func TestOpen(t *testing.T) {
	for raw, want := range map[string]string{
		"file:./data/archive":          "file:data/archive",
		"file:data//archive/":          "file:data/archive",
		"file:/srv/archive":            "file:/srv/archive",
		"file:///srv/archive":          "file:/srv/archive",
		"file://localhost/srv/archive": "file:/srv/archive",
		"file:./~/x":                   "file:./~/x",
		"file:.":                       "file:.",
		"file:../a b%20?#":             "file:../a b%20?#",
		"azblob://votes":               "azblob://votes",
		"azblob://votes/":              "azblob://votes",
		"azblob://votes/2026/final":    "azblob://votes/2026/final",
		"azblob://votes/2026/final/":   "azblob://votes/2026/final",
	} {
		s, err := Open(t.Context(), raw, keyed)
		require.NoError(t, err, raw)
		assert.Equal(t, want, s.String())
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, raw := range []string{
		"", "data/archive", "/srv/archive", "file", "file:", "file://", "file://host/share", "file://data", "file:~/data", "file:a\x00b",
		"FILE:/a", "file:a\nb", "s3://bucket", "https://votes.blob.core.windows.net/c", "azblob:votes", "azblob:/votes", "azblob://",
		"azblob:///votes", "azblob://Votes", "azblob://vo", "azblob://a--b", "azblob://-abc", "azblob://abc-", "azblob://$root",
		"azblob://" + strings.Repeat("a", 64), "azblob://votes//a", "azblob://votes/../a", "azblob://votes/a//b", "azblob://votes/a//",
		"azblob://votes/.a", "azblob://votes/a?b", "azblob://votes/" + strings.Repeat("a/", 200),
	} {
		_, err := Open(t.Context(), raw, keyed)
		require.Error(t, err, raw)
		assert.Contains(t, err.Error(), "file:DIR or azblob://CONTAINER[/PREFIX]", raw)
		assert.NotContains(t, err.Error(), "\n")
	}
	_, err := Open(t.Context(), "azblob://Votes/2026", keyed)
	require.ErrorContains(t, err, `"azblob://Votes/2026"`)
}

func TestOpenErrorsHoldNoSecret(t *testing.T) {
	const secret = "hunter2"
	for _, raw := range []string{
		"azblob://votes?sv=2024&sig=" + secret,
		"azblob://votes/prefix?sig=" + secret,
		"azblob://user:" + secret + "@votes/prefix",
		"https://votes.blob.core.windows.net/c?sig=" + secret,
		"https://user:" + secret + "@votes.blob.core.windows.net/c",
		"DefaultEndpointsProtocol=https;AccountName=votes;AccountKey=" + secret,
		"AccountKey=" + secret,
		"AccountKey = " + secret,
		"SharedAccessSignature=sv=2024&sig=" + secret,
	} {
		_, err := Open(t.Context(), raw, keyed)
		require.Error(t, err, raw)
		assert.NotContains(t, err.Error(), secret)
	}
}

func TestAzureCredentials(t *testing.T) {
	const (
		signature = "sv=2024-01-01&sig=hunter2"
		public    = "https://votes.blob.core.windows.net/c"
	)
	// containerURL of a valid setting, or what the error says.
	tests := map[AzureCredentials]string{
		keyed: public,
		{ConnectionString: " DefaultEndpointsProtocol=http; accountname=votes ;AccountKey=" + testKey + ";EndpointSuffix=example.org;\n"}: "http://votes.blob.example.org/c",
		{ConnectionString: "AccountName=x;AccountKey=" + testKey + ";BlobEndpoint=http://127.0.0.1:10000/x/"}:                             "http://127.0.0.1:10000/x/c",
		{ConnectionString: "AccountName=x;AccountKey=" + testKey + ";BlobEndpoint=http://127.0.0.1/x", Endpoint: "http://[::1]:1/x"}:      "http://[::1]:1/x/c",
		{ConnectionString: "BlobEndpoint=https://votes.blob.core.windows.net;SharedAccessSignature=" + signature}:                         public + "?" + signature,
		{ConnectionString: "AccountName=votes;SharedAccessSignature=?" + signature}:                                                       public + "?" + signature,
		{Account: "votes"}: public,
		{Account: "votes", Endpoint: "https://other.example.org/votes"}: "https://other.example.org/votes/c",

		{}: "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT",
		{Endpoint: "https://votes.blob.core.windows.net"}:                           "set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT",
		{Account: "evil.example.org/"}:                                              "AZURE_STORAGE_ACCOUNT",
		{Account: "votes", Endpoint: "http://votes.blob.core.windows.net"}:          "must be https",
		{Account: "votes", Endpoint: "votes.blob.core.windows.net"}:                 "AZURE_STORAGE_ENDPOINT",
		{Account: "votes", Endpoint: "https://x.example.org/?sig=hunter2"}:          "AZURE_STORAGE_ENDPOINT",
		{Account: "votes", Endpoint: "https://u:hunter2@x.example.org/"}:            "AZURE_STORAGE_ENDPOINT",
		{ConnectionString: "hunter2"}:                                               "NAME=VALUE",
		{ConnectionString: "AccountName=votes"}:                                     "AccountKey, or SharedAccessSignature",
		{ConnectionString: "AccountName=votes;AccountKey=hunter2"}:                  "AccountKey is not base64",
		{ConnectionString: "AccountName=votes;SharedAccessSignature=hunter2"}:       "SharedAccessSignature is not one",
		{ConnectionString: "AccountName=hunter2/;AccountKey=" + testKey}:            "needs AccountName (",
		{ConnectionString: "SharedAccessSignature=" + signature}:                    "or BlobEndpoint",
		{ConnectionString: keyed.ConnectionString + ";BlobEndpoint=ftp://x"}:        "BlobEndpoint in AZURE_STORAGE_CONNECTION_STRING",
		{ConnectionString: keyed.ConnectionString + ";EndpointSuffix=x?" + testKey}: "EndpointSuffix in AZURE_STORAGE_CONNECTION_STRING",
	}
	for creds, want := range tests {
		s, err := Open(t.Context(), "azblob://c0c", creds)
		if !strings.HasPrefix(want, "http") {
			require.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), "hunter2")
			assert.NotContains(t, err.Error(), testKey)
			assert.NotContains(t, err.Error(), "\n")
			continue
		}
		require.NoError(t, err, want)
		azure, ok := s.(*Azure)
		require.True(t, ok)
		assert.Equal(t, strings.Replace(want, "/c", "/c0c", 1), azure.client.URL())
		assert.Equal(t, "azblob://c0c", s.String())
	}
	_, err := Open(t.Context(), "file:/nowhere", AzureCredentials{})
	require.NoError(t, err, "a folder needs no credentials")
}

func TestAzureCredentialsArePrintedWithoutSecrets(t *testing.T) {
	creds := keyed
	creds.Account, creds.Endpoint = "votes", "https://example.org/?sig="+testKey
	var logged bytes.Buffer
	for _, handler := range []slog.Handler{slog.NewTextHandler(&logged, nil), slog.NewJSONHandler(&logged, nil)} {
		slog.New(handler).Info("settings", "creds", creds)
	}
	for _, text := range []string{logged.String(), fmt.Sprint(creds), fmt.Sprintf("%+v %#v %s", creds, creds, creds)} {
		assert.Contains(t, text, "votes")
		assert.NotContains(t, text, testKey)
	}
}

func FuzzURL(f *testing.F) {
	for _, raw := range []string{
		"file:./data/archive", "file:///srv", "file:", "azblob://votes", "azblob://votes/a/b/", "azblob://votes?sig=x", "s3://x", "a@b", "", "file://localhost/",
	} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		s, err := Open(t.Context(), raw, keyed)
		if err != nil {
			assert.Contains(t, err.Error(), allowedURLs)
		} else {
			// The printed URL means the same store.
			again, err := Open(t.Context(), s.String(), keyed)
			require.NoError(t, err, s.String())
			assert.Equal(t, s.String(), again.String())
			if azure, ok := s.(*Azure); ok {
				require.NoError(t, checkName(azure.key("x")))
			}
		}
		const secret = "hunter2-secret"
		if _, err := Open(t.Context(), "azblob://"+raw+"?sig="+secret, keyed); err != nil {
			assert.NotContains(t, err.Error(), secret)
		} else {
			t.Errorf("azblob://%s?sig= was accepted", raw)
		}
	})
}

func FuzzName(f *testing.F) {
	for _, name := range []string{
		"votes/poll=a/date=2026-01-20/hour=22/x.parquet", "", "/", "a/../b", ".", "..", ".tmp/x", "a//b", "a\\b", "é/x", "a\x00", "a.", strings.Repeat("a", 256),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if err := checkName(name); err != nil {
			assert.NotContains(t, err.Error(), "\n")
			return
		}
		assert.True(t, filepath.IsLocal(name))
		assert.Equal(t, name, path.Clean(name))
		for element := range strings.SplitSeq(name, "/") {
			assert.NotEmpty(t, element)
			assert.NotEqual(t, byte('.'), element[0])
		}
		// Every beginning of a name may be asked for in a listing.
		for i := range name {
			require.NoError(t, checkPrefix(name[:i]))
		}
		require.NoError(t, checkPrefix(name))
	})
}
