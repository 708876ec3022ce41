package blobstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/sas"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/service"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

func openAzure(t *testing.T, rawURL string, creds AzureCredentials) *Azure {
	t.Helper()
	s, err := Open(t.Context(), rawURL, creds)
	require.NoError(t, err)
	azure, ok := s.(*Azure)
	require.True(t, ok)
	t.Cleanup(func() { require.NoError(t, azure.Close()) })
	return azure
}

// containers makes names of containers that no other test has.
var containers atomic.Int64

func newContainerName() string { return fmt.Sprintf("votes-%d", containers.Add(1)) }

func TestAzure(t *testing.T) {
	creds := AzureCredentials{ConnectionString: testkit.Azurite(t)}
	testStore(t, func(t *testing.T) place {
		name := newContainerName()
		return place{
			open: func() Store {
				s := openAzure(t, "azblob://"+name+"/some/where", creds)
				page := int32(3) // so that listings have several
				s.pageSize = &page
				return s
			},
			drop: func() { dropContainer(t, name, creds) },
		}
	})

	t.Run("prefixes are apart", func(t *testing.T) {
		name := newContainerName()
		whole, a, ab := openAzure(t, "azblob://"+name, creds), openAzure(t, "azblob://"+name+"/a/", creds), openAzure(t, "azblob://"+name+"/ab", creds)
		mustCreate(t, a, "x", nil)
		mustCreate(t, ab, "x", []byte("other"))
		assert.Equal(t, []string{"a/x", "ab/x"}, list(t, whole, ""))
		assert.Equal(t, []string{"x"}, list(t, a, ""))
		assert.Equal(t, "azblob://"+name+"/a", a.String())
		assert.Equal(t, "azblob://"+name, whole.String())
	})

	t.Run("replaced while it is read", func(t *testing.T) {
		s := openAzure(t, "azblob://"+newContainerName(), creds)
		data := content(1, 3*megabyte)
		mustCreate(t, s, "a", data)
		object := mustOpen(t, s, "a")
		p := make([]byte, 10)
		_, err := object.ReadAt(p, 0)
		require.NoError(t, err)

		_, err = s.client.NewBlobClient("a").Delete(t.Context(), nil)
		require.NoError(t, err)
		_, err = object.ReadAt(p, 2*megabyte)
		require.Error(t, err) // Azurite says 412 here, Azure 404
		mustCreate(t, s, "a", content(2, 3*megabyte))
		_, err = object.ReadAt(p, 2*megabyte)
		require.ErrorIs(t, err, errReplaced)
		_, err = object.ReadAt(p, 0) // what is cached is of the right version
		require.NoError(t, err)
		same(t, data[:10], p)
	})

	t.Run("bounded memory of an open object", func(t *testing.T) {
		s := openAzure(t, "azblob://"+newContainerName(), creds)
		mustCreate(t, s, "a", content(1, 20*megabyte))
		object, ok := mustOpen(t, s, "a").(*azureObject)
		require.True(t, ok)
		_, err := io.Copy(io.Discard, io.NewSectionReader(object, 0, object.Size()))
		require.NoError(t, err)
		assert.LessOrEqual(t, len(object.blocks), cachedBlocks)
	})

	t.Run("staged blocks of others", func(t *testing.T) {
		// Another writer of other bytes died after it had staged its blocks.
		s := openAzure(t, "azblob://"+newContainerName(), creds)
		other := content(2, 9*megabyte)
		body := &brokenBody{bytes.NewReader(other), 9 * megabyte, func() error { return io.ErrClosedPipe }}
		_, err := s.Create(t.Context(), "a", body, int64(len(other)), sha256.Sum256(other))
		require.ErrorIs(t, err, io.ErrClosedPipe)
		data := content(1, 9*megabyte)
		mustCreate(t, s, "a", data)
		same(t, data, read(t, s, "a"))
	})

	t.Run("a small object over staged blocks", func(t *testing.T) {
		s := openAzure(t, "azblob://"+newContainerName(), creds)
		large, small := content(2, 9*megabyte), content(1, 1000)
		_, err := s.Create(t.Context(), "a", bytes.NewReader(large), int64(len(large)), sha256.Sum256(nil))
		require.Error(t, err)
		mustCreate(t, s, "a", small)
		same(t, small, read(t, s, "a"))
		_, err = create(s, "a", large)
		require.ErrorIs(t, err, vote.ErrObjectConflict)
	})

	t.Run("a wrong key", func(t *testing.T) {
		const key = "c2VjcmV0c2VjcmV0c2VjcmV0"
		wrong := AzureCredentials{ConnectionString: strings.Replace(creds.ConnectionString, testkit.AzuriteKey, key, 1)}
		s := openAzure(t, "azblob://"+newContainerName(), wrong)
		for op, err := range everything(t.Context(), s) {
			require.Error(t, err, op)
			assert.Contains(t, err.Error(), "403 AuthorizationFailure", op)
			assert.NotContains(t, err.Error(), "\n", op)
			assert.NotContains(t, err.Error(), key, op)
		}
	})

	t.Run("shared access signature", func(t *testing.T) {
		signed := sasCredentials(t, creds)
		s := openAzure(t, "azblob://"+newContainerName(), signed)
		mustCreate(t, s, "a", content(1, 9*megabyte))
		same(t, content(1, 9*megabyte), read(t, s, "a"))
		assert.Equal(t, []string{"a"}, list(t, s, ""))
		require.NoError(t, s.Check(t.Context()))
	})

	t.Run("no signature in an error", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, listener.Close()) // nobody listens there now
		signed := sasCredentials(t, creds)
		signed.Endpoint = "http://" + listener.Addr().String()
		_, signature, _ := strings.Cut(signed.ConnectionString, "sig=")
		require.NotEmpty(t, signature)
		s := openAzure(t, "azblob://"+newContainerName(), signed)
		for op, err := range everything(noRetry(t), s) {
			require.Error(t, err, op)
			assert.Contains(t, err.Error(), "connection refused", op)
			assert.Contains(t, err.Error(), listener.Addr().String(), op)
			assert.NotContains(t, err.Error(), signature[:8], op)
			assert.NotContains(t, err.Error(), "sig=", op)
		}
	})
}

