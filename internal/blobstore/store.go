package blobstore

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"

	"paredao/internal/vote"
)

// Store keeps the archive's objects. It is safe for concurrent use.
type Store interface {
	// Create writes the object if the name is free. It reads body from its
	// start, and fails before anything is visible unless body has exactly size
	// bytes with that SHA-256. If the name is taken by the same content it
	// returns (false, nil); by other content, an error that is
	// vote.ErrObjectConflict. After any other error, repeat it.
	Create(ctx context.Context, name string, body io.ReadSeeker, size int64, sha256 [32]byte) (created bool, err error)
	// Open opens the object for reading; the error is vote.ErrObjectNotFound if
	// there is none. ctx also bounds the reads from the object.
	Open(ctx context.Context, name string) (vote.Object, error)
	// List yields the objects whose names begin with prefix, in bytewise order
	// of their whole names. The prefix is a string, so "a/b" finds "a/bc" too.
	// A container or folder that does not exist is empty. After an error the
	// sequence ends.
	List(ctx context.Context, prefix string) iter.Seq2[vote.ObjectInfo, error]
	// Check says whether the store can be used now, and if not, why. It is
	// cheap and creates nothing; a container or folder that is still missing
	// is fine.
	Check(ctx context.Context) error
	// String is the URL of the store, without secrets.
	String() string
}

var (
	_ Store = (*Folder)(nil)
	_ Store = (*Azure)(nil)
)

// AzureCredentials says how to reach the Azure account: with ConnectionString,
// or else as Account with the SDK's default chain (workload identity, managed
// identity, the az command line). Endpoint overrides the URL of the service.
type AzureCredentials struct {
	ConnectionString string
	Account          string
	Endpoint         string
}

// String tells which of the settings are there, and no secret.
func (c AzureCredentials) String() string {
	secret := ""
	if c.ConnectionString != "" {
		secret = "(hidden)"
	}
	return fmt.Sprintf("{ConnectionString:%s Account:%s Endpoint:%s}", secret, c.Account, withoutSecrets(c.Endpoint))
}

// GoString is String, for %#v.
func (c AzureCredentials) GoString() string { return c.String() }

// LogValue is String, for slog.
func (c AzureCredentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

const allowedURLs = "file:DIR or azblob://CONTAINER[/PREFIX]"

// Open makes the store that rawURL names: file:DIR or azblob://CONTAINER[/PREFIX].
// It only looks at its arguments and connects to nothing, so an error is always
// a wrong setting, never an outage. DIR is taken as it stands, without
// percent-decoding; file:///abs is the same as file:/abs.
func Open(_ context.Context, rawURL string, creds AzureCredentials) (Store, error) {
	loc, err := parseURL(rawURL)
	if err != nil {
		return nil, err
	}
	if loc.container == "" {
		return newFolder(loc.dir), nil
	}
	return newAzure(loc.container, loc.prefix, creds)
}

// location is a parsed archive URL: either dir, or container and prefix.
type location struct {
	dir       string
	container string
	prefix    string // without a slash at either end
}

func parseURL(rawURL string) (location, error) {
	refuse := func(why string) (location, error) {
		return location{}, fmt.Errorf("archive URL %q: %s; allowed is %s", withoutSecrets(rawURL), why, allowedURLs)
	}
	scheme, rest, ok := strings.Cut(rawURL, ":")
	if !ok {
		return refuse("it has no scheme")
	}
	switch scheme {
	case "file":
		dir, why := parseFolder(rest)
		if why != "" {
			return refuse(why)
		}
		return location{dir: dir}, nil
	case "azblob":
		rest, ok := strings.CutPrefix(rest, "//")
		if !ok {
			return refuse("azblob: must be followed by //CONTAINER")
		}
		container, prefix, _ := strings.Cut(rest, "/")
		if why := refuseContainer(container); why != "" {
			return refuse(why)
		}
		prefix = strings.TrimSuffix(prefix, "/")
		if why := refusePrefix(prefix); why != "" {
			return refuse(why)
		}
		return location{container: container, prefix: prefix}, nil
	default:
		return refuse("unknown scheme")
	}
}

func parseFolder(dir string) (clean, why string) {
	if rest, ok := strings.CutPrefix(dir, "//"); ok {
		// file://host/path: the host part may only be empty or this machine.
		rest = strings.TrimPrefix(rest, "localhost")
		if !strings.HasPrefix(rest, "/") {
			return "", "after file:// an absolute path must follow, as in file:///srv/archive"
		}
		dir = rest
	}
	switch {
	case dir == "":
		return "", "the folder is missing"
	case strings.ContainsFunc(dir, unicode.IsControl):
		return "", "the folder holds a control character"
	case dir == "~" || strings.HasPrefix(dir, "~/"):
		return "", "~ is not expanded here, write the path out"
	}
	dir = filepath.Clean(dir)
	if strings.HasPrefix(dir, "~") {
		dir = "./" + dir // it was like that, and must not look like a home
	}
	return dir, ""
}

var containerName = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

func refuseContainer(name string) string {
	if len(name) < 3 || len(name) > 63 || !containerName.MatchString(name) {
		return "CONTAINER must be 3 to 63 of a-z, 0-9 and single hyphens between them"
	}
	return ""
}

// maxURLPrefix and maxName together stay below the 1024 characters of a blob's
// name.
const maxURLPrefix = 255

func refusePrefix(prefix string) string {
	switch {
	case prefix == "":
		return ""
	case len(prefix) > maxURLPrefix:
		return fmt.Sprintf("PREFIX is longer than %d bytes", maxURLPrefix)
	case strings.ContainsAny(prefix, "?#"):
		// Most likely a shared access signature that was pasted along.
		return "PREFIX must not contain ? or #, and credentials do not belong here"
	}
	if why := refuseName(prefix); why != "" {
		return "PREFIX " + why
	}
	return ""
}

// secretMark finds the places in a mistyped setting where a secret may begin.
var secretMark = regexp.MustCompile(`(?i)[?;]|(key|signature|sig|password|pwd|token|secret)\s*=`)

// withoutSecrets shortens a setting for an error: what may be a secret, as in
// the query of a URL, its user part or a connection string, is left out.
func withoutSecrets(value string) string {
	if at := strings.LastIndexByte(value, '@'); at >= 0 {
		value = "…" + value[at:]
	}
	if at := secretMark.FindStringIndex(value); at != nil {
		value = value[:at[0]] + "…"
	}
	const longest = 200
	if len(value) > longest {
		value = strings.ToValidUTF8(value[:longest], "") + "…"
	}
	return value
}

// parseEndpoint checks the URL of a blob service. what names the setting that
// it came from.
func parseEndpoint(what, raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.Opaque != "" {
		return nil, fmt.Errorf("%s %q: must be a URL like https://ACCOUNT.blob.core.windows.net/", what, withoutSecrets(raw))
	}
	if u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return nil, fmt.Errorf("%s %q: must have no user, query or fragment", what, withoutSecrets(raw))
	}
	return u, nil
}
