package proxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
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
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/proxy"
)

// breaking is an upstream whose connections answer one request and break in the
// second: after it came whole, without a byte of an answer. It is what a
// keep-alive connection looks like whose other end dies.
type breaking struct {
	url string
	// got counts the POSTs; broken those whose connection was broken under them.
	got, broken atomic.Int32
}

func newBreaking(t testing.TB) *breaking {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	u := &breaking{url: "http://" + l.Addr().String()}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go u.serve(conn)
		}
	}()
	return u
}

func (u *breaking) serve(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	for n := 1; ; n++ {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		io.Copy(io.Discard, req.Body)
		if req.Method == http.MethodPost {
			u.got.Add(1)
			if n > 1 {
				u.broken.Add(1)
				return
			}
		}
		fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
	}
}

// Case 43: a reused connection breaks in the middle of a protected request. The
// proxy's transport does not send it again by itself, with a body or without.
func TestNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	// First the fault itself, on what the proxy stands on: net/http sends a
	// request with an Idempotency-Key and no body again.
	up := newBreaking(t)
	bare := &http.Client{Transport: &http.Transport{}}
	defer bare.CloseIdleConnections()
	sent := int32(0)
	for ; up.broken.Load() == 0 && sent < 100; sent++ { // the connection may not be back in time to be reused
		r, err := http.NewRequest(http.MethodPost, up.url, nil)
		assert.NoError(t, err)
		r.Header.Set("Idempotency-Key", "k")
		a, err := do(bare, r)
		assert.NoError(t, err)
		assert.Equal(t, a.status, 200, "status")
	}
	assert.Equal(t, up.broken.Load(), 1, "broken connections: the fault did not fire")
	assert.Equal(t, up.got.Load(), sent+1, "requests that a plain net/http client made of those that were sent")

	for _, recovery := range recoveries {
		for _, body := range []string{"", "{}"} {
			for _, target := range []string{"/charges", "/charges?", "/a|b"} {
				up := newBreaking(t)
				f := newFront(t, up.url, setup{route: proxy.Route{Recovery: recovery}})
				var c call
				var a answer
				sent := int32(0)
				for ; up.broken.Load() == 0 && sent < 100; sent++ {
					c = call{key: fmt.Sprintf("k%d", sent), body: body, target: target}
					a = f.send(c)
				}
				assert.Equal(t, up.broken.Load(), 1, "broken connections: the fault did not fire")
				assert.Equal(t, up.got.Load(), sent, "requests that reached the upstream")
				wantProblem(t, a, 502, "upstream-broken")
				a = f.send(c)
				if recovery == kakutei.Hold {
					wantProblem(t, a, 409, "uncertain")
					assert.Equal(t, up.got.Load(), sent, "requests that reached the upstream")
					continue
				}
				wantFirst(t, a, 200, "done")
				assert.Equal(t, up.got.Load(), sent+1, "requests that reached the upstream")
			}
		}
	}
}

// A connection that the upstream closed while it was idle is no reason to fail:
// nothing had been written to it.
func TestIdleConnectionClosed(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{route: proxy.Route{Recovery: kakutei.Hold}})
	for i := range 10 {
		a := f.send(call{key: fmt.Sprintf("k%d", i), body: "{}"})
		wantFirst(t, a, 201, fmt.Sprintf("run %d", i+1))
		up.CloseClientConnections()
		time.Sleep(5 * time.Millisecond)
	}
}

// tripper is a transport of somebody's own, which tells nobody about its connections.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A transport that does not say whether it sent the request may have sent it.
func TestForeignTransport(t *testing.T) {
	t.Parallel()
	var effects atomic.Int32
	f := newFront(t, "http://upstream.example", setup{
		route: proxy.Route{Recovery: kakutei.Hold},
		transport: tripper(func(*http.Request) (*http.Response, error) {
			effects.Add(1)
			return nil, errors.New("the connection broke")
		}),
	})
	wantProblem(t, f.send(call{key: "k"}), 502, "upstream-broken")
	wantProblem(t, f.send(call{key: "k"}), 409, "uncertain")
	assert.Equal(t, effects.Load(), 1, "effects")
}

// The default transport reaches an upstream with TLS, and does not go there
// through a proxy of the environment.
func TestUpstreamWithTLS(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		var runs atomic.Int32
		up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			runs.Add(1)
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s", r.Proto, r.RequestURI, body)
		}))
		up.EnableHTTP2 = http2
		up.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
		up.StartTLS()
		defer up.Close()
		tr := up.Client().Transport.(*http.Transport).Clone()
		tr.ForceAttemptHTTP2 = http2
		f := newFront(t, up.URL, setup{transport: tr})
		want := "HTTP/1.1 /a%2Fb|c?d|e {}"
		if http2 {
			want = "HTTP/2.0 /a%2Fb|c?d|e {}"
		}
		wantFirst(t, sendRaw(t, f.addr, "POST /a%2Fb|c?d|e HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"), 200, want)
		wantReplay(t, sendRaw(t, f.addr, "POST /a%2Fb|c?d|e HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}"), 200, want)
		assert.Equal(t, runs.Load(), 1, "runs")

		// A handshake that fails has sent nothing.
		distrusting := newFront(t, up.URL, setup{route: proxy.Route{Recovery: kakutei.Hold}})
		wantProblem(t, distrusting.send(call{key: "k"}), 503, "upstream-unreachable")
		assert.Equal(t, distrusting.status("k"), kakutei.StatusFailed, "record")
	}
}

// Many requests at once share connections, and none loses its answer.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	f := newFront(t, up.URL, setup{route: proxy.Route{Recovery: kakutei.Hold}})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			body := strings.Repeat(fmt.Sprint(i), 1+i)
			for _, replayed := range []string{"", "true"} {
				a := f.send(call{key: fmt.Sprintf("k%d", i), body: body})
				assert.Equal(t, a.status, 200, "status")
				assert.True(t, a.body == body, "the answer is another one's")
				assert.Equal(t, a.header.Get("Idempotent-Replayed"), replayed, "mark of a replay")
			}
		})
	}
	wg.Wait()
	up.wantRuns(t, 200)
}
