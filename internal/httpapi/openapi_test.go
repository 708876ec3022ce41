package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/httpapi"
	"paredao/internal/vote"
)

// document is as much of openapi.json as the tests look at.
type document struct {
	OpenAPI string                                `json:"openapi"`
	Paths   map[string]map[string]json.RawMessage `json:"paths"`

	Components struct {
		Responses map[string]struct {
			Content map[string]struct {
				Examples map[string]struct{ Value map[string]any } `json:"examples"`
			} `json:"content"`
		} `json:"responses"`
		Schemas struct {
			Problem struct {
				Properties struct {
					Code struct {
						Enum []string `json:"enum"`
					} `json:"code"`
				} `json:"properties"`
			} `json:"Problem"`
		} `json:"schemas"`
	} `json:"components"`
}

func openAPI(t testing.TB) ([]byte, document) {
	t.Helper()
	b, err := os.ReadFile("openapi.json")
	require.NoError(t, err)
	var d document
	require.NoError(t, json.Unmarshal(b, &d))
	return b, d
}

// contract looks things up in the document.
type contract struct {
	t        testing.TB
	root     any
	compiler *jsonschema.Compiler
}

func newContract(t testing.TB) *contract {
	t.Helper()
	b, _ := openAPI(t)
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(b))
	require.NoError(t, err)
	c := &contract{t, root, jsonschema.NewCompiler()}
	c.compiler.AssertFormat()
	require.NoError(t, c.compiler.AddResource("openapi.json", root))
	return c
}

// at returns what stands at a JSON pointer, and the pointer itself, with
// references followed.
func (c *contract) at(pointer string) (any, string) {
	c.t.Helper()
	v := c.root
	for i, step := range strings.Split(pointer, "/") {
		if i == 0 {
			continue
		}
		m, ok := v.(map[string]any)
		require.True(c.t, ok, pointer)
		v, ok = m[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]
		require.True(c.t, ok, "%s: there is no %q", pointer, step)
	}
	if m, ok := v.(map[string]any); ok {
		if ref, ok := m["$ref"].(string); ok {
			return c.at(strings.TrimPrefix(ref, "#"))
		}
	}
	return v, pointer
}

func escaped(s string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(s) }

// validate checks a value against the schema at a pointer.
func (c *contract) validate(pointer string, value any) error {
	c.t.Helper()
	schema, err := c.compiler.Compile("openapi.json#" + pointer)
	require.NoError(c.t, err)
	return schema.Validate(value)
}

// body checks the body of an answer to an operation.
func (c *contract) body(path, method string, status int, contentType string, body []byte) error {
	c.t.Helper()
	_, response := c.at("/paths/" + escaped(path) + "/" + strings.ToLower(method) + "/responses/" + strconv.Itoa(status))
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	return c.validate(response+"/content/"+escaped(contentType)+"/schema", v)
}

// check compares a whole answer with the document: status, headers, type, body.
func (c *contract) check(path string, a answer) {
	c.t.Helper()
	method := a.Request.Method
	r, response := c.at("/paths/" + escaped(path) + "/" + strings.ToLower(method) + "/responses/" + strconv.Itoa(a.StatusCode))
	headers, _ := r.(map[string]any)["headers"].(map[string]any)
	for name := range headers {
		h, pointer := c.at(response + "/headers/" + name)
		text := a.Header.Get(name)
		if text == "" {
			assert.NotEqual(c.t, true, h.(map[string]any)["required"], "%s %s %d has no %s", method, path, a.StatusCode, name)
			continue
		}
		var value any = text
		if s, _ := c.at(pointer + "/schema"); s.(map[string]any)["type"] == "integer" {
			value = json.Number(text)
		}
		assert.NoError(c.t, c.validate(pointer+"/schema", value), name)
	}
	for _, name := range []string{"ETag", "Retry-After", "Allow", "Idempotency-Replayed", "X-Request-ID"} {
		if a.Header.Get(name) != "" {
			assert.Contains(c.t, headers, name, "%s %s %d", method, path, a.StatusCode)
		}
	}
	if r.(map[string]any)["content"] == nil {
		assert.Empty(c.t, a.body)
		return
	}
	assert.NoError(c.t, c.body(path, method, a.StatusCode, a.Header.Get("Content-Type"), a.body), "%s %s %d: %s", method, path, a.StatusCode, a.body)
}

