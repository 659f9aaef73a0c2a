package proxy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/memstore"
	"github.com/kakutei-go/kakutei/proxy"
)

// patience bounds everything that a test waits for.
const patience = 30 * time.Second

// seen is one request as the upstream got it.
type seen struct {
	method, target, host string
	header               http.Header
	body                 []byte
}

// upstream is the API behind the proxy. It writes down what it is asked.
type upstream struct {
	*httptest.Server
	mu       sync.Mutex
	requests []seen
}

// newUpstream returns an upstream that answers with h, whose request has its
// body from the start. A nil h answers 201 with the number of the run.
func newUpstream(t testing.TB, h http.HandlerFunc) *upstream {
	t.Helper()
	u := &upstream{}
	if h == nil {
		h = func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, "run %d", u.count())
		}
	}
	u.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("the upstream got a broken body: %v", err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		u.mu.Lock()
		u.requests = append(u.requests, seen{r.Method, r.RequestURI, r.Host, r.Header.Clone(), body})
		u.mu.Unlock()
		h(w, r)
	}))
	u.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	u.Start()
	t.Cleanup(func() { // not Close, which waits for handlers behind a gate
		u.Listener.Close()
		u.CloseClientConnections()
	})
	return u
}

func (u *upstream) all() []seen {
	u.mu.Lock()
	defer u.mu.Unlock()
	return append([]seen(nil), u.requests...)
}

func (u *upstream) count() int { return len(u.all()) }

// last returns the latest request.
func (u *upstream) last(t testing.TB) seen {
	t.Helper()
	all := u.all()
	if len(all) == 0 {
		t.Fatal("nothing reached the upstream")
	}
	return all[len(all)-1]
}

func (u *upstream) wantRuns(t testing.TB, want int) {
	t.Helper()
	assert.Equal(t, u.count(), want, "requests that reached the upstream")
}

// gate holds up an upstream's handler.
type gate struct {
	started chan struct{} // gets a value for each run
	opened  chan struct{}
	open    func()
}

func newGate(t testing.TB) *gate {
	g := &gate{started: make(chan struct{}, 100), opened: make(chan struct{})}
	g.open = sync.OnceFunc(func() { close(g.opened) })
	t.Cleanup(g.open)
	return g
}

// pass waits until the gate is open. It does not look at the request's context:
// an upstream goes on when its client has left.
func (g *gate) pass() {
	g.started <- struct{}{}
	<-g.opened
}

func (g *gate) awaitStart(t testing.TB) {
	t.Helper()
	select {
	case <-g.started:
	case <-time.After(patience):
		t.Fatal("the upstream was not asked")
	}
}

// setup is what a front is made of; the zero value of each field is a default.
type setup struct {
	route     proxy.Route // for all that no route of its own
	routes    []proxy.Route
	store     kakutei.Store
	engine    kakutei.Options
	transport http.RoundTripper
}

// front is a proxy that serves.
type front struct {
	t      testing.TB
	url    string
	addr   string
	store  kakutei.Store
	engine *kakutei.Engine
	server *httptest.Server
	log    *lockedBuffer
}

// newFront serves a proxy in front of target until the test ends.
func newFront(t testing.TB, target string, s setup) *front {
	t.Helper()
	f := &front{t: t, store: s.store, log: &lockedBuffer{}}
	if f.store == nil {
		f.store = memstore.New()
	}
	logger := slog.New(slog.NewTextHandler(f.log, nil))
	s.engine.Node, s.engine.Logger = "test", logger
	var err error
	if f.engine, err = kakutei.New(f.store, s.engine); err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	h, err := proxy.New(f.engine, proxy.Config{
		Upstream: to, Default: complete(s.route), Routes: completeAll(s.routes), Transport: s.transport, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	f.server = httptest.NewUnstartedServer(noPanic(t, h))
	f.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	f.server.Config.Protocols = new(http.Protocols)
	f.server.Config.Protocols.SetHTTP1(true)
	f.server.Config.Protocols.SetUnencryptedHTTP2(true)
	f.server.Start()
	f.url, f.addr = f.server.URL, f.server.Listener.Addr().String()
	t.Cleanup(func() {
		f.server.CloseClientConnections()
		f.server.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		assert.NoError(t, f.engine.Close(ctx))
	})
	return f
}

// complete fills what a route must have.
func complete(r proxy.Route) proxy.Route {
	if r.Scope == nil {
		r.Scope = scopeOf("header:X-Account-Id")
	}
	if r.Recovery == 0 {
		r.Recovery = kakutei.Rerun
	}
	return r
}

func completeAll(routes []proxy.Route) []proxy.Route {
	var out []proxy.Route
	for _, r := range routes {
		out = append(out, complete(r))
	}
	return out
}

func scopeOf(s string) kakuteihttp.ScopeFunc {
	scope, err := proxy.ParseScope(s, proxy.ScopeOptions{})
	if err != nil {
		panic(err)
	}
	return scope
}

// noPanic reports panics of the proxy. The one that cuts a connection is wanted.
func noPanic(t testing.TB, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				if v != http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
					t.Errorf("the proxy panicked: %v", v)
				}
				panic(v)
			}
		}()
		h.ServeHTTP(w, r)
	})
}

