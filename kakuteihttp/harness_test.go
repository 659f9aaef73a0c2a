package kakuteihttp_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// patience ends what hangs. No test passes by waiting for it.
const patience = time.Minute

// site is a server with one protected handler. The zero value of each field but
// handler is a default.
type site struct {
	handler http.HandlerFunc
	store   *store
	engine  kakutei.Options
	opts    kakuteihttp.Options
	scope   kakuteihttp.ScopeFunc
	// outer is middleware outside of the protection, inner inside of it.
	outer, inner func(http.Handler) http.Handler
	http2        bool

	t      testing.TB
	Engine *kakutei.Engine
	srv    *httptest.Server
	client *http.Client
	runs   atomic.Int32 // n
	log    *lines       // of the server

	mu     sync.Mutex
	events []kakutei.Event
}

const account = "Account" // the header that stands for a credential

func byAccount(r *http.Request) (string, error) {
	if a := r.Header.Get(account); a != "" {
		return a, nil
	}
	return "acme", nil
}

// start starts the site, and has it closed when the test ends.
func (s *site) start(t testing.TB) *site {
	t.Helper()
	s.t = t
	h := s.protect(t)
	s.log = &lines{}
	s.srv = httptest.NewUnstartedServer(h)
	s.srv.Config.ErrorLog = log.New(s.log, "", 0)
	if s.http2 {
		s.srv.EnableHTTP2 = true
		s.srv.StartTLS()
	} else {
		s.srv.Start()
	}
	s.client = s.srv.Client()
	s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.client.Transport.(*http.Transport).DisableCompression = true
	// On a connection used before, Go's client would send a request whose answer
	// breaks off again by itself, since it has a key. See case 43.
	s.client.Transport.(*http.Transport).DisableKeepAlives = !s.http2
	t.Cleanup(s.stop)
	return s
}

// protect makes the engine and returns the handler of the site, without a server.
func (s *site) protect(t testing.TB) http.Handler {
	t.Helper()
	s.t = t
	if s.store == nil {
		s.store = newStore()
	}
	if s.engine.Logger == nil {
		s.engine.Logger = slog.New(slog.DiscardHandler)
	}
	if s.engine.ObserveFunc == nil {
		s.engine.ObserveFunc = func(_ context.Context, ev kakutei.Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, ev)
		}
	}
	var err error
	if s.Engine, err = kakutei.New(s.store, s.engine); err != nil {
		t.Fatal(err)
	}
	if s.opts.Recovery == 0 {
		s.opts.Recovery = kakutei.Rerun
	}
	if s.scope == nil {
		s.scope = byAccount
	}
	protect, err := kakuteihttp.Middleware(s.Engine, s.scope, s.opts)
	if err != nil {
		t.Fatal(err)
	}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		s.handler(w, r)
	})
	if s.inner != nil {
		h = s.inner(h)
	}
	h = protect(h)
	if s.outer != nil {
		h = s.outer(h)
	}
	return h
}

func (s *site) stop() {
	s.store.whole()
	if s.srv != nil {
		s.srv.CloseClientConnections() // whoever still waits for an answer is not to hold up the end
		s.srv.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Engine.Close(ctx); err != nil {
		s.t.Errorf("close the engine: %v", err)
	}
}

// seen counts the events of a kind.
func (s *site) seen(kind kakutei.EventKind) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ev := range s.events {
		if ev.Kind == kind {
			n++
		}
	}
	return n
}

// lose lets another process take over the attempt that handles r. The site needs
// a store whose leases expire at once.
func (s *site) lose(r *http.Request) kakutei.Ref {
	return s.store.takeOver(s.t, s.store.lastClaim(kakutei.FromContext(r.Context()).ID()).Operation)
}

// record looks up an operation of the default account.
func (s *site) record(key string) kakutei.Record {
	s.t.Helper()
	looked, err := s.store.Store.Look(context.Background(), []kakutei.ID{{Scope: "acme", Key: key}})
	if err != nil {
		s.t.Fatal(err)
	}
	return looked[0].Record
}

// want checks n and, unless key is empty, the state of its operation.
func (s *site) want(n int32, key string, status kakutei.Status) {
	s.t.Helper()
	if got := s.runs.Load(); got != n {
		s.t.Errorf("the handler ran %d times, want %d", got, n)
	}
	if key == "" {
		return
	}
	if got := s.record(key).Status; got != status {
		s.t.Errorf("the record of %q is %v, want %v", key, got, status)
	}
}