// The document is one of OpenAPI 3.1 by the specification's own schema
// (testdata/oas31-schema.json, the OpenAPI Initiative's of 2022-10-07, Apache-2.0), its
// schemas are schemas, and its references lead somewhere.
func TestOpenAPIIsValid(t *testing.T) {
	f, err := os.Open(filepath.Join("testdata", "oas31-schema.json"))
	require.NoError(t, err)
	defer f.Close()
	meta, err := jsonschema.UnmarshalJSON(f)
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("oas31.json", meta))
	schema, err := compiler.Compile("oas31.json")
	require.NoError(t, err)
	c := newContract(t)
	require.NoError(t, schema.Validate(c.root))

	var walk func(pointer string, v any)
	walk = func(pointer string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				c.at(strings.TrimPrefix(ref, "#"))
			}
			for k, child := range v {
				at := pointer + "/" + escaped(k)
				if k == "schema" || pointer == "/components/schemas" {
					_, err := c.compiler.Compile("openapi.json#" + at)
					assert.NoError(t, err, at)
				}
				walk(at, child)
			}
		case []any:
			for i, child := range v {
				walk(pointer+"/"+strconv.Itoa(i), child)
			}
		}
	}
	walk("", c.root)
}

func TestOpenAPIIsServed(t *testing.T) {
	s := start(t)
	a := s.send("GET", "/openapi.json", "")
	require.Equal(t, 200, a.StatusCode)
	assert.Equal(t, asJSON, a.Header.Get("Content-Type"))
	b, d := openAPI(t)
	assert.Equal(t, string(b), a.text())
	assert.True(t, strings.HasPrefix(d.OpenAPI, "3.1."))
}

// The document names every route with every method, and no other.
func TestOpenAPINamesEveryRoute(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	_, d := openAPI(t)
	assert.Equal(t, slices.Sorted(maps.Keys(d.Paths)), s.server.Paths())
	for path, operations := range d.Paths {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} {
			_, documented := operations[strings.ToLower(method)]
			a := s.send(method, strings.ReplaceAll(path, "{poll}", "p"), "")
			assert.Equal(t, documented, a.StatusCode != 405, "%s %s: %d", method, path, a.StatusCode)
		}
	}
}

// The document names every problem code of the source, and no other.
func TestOpenAPINamesEveryCode(t *testing.T) {
	var inSource []string
	root := filepath.Join("..", "..")
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if fn, ok := call.Fun.(*ast.Ident); !ok || fn.Name != "newProblem" {
				return true
			}
			lit, ok := call.Args[1].(*ast.BasicLit)
			require.True(t, ok, "%s: a code must be a literal, so that this test sees it", path)
			code, err := strconv.Unquote(lit.Value)
			require.NoError(t, err)
			inSource = append(inSource, code)
			return true
		})
		return nil
	}))
	slices.Sort(inSource)
	inSource = slices.Compact(inSource)
	_, d := openAPI(t)
	assert.Equal(t, inSource, d.Components.Schemas.Problem.Properties.Code.Enum)

	var withExample []string
	for name, r := range d.Components.Responses {
		for _, e := range r.Content["application/problem+json"].Examples {
			withExample = append(withExample, e.Value["code"].(string))
			status := int(e.Value["status"].(float64))
			assert.Equal(t, http.StatusText(status), e.Value["title"], name)
		}
	}
	slices.Sort(withExample)
	assert.Equal(t, inSource, slices.Compact(withExample), "each code has an example")
}