// everything does each thing that talks to the service.
func everything(ctx context.Context, s Store) map[string]error {
	_, small := s.Create(ctx, "a", bytes.NewReader(nil), 0, sha256.Sum256(nil))
	data := content(1, 9*megabyte)
	_, large := s.Create(ctx, "a", bytes.NewReader(data), int64(len(data)), sha256.Sum256(data))
	_, open := s.Open(ctx, "a")
	var list error
	for _, list = range s.List(ctx, "") {
	}
	return map[string]error{"small": small, "large": large, "open": open, "list": list, "check": s.Check(ctx)}
}

// noRetry is a context that makes the SDK give up at the first failure.
func noRetry(t *testing.T) context.Context {
	t.Helper()
	return policy.WithRetryOptions(t.Context(), policy.RetryOptions{MaxRetries: -1})
}

func dropContainer(t *testing.T, name string, creds AzureCredentials) {
	t.Helper()
	_, err := openAzure(t, "azblob://"+name, creds).client.Delete(context.Background(), nil)
	if err != nil {
		require.Contains(t, err.Error(), "ContainerNotFound")
	}
}

// sasCredentials turns the account's key into a shared access signature, as an
// operator would. Unlike a key it does not sign the requests' lengths, which a
// damaging proxy has to change.
func sasCredentials(t *testing.T, creds AzureCredentials) AzureCredentials {
	t.Helper()
	client, err := service.NewClientFromConnectionString(creds.ConnectionString, nil)
	require.NoError(t, err)
	signed, err := client.GetSASURL(
		sas.AccountResourceTypes{Service: true, Container: true, Object: true},
		sas.AccountPermissions{Read: true, Write: true, Delete: true, List: true, Create: true, Add: true},
		time.Now().Add(time.Hour), nil)
	require.NoError(t, err)
	endpoint, signature, _ := strings.Cut(signed, "?")
	return AzureCredentials{ConnectionString: "BlobEndpoint=" + endpoint + ";SharedAccessSignature=" + signature}
}