// call is a request to a site.
type call struct {
	method, path, key, body string // default POST /charges
	header                  http.Header
	// reader replaces body.
	reader io.Reader
	length int64
}

// reply is what a client got. err is set if the answer, or its body, broke off.
type reply struct {
	status  int
	header  http.Header
	trailer http.Header
	body    string
	err     error
	proto   string
	length  int64
}

func (r *reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// problem returns the name of the problem document, if it is one.
func (r *reply) problem() string {
	if r.header.Get("Content-Type") != "application/problem+json" {
		return ""
	}
	_, after, _ := strings.Cut(r.body, `"type":"`+kakuteihttp.TypeBase)
	name, _, _ := strings.Cut(after, `"`)
	return name
}

func (s *site) request(ctx context.Context, c call) *http.Request {
	s.t.Helper()
	if c.method == "" {
		c.method = http.MethodPost
	}
	if c.path == "" {
		c.path = "/charges"
	}
	if c.reader == nil {
		c.reader = strings.NewReader(c.body)
	}
	req, err := http.NewRequestWithContext(ctx, c.method, s.srv.URL+c.path, c.reader)
	if err != nil {
		s.t.Fatal(err)
	}
	if c.length != 0 {
		req.ContentLength = c.length
	}
	req.Header.Set("Content-Type", "application/json")
	for name, values := range c.header {
		req.Header[name] = values
	}
	if c.key != "" {
		req.Header.Set(kakuteihttp.Header, c.key)
	}
	return req
}

// do sends a request and reads the answer to its end.
func (s *site) do(c call) *reply {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.send(s.request(ctx, c))
}

func (s *site) send(req *http.Request) *reply {
	resp, err := s.client.Do(req)
	if err != nil {
		return &reply{err: err, header: http.Header{}}
	}
	return read(resp)
}

func read(resp *http.Response) *reply {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return &reply{
		status: resp.StatusCode, header: resp.Header, trailer: resp.Trailer,
		body: string(body), err: err, proto: resp.Proto, length: resp.ContentLength,
	}
}

// post sends a body under a key.
func (s *site) post(key, body string) *reply {
	s.t.Helper()
	return s.do(call{key: key, body: body})
}

// later does what do does, in the background.
func (s *site) later(c call) <-chan *reply {
	out := make(chan *reply, 1)
	go func() { out <- s.do(c) }()
	return out
}

// receive waits for something that a channel is to deliver.
func receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain: %s", what)
	}
	return v
}

// until polls for what no channel tells.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// gate holds up a handler. Release it also where a test fails: a server does not
// close while a handler runs.
type gate struct {
	entered chan *http.Request
	open    chan struct{}
	release func()
}

func newGate() *gate {
	g := &gate{entered: make(chan *http.Request, 100), open: make(chan struct{})}
	g.release = sync.OnceFunc(func() { close(g.open) })
	return g
}

func (g *gate) pass(r *http.Request) {
	g.entered <- r
	<-g.open
}

// dial opens a connection on which a test may misbehave.
func (s *site) dial() *rawConn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.srv.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(patience)) //nolint:errcheck // a test that hangs is found out anyway
	s.t.Cleanup(func() { conn.Close() })
	return &rawConn{Conn: conn, r: bufio.NewReader(conn), t: s.t}
}

type rawConn struct {
	net.Conn
	r *bufio.Reader
	t testing.TB
}

// say sends text as it is. That the server hangs up meanwhile is no failure.
func (c *rawConn) say(text string) {
	io.WriteString(c.Conn, text) //nolint:errcheck // see above
}

// hear reads one answer.
func (c *rawConn) hear() *reply {
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return &reply{err: err, header: http.Header{}}
	}
	return read(resp)
}

// closeWrite tells the server that nothing more comes.
func (c *rawConn) closeWrite() {
	c.t.Helper()
	if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		c.t.Fatal(err)
	}
}

// lines collects a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// both runs a test over HTTP/1.1 and over HTTP/2.
func both(t *testing.T, f func(t *testing.T, http2 bool)) {
	t.Helper()
	for _, http2 := range []bool{false, true} {
		name := "HTTP1.1"
		if http2 {
			name = "HTTP2"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, http2)
		})
	}
}
