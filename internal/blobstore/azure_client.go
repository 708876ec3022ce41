package blobstore

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

// The settings that errors name. Only the package config reads them.
const (
	envConnection = "AZURE_STORAGE_CONNECTION_STRING"
	envAccount    = "AZURE_STORAGE_ACCOUNT"
	envEndpoint   = "AZURE_STORAGE_ENDPOINT"
)

// retries bound what the SDK does by itself to about five seconds of pauses, or
// to what Retry-After asks. Above it the archiver repeats its whole batch, so
// there is nothing to gain from more patience here.
func retries() policy.RetryOptions {
	return policy.RetryOptions{
		MaxRetries:    4,
		RetryDelay:    200 * time.Millisecond,
		MaxRetryDelay: 30 * time.Second,
		// For one request: 4 MiB on a slow line, and an end for a dead one.
		TryTimeout: time.Minute,
	}
}

// noRetries is for Check, which is asked again soon anyway.
func noRetries() policy.RetryOptions {
	return policy.RetryOptions{MaxRetries: -1, TryTimeout: 5 * time.Second}
}

func newTransport() *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true, // what is stored is what is read
	}
}

// newAzure prepares the client; nothing connects before the first call.
func newAzure(containerName, prefix string, creds AzureCredentials) (*Azure, error) {
	transport := newTransport()
	client, err := newContainerClient(containerName, creds, azcore.ClientOptions{
		Transport: &http.Client{Transport: transport},
		Retry:     retries(),
		Telemetry: policy.TelemetryOptions{ApplicationID: "paredao"},
	})
	if err != nil {
		return nil, err
	}
	return &Azure{client: client, transport: transport, container: containerName, prefix: prefix}, nil
}

func newContainerClient(containerName string, creds AzureCredentials, core azcore.ClientOptions) (*container.Client, error) {
	options := &container.ClientOptions{ClientOptions: core}
	switch {
	case creds.ConnectionString != "":
		conn, err := parseConnectionString(creds.ConnectionString, creds.Endpoint)
		if err != nil {
			return nil, err
		}
		at := conn.endpoint.JoinPath(containerName)
		if conn.signature != "" {
			at.RawQuery = conn.signature
			return container.NewClientWithNoCredential(at.String(), options)
		}
		key, err := container.NewSharedKeyCredential(conn.account, conn.key)
		if err != nil {
			// The SDK's error is about the key's text: it is not passed on.
			return nil, fmt.Errorf("%s: AccountKey is not valid", envConnection)
		}
		return container.NewClientWithSharedKeyCredential(at.String(), key, options)

	case creds.Account != "":
		endpoint, err := accountEndpoint(creds)
		if err != nil {
			return nil, err
		}
		identity, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{
			ClientOptions: azcore.ClientOptions{Transport: core.Transport},
		})
		if err != nil {
			return nil, fmt.Errorf("default Azure credential for %s: %w", envAccount, tidy(err))
		}
		return container.NewClient(endpoint.JoinPath(containerName).String(), identity, options)

	default:
		return nil, fmt.Errorf("an azblob:// archive needs credentials: set %s, or %s for the SDK's default chain",
			envConnection, envAccount)
	}
}

var accountName = regexp.MustCompile(`^[a-z0-9]{3,24}$`)

func accountEndpoint(creds AzureCredentials) (*url.URL, error) {
	if creds.Endpoint == "" {
		if !accountName.MatchString(creds.Account) {
			return nil, fmt.Errorf("%s %q: must be 3 to 24 of a-z and 0-9", envAccount, withoutSecrets(creds.Account))
		}
		return &url.URL{Scheme: "https", Host: creds.Account + ".blob.core.windows.net", Path: "/"}, nil
	}
	endpoint, err := parseEndpoint(envEndpoint, creds.Endpoint)
	if err == nil && endpoint.Scheme != "https" {
		err = fmt.Errorf("%s %q: must be https, since a token is sent there", envEndpoint, withoutSecrets(creds.Endpoint))
	}
	return endpoint, err
}

// connection is a parsed connection string: with a key or with a shared access
// signature.
type connection struct {
	endpoint  *url.URL
	account   string
	key       string
	signature string
}

// parseConnectionString is our own since the SDK's is internal, and the
// endpoint must be overridable. Its errors hold no part of the string but names.
func parseConnectionString(text, endpoint string) (connection, error) {
	fields := map[string]string{}
	for part := range strings.SplitSeq(text, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return connection{}, fmt.Errorf("%s: must be NAME=VALUE pairs with ; between them", envConnection)
		}
		fields[strings.ToLower(name)] = value
	}

	conn := connection{
		account:   fields["accountname"],
		key:       fields["accountkey"],
		signature: strings.TrimPrefix(fields["sharedaccesssignature"], "?"),
	}
	switch {
	case conn.account != "" && conn.key != "":
		conn.signature = ""
		if _, err := base64.StdEncoding.DecodeString(conn.key); err != nil {
			return connection{}, fmt.Errorf("%s: AccountKey is not base64", envConnection)
		}
	case conn.signature != "":
		if query, err := url.ParseQuery(conn.signature); err != nil || !query.Has("sig") {
			return connection{}, fmt.Errorf("%s: SharedAccessSignature is not one (no sig=)", envConnection)
		}
	default:
		return connection{}, fmt.Errorf("%s: needs AccountName and AccountKey, or SharedAccessSignature", envConnection)
	}

	what := envEndpoint
	if endpoint == "" {
		what, endpoint = "BlobEndpoint in "+envConnection, fields["blobendpoint"]
	}
	if endpoint == "" {
		if !accountName.MatchString(conn.account) {
			return connection{}, fmt.Errorf("%s: needs AccountName (3 to 24 of a-z and 0-9) or BlobEndpoint", envConnection)
		}
		scheme := cmp.Or(fields["defaultendpointsprotocol"], "https")
		suffix := cmp.Or(fields["endpointsuffix"], "core.windows.net")
		what = "DefaultEndpointsProtocol and EndpointSuffix in " + envConnection
		endpoint = scheme + "://" + conn.account + ".blob." + suffix + "/"
	}
	var err error
	conn.endpoint, err = parseEndpoint(what, endpoint)
	return conn, err
}

// tidy makes an SDK error fit for a log line: one line, without the body of the
// reply and without the URL, in whose query a signature may stand.
func tidy(err error) error {
	var response *azcore.ResponseError
	if errors.As(err, &response) {
		if response.ErrorCode == "" {
			return fmt.Errorf("the blob service answered %d", response.StatusCode)
		}
		return fmt.Errorf("the blob service answered %d %s", response.StatusCode, response.ErrorCode)
	}
	var request *url.Error
	if errors.As(err, &request) {
		if u, parseErr := url.Parse(request.URL); parseErr == nil {
			return fmt.Errorf("%s %s: %w", request.Op, u.Host, request.Err)
		}
		return fmt.Errorf("%s: %w", request.Op, request.Err)
	}
	if text := err.Error(); strings.ContainsAny(text, "\r\n") {
		return &oneLineError{text: strings.Join(strings.Fields(text), " "), err: err}
	}
	return err
}

// oneLineError is an error whose text has been folded into a line.
type oneLineError struct {
	text string
	err  error
}

func (e *oneLineError) Error() string { return e.text }
func (e *oneLineError) Unwrap() error { return e.err }