// Real answers, one of each kind, match the document.
func TestAnswersMatchOpenAPI(t *testing.T) {
	var broken atomic.Bool
	s := start(t, fresh, func(set *settings) {
		set.enqueue.Timeout = 500 * time.Millisecond
		set.http.Polls = &wrappedPolls{results: func(ctx context.Context, next httpapi.Polls, poll string) (vote.Results, error) {
			if broken.Load() {
				panic("broken")
			}
			return next.Results(ctx, poll)
		}}
	})
	c := newContract(t)
	seen := map[string]bool{}
	check := func(a answer, path, code string) {
		t.Helper()
		seen[a.Request.Method+" "+path+" "+strconv.Itoa(a.StatusCode)+" "+code] = true
		if code != "" {
			var p struct{ Code string }
			require.NoError(t, json.Unmarshal(a.body, &p))
			require.Equal(t, code, p.Code)
		}
		c.check(path, a)
	}
	const votes, res = "/polls/{poll}/votes", "/polls/{poll}/results"
	check(s.send("GET", "/polls", ""), "/polls", "")
	s.poll("p", "ana", "bruno")
	now, err := s.store.Now(context.Background())
	require.NoError(t, err)
	s.apply(s.store, "later", vote.Window{Opens: now.Add(time.Hour), Closes: now.Add(2 * time.Hour)}, "ana")
	s.poll("over", "ana")
	require.NoError(t, s.store.ClosePoll(context.Background(), "over"))

	check(s.vote("p", "ana"), votes, "")
	check(s.vote("p", "ana", "Idempotency-Key", "k"), votes, "")
	check(s.vote("p", "ana", "Idempotency-Key", "k"), votes, "")
	check(s.send("POST", "/polls/p/votes", "option=ana", "Content-Type", asForm), votes, "")
	check(s.send("POST", "/polls/p/votes", "{}", "Content-Type", asJSON), votes, "malformed-body")
	check(s.vote("p", "ana", "Idempotency-Key", "a b"), votes, "bad-idempotency-key")
	check(s.vote("q", "ana"), votes, "poll-not-found")
	check(s.vote("later", "ana"), votes, "poll-not-open")
	check(s.vote("over", "ana"), votes, "poll-closed")
	check(s.vote("p", "bruno", "Idempotency-Key", "k"), votes, "idempotency-key-reused")
	check(s.vote("p", strings.Repeat("x", 5000)), votes, "body-too-large")
	check(s.send("POST", "/polls/p/votes", "ana", "Content-Type", "text/plain"), votes, "unsupported-media-type")
	check(s.vote("p", "ana", "Content-Encoding", "gzip"), votes, "unsupported-content-encoding")
	check(s.vote("p", "carla"), votes, "unknown-option")
	check(s.send("POST", "/polls/p/votes", `{"option":"ana","class":"x"}`, "Content-Type", asJSON), votes, "unknown-class")
	check(s.vote("p", "ana", "Cookie", strings.Repeat("x", 9000)), votes, "headers-too-large")
	for _, path := range []string{"/polls", "/polls/{poll}", res} {
		at := strings.ReplaceAll(path, "{poll}", "p")
		a := s.send("GET", at, "")
		check(a, path, "")
		check(s.send("GET", at, "", "If-None-Match", a.Header.Get("ETag")), path, "")
		check(s.send("GET", at, "", "Cookie", strings.Repeat("x", 9000)), path, "headers-too-large")
		check(s.send("HEAD", at, ""), path, "")
	}
	for _, path := range []string{"/polls/{poll}", res} {
		for _, poll := range []string{"later", "over"} {
			check(s.send("GET", strings.ReplaceAll(path, "{poll}", poll), ""), path, "")
		}
		check(s.send("GET", strings.ReplaceAll(path, "{poll}", "q"), ""), path, "poll-not-found")
	}
	check(s.send("GET", "/openapi.json", ""), "/openapi.json", "")
	check(s.send("HEAD", "/openapi.json", ""), "/openapi.json", "")
	broken.Store(true)
	check(s.send("GET", "/polls/p/results", ""), res, "internal")
	broken.Store(false)
	require.NoError(t, s.rdb.ConfigSet(context.Background(), "maxmemory", "1mb").Err())
	check(s.vote("p", "ana"), votes, "overloaded")
	s.redis.Kill()
	check(s.vote("p", "ana"), votes, "queue-unavailable")
	for _, path := range []string{"/polls", "/polls/{poll}", res} {
		check(s.send("GET", strings.ReplaceAll(path, "{poll}", "p"), ""), path, "") // stale
	}
	unread := start(t, fresh)
	unread.poll("p", "ana")
	unread.vote("p", "ana")
	unread.redis.Kill()
	for _, path := range []string{"/polls", "/polls/{poll}", res} {
		check(unread.send("GET", strings.ReplaceAll(path, "{poll}", "p"), ""), path, "queue-unavailable")
	}
	assert.GreaterOrEqual(t, len(seen), 35)
}

// The examples of the document are answers that the document allows.
func TestOpenAPIExamples(t *testing.T) {
	b, _ := openAPI(t)
	type response struct {
		Content map[string]struct {
			Examples map[string]struct{ Value json.RawMessage }
		}
	}
	var d struct {
		Paths      map[string]map[string]struct{ Responses map[string]response }
		Components struct{ Responses map[string]response }
	}
	// "parameters" beside the operations is a list, and no operation.
	var loose map[string]any
	require.NoError(t, json.Unmarshal(b, &loose))
	for _, p := range loose["paths"].(map[string]any) {
		delete(p.(map[string]any), "parameters")
	}
	b, err := json.Marshal(loose)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &d))
	c := newContract(t)
	n := 0
	for path, operations := range d.Paths {
		for method, op := range operations {
			for status, r := range op.Responses {
				code, err := strconv.Atoi(status)
				require.NoError(t, err)
				for contentType, content := range r.Content {
					for name, e := range content.Examples {
						n++
						assert.NoError(t, c.body(path, method, code, contentType, e.Value), "%s %s %s %s", method, path, status, name)
					}
				}
			}
		}
	}
	for name, r := range d.Components.Responses {
		for contentType, content := range r.Content {
			for example, e := range content.Examples {
				n++
				v, err := jsonschema.UnmarshalJSON(bytes.NewReader(e.Value))
				require.NoError(t, err)
				assert.NoError(t, c.validate("/components/responses/"+name+"/content/"+escaped(contentType)+"/schema", v), "%s %s", name, example)
			}
		}
	}
	assert.Greater(t, n, 20)
}