// call is a request to a front. Its zero value is a POST of nothing to /charges
// by the account "acme", without a key.
type call struct {
	method, target, key, account, body string
	header                             http.Header
}

// with returns the call with one more header line.
func (c call) with(name, value string) call {
	c.header = c.header.Clone()
	if c.header == nil {
		c.header = make(http.Header)
	}
	c.header.Add(name, value)
	return c
}

func (c call) request(t testing.TB, base string) *http.Request {
	t.Helper()
	if c.method == "" {
		c.method = http.MethodPost
	}
	if c.target == "" {
		c.target = "/charges"
	}
	if c.account == "" {
		c.account = "acme"
	}
	r, err := http.NewRequestWithContext(t.Context(), c.method, base+c.target, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Account-Id", c.account)
	if c.key != "" {
		r.Header.Set(kakuteihttp.Header, c.key)
	}
	if c.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for name, values := range c.header {
		r.Header[name] = values
	}
	return r
}

// answer is what came back, read to its end.
type answer struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	proto   string
}

// plainClient makes a connection for each request: net/http would send a request with a
// key again when a kept one breaks, which is not what is tested here.
var plainClient = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       patience,
}

// http2Client speaks HTTP/2 without TLS, by prior knowledge.
func http2Client(t testing.TB) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience, CheckRedirect: plainClient.CheckRedirect}
}

// try sends a call; the error is that of the connection.
func (f *front) try(c call) (answer, error) { return do(plainClient, c.request(f.t, f.url)) }

func do(client *http.Client, r *http.Request) (answer, error) {
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, resp.Trailer, string(body), resp.Proto}, err
}

// send sends a call that must be answered.
func (f *front) send(c call) answer {
	f.t.Helper()
	a, err := f.try(c)
	if err != nil {
		f.t.Fatalf("no answer: %v", err)
	}
	return a
}

// start sends a call in the background.
func (f *front) start(c call) <-chan answer {
	done := make(chan answer, 1)
	go func() {
		a, err := f.try(c)
		if err != nil {
			f.t.Errorf("no answer: %v", err)
		}
		done <- a
	}()
	return done
}

func contains(s, part string) bool { return strings.Contains(s, part) }

func await(t testing.TB, done <-chan answer) answer {
	t.Helper()
	select {
	case a := <-done:
		return a
	case <-time.After(patience):
		t.Fatal("no answer in time")
		return answer{}
	}
}

// eventually tries until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not come about: %s", what)
		}
	}
}

// status is what the store has about a key of "acme".
func (f *front) status(key string) kakutei.Status {
	f.t.Helper()
	return f.record(key).Status
}

func (f *front) record(key string) kakutei.Record {
	f.t.Helper()
	looked, err := f.store.Look(context.Background(), []kakutei.ID{{Scope: "acme", Key: key}})
	if err != nil || looked[0].Err != nil {
		f.t.Fatalf("look: %v, %v", err, looked)
	}
	return looked[0].Record
}

// wantFirst checks that the request was run now.
func wantFirst(t testing.TB, a answer, status int, body string) {
	t.Helper()
	assert.Equal(t, a.status, status, "status")
	assert.Equal(t, a.body, body, "body")
	assert.Equal(t, a.header.Get("Idempotent-Replayed"), "", "mark of a replay")
}

// wantReplay checks that the recorded answer was given.
func wantReplay(t testing.TB, a answer, status int, body string) {
	t.Helper()
	assert.Equal(t, a.status, status, "status")
	assert.Equal(t, a.body, body, "body")
	assert.Equal(t, a.header.Get("Idempotent-Replayed"), "true", "mark of a replay")
}

// wantProblem checks for a problem document of the proxy's own.
func wantProblem(t testing.TB, a answer, status int, kind string) {
	t.Helper()
	if !assert.Equal(t, a.status, status, "status") || !assert.Equal(t, a.header.Get("Content-Type"), "application/problem+json", "media type") {
		t.Logf("the body is %q", a.body)
		return
	}
	var p struct {
		Type   string
		Status int
		Detail string
	}
	assert.NoError(t, json.Unmarshal([]byte(a.body), &p))
	assert.Equal(t, p.Type, kakuteihttp.TypeBase+kind, "problem type")
	assert.Equal(t, p.Status, status, "status in the problem")
	assert.Equal(t, a.header.Get("Cache-Control"), "no-store", "Cache-Control of a problem")
}

// exchange writes text to a new connection, byte for byte, and returns the
// connection with the answer's reader. The caller may go on with both.
func exchange(t testing.TB, addr, text string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// sendRaw sends one request, byte for byte, and returns its final answer.
func sendRaw(t testing.TB, addr, text string) answer {
	t.Helper()
	_, r := exchange(t, addr, text)
	return readAnswer(t, r)
}

func readAnswer(t testing.TB, r *bufio.Reader) answer {
	t.Helper()
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("read the answer: %v", err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("read the answer's body: %v", err)
		}
		if resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return answer{resp.StatusCode, resp.Header, resp.Trailer, string(body), resp.Proto}
		}
	}
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