func TestAzureOutage(t *testing.T) {
	server := testkit.NewAzurite(t)
	creds := AzureCredentials{ConnectionString: server.ConnectionString()}
	s := openAzure(t, "azblob://votes", creds)
	data := content(1, 9*megabyte)
	mustCreate(t, s, "a", data)

	server.Stop()
	_, err := Open(t.Context(), "azblob://votes", creds)
	require.NoError(t, err, "opening must not connect")
	for op, err := range everything(noRetry(t), s) {
		require.ErrorContains(t, err, "connection refused", op)
		require.NotErrorIs(t, err, vote.ErrObjectNotFound, op)
		require.NotErrorIs(t, err, vote.ErrObjectConflict, op)
	}

	server.Start()
	require.NoError(t, s.Check(t.Context()))
	created, err := create(s, "a", data)
	require.NoError(t, err)
	assert.False(t, created)
	mustCreate(t, s, "b", data)
	assert.Equal(t, []string{"a", "b"}, list(t, s, ""))
}

// proxy stands between the SDK and Azurite and does each fault once, to the
// first request that it is meant for.
type proxy struct {
	*httptest.Server
	target string // host of Azurite

	mu       sync.Mutex
	faults   []fault
	requests []string
}

type fault struct {
	request string // as kindOf says
	do      func(p *proxy, w http.ResponseWriter, r *http.Request, body []byte)
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := &proxy{target: target}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// kindOf names a request as Azure's documentation does.
func kindOf(r *http.Request) string {
	comp, container := r.URL.Query().Get("comp"), r.URL.Query().Get("restype") == "container"
	switch {
	case container:
		return r.Method + " container"
	case comp != "":
		return r.Method + " " + comp
	default:
		return r.Method + " blob"
	}
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	kind := kindOf(r)
	do := (*proxy).pass
	p.mu.Lock()
	p.requests = append(p.requests, kind)
	for i, f := range p.faults {
		if f.request == kind {
			do = f.do
			p.faults = append(p.faults[:i:i], p.faults[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	do(p, w, r, body)
}

func (p *proxy) count(kind string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, request := range p.requests {
		if request == kind {
			n++
		}
	}
	return n
}

// pending are the faults that have not happened.
func (p *proxy) pending() []fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.faults
}

func (p *proxy) forward(r *http.Request, body []byte) (*http.Response, []byte) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", p.target, ""
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := transport.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return resp, reply
}

func answer(w http.ResponseWriter, resp *http.Response, reply []byte) {
	for name, values := range resp.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = w.Write(reply)
}

func (p *proxy) pass(w http.ResponseWriter, r *http.Request, body []byte) {
	resp, reply := p.forward(r, body)
	answer(w, resp, reply)
}

// dropReply lets the request arrive, and loses the answer.
func (p *proxy) dropReply(_ http.ResponseWriter, r *http.Request, body []byte) {
	p.forward(r, body)
	panic(http.ErrAbortHandler)
}

// dropRequest loses the request.
func (p *proxy) dropRequest(http.ResponseWriter, *http.Request, []byte) {
	panic(http.ErrAbortHandler)
}

func (p *proxy) busy(w http.ResponseWriter, _ *http.Request, _ []byte) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("x-ms-error-code", "ServerBusy")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// cutReply breaks off in the middle of the answer's body.
func (p *proxy) cutReply(w http.ResponseWriter, r *http.Request, body []byte) {
	resp, reply := p.forward(r, body)
	answer(w, resp, reply[:len(reply)/2])
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// cutBody stores half of what was sent; the checksum that came along says so.
func (p *proxy) cutBody(w http.ResponseWriter, r *http.Request, body []byte) {
	body = body[:len(body)/2]
	r.Header.Set("Content-Length", strconv.Itoa(len(body)))
	p.pass(w, r, body)
}

// cutBodySilently does the same where nothing tells the service.
func (p *proxy) cutBodySilently(w http.ResponseWriter, r *http.Request, body []byte) {
	r.Header.Del("Content-Md5")
	p.cutBody(w, r, body)
}

// also does something else first, and then passes the request on.
func also(do func()) func(*proxy, http.ResponseWriter, *http.Request, []byte) {
	return func(p *proxy, w http.ResponseWriter, r *http.Request, body []byte) {
		do()
		p.pass(w, r, body)
	}
}

func TestAzureFaults(t *testing.T) {
	direct := AzureCredentials{ConnectionString: testkit.Azurite(t)}
	endpoint, err := url.Parse(strings.TrimSuffix(direct.ConnectionString[strings.Index(direct.ConnectionString, "http://"):], ";"))
	require.NoError(t, err)

	small, large := content(1, 1000), content(1, 9*megabyte)
	type expect struct {
		created  bool
		conflict bool
	}
	tests := []struct {
		name   string
		data   []byte
		faults func(name string) []fault // given the name of the container
		want   expect
	}{
		{"no fault, small", small, func(string) []fault { return nil }, expect{created: true}},
		{"no fault, large", large, func(string) []fault { return nil }, expect{created: true}},
		{"lost reply to Put Blob", small, once("PUT blob", (*proxy).dropReply), expect{}},
		{"lost reply to Put Block List", large, once("PUT blocklist", (*proxy).dropReply), expect{}},
		{"lost reply to Put Block", large, once("PUT block", (*proxy).dropReply), expect{created: true}},
		{"lost reply, create container", small, once("PUT container", (*proxy).dropReply), expect{created: true}},
		{"lost reply to the verification", small, once("HEAD blob", (*proxy).dropReply), expect{created: true}},
		{"lost Put Blob", small, once("PUT blob", (*proxy).dropRequest), expect{created: true}},
		{"busy, small", small, once("PUT blob", (*proxy).busy), expect{created: true}},
		{"busy, block", large, once("PUT block", (*proxy).busy), expect{created: true}},
		{"busy, list", large, once("PUT blocklist", (*proxy).busy), expect{created: true}},
		{"busy, create container", small, once("PUT container", (*proxy).busy), expect{created: true}},
		{"cut upload, small", small, once("PUT blob", (*proxy).cutBody), expect{created: true}},
		{"cut upload, block", large, once("PUT block", (*proxy).cutBody), expect{created: true}},
		{"cut upload reported as success, small", small, once("PUT blob", (*proxy).cutBodySilently), expect{created: true}},
		{"cut upload reported as success, block", large, once("PUT block", (*proxy).cutBodySilently), expect{created: true}},
		{"cut upload, lost reply", small, func(string) []fault {
			return []fault{{"PUT blob", func(p *proxy, _ http.ResponseWriter, r *http.Request, body []byte) {
				p.cutBodySilently(httptest.NewRecorder(), r, body)
				panic(http.ErrAbortHandler)
			}}}
		}, expect{conflict: true}},
		{"the comparison breaks off", small, func(string) []fault {
			return []fault{{"PUT blob", (*proxy).dropReply}, {"GET blob", (*proxy).cutReply}}
		}, expect{}},
		{"another writer is faster", large, func(name string) []fault {
			return []fault{{"PUT blocklist", also(func() { writeDirectly(t, direct, name, large) })}}
		}, expect{}},
		{"another writer of other content is faster", large, func(name string) []fault {
			return []fault{{"PUT blocklist", also(func() { writeDirectly(t, direct, name, small) })}}
		}, expect{conflict: true}},
		{"the container goes away between block and list", large, func(name string) []fault {
			return []fault{{"PUT blocklist", also(func() { dropContainer(t, name, direct) })}}
		}, expect{created: true}},
		{"the container goes away and comes back", large, func(name string) []fault {
			return []fault{{"PUT blocklist", also(func() {
				dropContainer(t, name, direct)
				mustCreate(t, openAzure(t, "azblob://"+name, direct), "another", nil)
			})}}
		}, expect{created: true}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := newContainerName()
			p := newProxy(t, endpoint.Host)
			p.faults = test.faults(name)
			if !strings.HasSuffix(test.name, "container") {
				mustCreate(t, openAzure(t, "azblob://"+name, direct), "other", nil)
			}
			creds := sasCredentials(t, direct)
			creds.Endpoint = p.URL + endpoint.Path
			s := openAzure(t, "azblob://"+name, creds)

			created, err := create(s, "a/b", test.data)
			assert.Empty(t, p.pending(), "a fault did not happen")
			if test.want.conflict {
				require.ErrorIs(t, err, vote.ErrObjectConflict)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, test.want.created, created)
			same(t, test.data, read(t, openAzure(t, "azblob://"+name, direct), "a/b"))
			created, err = create(s, "a/b", test.data)
			require.NoError(t, err)
			assert.False(t, created)
		})
	}

	t.Run("busy for longer than is waited", func(t *testing.T) {
		p := newProxy(t, endpoint.Host)
		s := openAzure(t, "azblob://"+newContainerName(), AzureCredentials{ConnectionString: direct.ConnectionString, Endpoint: p.URL + endpoint.Path})
		p.faults = []fault{{"PUT blob", func(_ *proxy, w http.ResponseWriter, _ *http.Request, _ []byte) {
			w.Header().Set("Retry-After", "3600")
			w.Header().Set("x-ms-error-code", "ServerBusy")
			w.WriteHeader(http.StatusServiceUnavailable)
		}}}
		_, err := create(s, "a", small)
		require.ErrorContains(t, err, "503 ServerBusy")
		mustCreate(t, s, "a", small)
	})

	t.Run("something else answers", func(t *testing.T) {
		other := httptest.NewServer(http.NotFoundHandler())
		t.Cleanup(other.Close)
		s := openAzure(t, "azblob://"+newContainerName(), AzureCredentials{ConnectionString: direct.ConnectionString, Endpoint: other.URL})
		for op, err := range everything(t.Context(), s) {
			require.ErrorContains(t, err, "404", op)
			require.NotErrorIs(t, err, vote.ErrObjectNotFound, op)
		}
	})

	t.Run("few requests, and reads go on where they broke off", func(t *testing.T) {
		p := newProxy(t, endpoint.Host)
		s := openAzure(t, "azblob://"+newContainerName(), AzureCredentials{ConnectionString: direct.ConnectionString, Endpoint: p.URL + endpoint.Path})
		data := content(1, 8*megabyte)
		mustCreate(t, s, "a", data)
		p.faults = []fault{{"GET blob", (*proxy).cutReply}, {"GET blob", (*proxy).busy}}

		// Eight columns of a megabyte, read in turn and in small pieces.
		object := mustOpen(t, s, "a")
		before := p.count("GET blob")
		piece := make([]byte, 4096)
		for off := int64(0); off < megabyte; off += int64(len(piece)) {
			for column := range int64(8) {
				at := column*megabyte + off
				_, err := object.ReadAt(piece, at)
				if err != nil && at+int64(len(piece)) < object.Size() {
					require.NoError(t, err)
				}
				require.True(t, bytes.Equal(data[at:at+int64(len(piece))], piece))
			}
		}
		assert.Empty(t, p.pending())
		assert.LessOrEqual(t, p.count("GET blob")-before, 8+2)

		// All in one, which fits no cache line: four blocks a request.
		before = p.count("GET blob")
		object = mustOpen(t, s, "a")
		whole := make([]byte, len(data))
		_, err := object.ReadAt(whole, 0)
		require.NoError(t, err)
		same(t, data, whole)
		assert.LessOrEqual(t, p.count("GET blob")-before, 2)
	})

	t.Run("closed while a read waits", func(t *testing.T) {
		p := newProxy(t, endpoint.Host)
		s := openAzure(t, "azblob://"+newContainerName(), AzureCredentials{ConnectionString: direct.ConnectionString, Endpoint: p.URL + endpoint.Path})
		mustCreate(t, s, "a", small)
		object := mustOpen(t, s, "a")
		p.faults = []fault{{"GET blob", func(_ *proxy, _ http.ResponseWriter, r *http.Request, _ []byte) {
			_ = object.Close()
			<-r.Context().Done()
		}}}
		_, err := object.ReadAt(make([]byte, 1), 0)
		require.ErrorIs(t, err, fs.ErrClosed)
	})
}

// once does the fault to the first such request.
func once(request string, do func(*proxy, http.ResponseWriter, *http.Request, []byte)) func(string) []fault {
	return func(string) []fault { return []fault{{request, do}} }
}

func writeDirectly(t *testing.T, creds AzureCredentials, containerName string, data []byte) {
	t.Helper()
	s := openAzure(t, "azblob://"+containerName, creds)
	_, err := create(s, "a/b", data)
	assert.NoError(t, err)
}
