package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/proxy"
)

var recoveries = []kakutei.Recovery{kakutei.Rerun, kakutei.Hold}

// What the answers of an upstream mean, under both recoveries: replayed if they
// are final, run again if they say that nothing was done, and else as the
// recovery says.
func TestAnswersOfTheUpstream(t *testing.T) {
	t.Parallel()
	const (
		final = iota
		noEffect
		unknown
	)
	for _, tt := range []struct {
		status     int
		retryAfter string
		want       int
	}{
		{200, "", final}, {201, "", final}, {202, "", final}, {204, "", final}, {206, "", final}, {299, "", final},
		{301, "", final}, {303, "", final}, {304, "", final}, {307, "", final}, {308, "", final},
		{400, "", final}, {402, "", final}, {404, "", final}, {405, "", final}, {409, "", final}, {410, "", final}, {413, "", final},
		{418, "", final}, {422, "", final}, {423, "", final}, {428, "", final}, {451, "", final}, {499, "", final}, {404, "5", final},
		{401, "", noEffect}, {403, "", noEffect}, {407, "", noEffect}, {429, "", noEffect}, {429, "1", noEffect}, {503, "1", noEffect},
		{503, "Tue, 01 Dec 2026 00:00:00 GMT", noEffect},
		{408, "", unknown}, {425, "", unknown}, {500, "", unknown}, {501, "", unknown}, {502, "", unknown}, {503, "", unknown},
		{504, "", unknown}, {500, "1", unknown}, {502, "1", unknown}, {504, "1", unknown}, {507, "", unknown}, {599, "", unknown},
	} {
		for _, recovery := range recoveries {
			t.Run(fmt.Sprintf("%d%s-%v", tt.status, tt.retryAfter, recovery), func(t *testing.T) {
				t.Parallel()
				var up *upstream
				up = newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
					if tt.retryAfter != "" {
						w.Header().Set("Retry-After", tt.retryAfter)
					}
					w.Header().Set("X-Run", strconv.Itoa(up.count()))
					w.WriteHeader(tt.status)
				})
				f := newFront(t, up.URL, setup{route: proxy.Route{Recovery: recovery}})
				a := f.send(call{key: "k"})
				wantFirst(t, a, tt.status, "")
				assert.Equal(t, a.header.Get("X-Run"), "1", "run that answered")
				a = f.send(call{key: "k"})
				switch {
				case tt.want == final:
					wantReplay(t, a, tt.status, "")
					assert.Equal(t, a.header.Get("X-Run"), "1", "run that answered")
					assert.Equal(t, f.status("k"), kakutei.StatusSucceeded, "record")
					up.wantRuns(t, 1)
				case tt.want == unknown && recovery == kakutei.Hold:
					wantProblem(t, a, 409, "uncertain")
					assert.Equal(t, a.header.Get("Retry-After"), "", "Retry-After where waiting is no use")
					assert.Equal(t, f.status("k"), kakutei.StatusUncertain, "record")
					up.wantRuns(t, 1)
				default:
					wantFirst(t, a, tt.status, "")
					assert.Equal(t, a.header.Get("X-Run"), "2", "run that answered")
					assert.Equal(t, up.last(t).header.Get(proxy.AttemptHeader), "2", "attempt number")
					assert.Equal(t, f.status("k"), kakutei.StatusFailed, "record")
					up.wantRuns(t, 2)
				}
			})
		}
	}
}

// A 5xx that is followed by a success: the success is final.
func TestFailureThenSuccess(t *testing.T) {
	t.Parallel()
	var up *upstream
	up = newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		if up.count() < 3 {
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintf(w, "run %d", up.count())
	})
	f := newFront(t, up.URL, setup{})
	wantFirst(t, f.send(call{key: "k"}), 500, "run 1")
	wantFirst(t, f.send(call{key: "k"}), 500, "run 2")
	wantFirst(t, f.send(call{key: "k"}), 200, "run 3")
	wantReplay(t, f.send(call{key: "k"}), 200, "run 3")
}

// refusing returns the address of a port at which nobody listens.
func refusing(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// An upstream that refuses the connection got nothing: the key is free again
// under every recovery, and works as soon as the upstream is up.
func TestUpstreamDown(t *testing.T) {
	t.Parallel()
	for _, recovery := range recoveries {
		addr := refusing(t)
		f := newFront(t, "http://"+addr, setup{route: proxy.Route{Recovery: recovery}})
		for range 2 {
			a := f.send(call{key: "k"})
			wantProblem(t, a, 503, "upstream-unreachable")
			assert.Equal(t, a.header.Get("Retry-After"), "1", "Retry-After")
			assert.Equal(t, f.status("k"), kakutei.StatusFailed, "record")
		}
		assert.True(t, contains(f.log.String(), "upstream-unreachable") && contains(f.log.String(), "refused"), "the log has not the cause: %s", f.log)
		wantProblem(t, f.send(call{}), 503, "upstream-unreachable")
		wantProblem(t, f.send(call{method: "GET"}), 503, "upstream-unreachable")

		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Skip("the port was taken by somebody else:", err)
		}
		up := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "attempt "+r.Header.Get(proxy.AttemptHeader))
		})}
		go up.Serve(l)
		defer up.Close()
		wantFirst(t, f.send(call{key: "k"}), 200, "attempt 3")
		wantReplay(t, f.send(call{key: "k"}), 200, "attempt 3")
	}
}

// rawUpstream accepts connections and does with each request what then says. It
// counts the requests that came whole.
type rawUpstream struct {
	url   string
	count atomic.Int32
}

func newRawUpstream(t testing.TB, then func(conn net.Conn, n int32)) *rawUpstream {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	u := &rawUpstream{url: "http://" + l.Addr().String()}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf := make([]byte, 1<<16)
				n, err := conn.Read(buf)
				for err == nil && !bytes.Contains(buf[:n], []byte("\r\n\r\n")) {
					var m int
					m, err = conn.Read(buf[n:])
					n += m
				}
				if err == nil {
					then(conn, u.count.Add(1))
				}
			}()
		}
	}()
	return u
}

// An answer that breaks off is no answer, wherever it breaks off: it is never
// recorded, and the client does not take it for whole.
func TestAnswersBrokenOff(t *testing.T) {
	t.Parallel()
	const head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	for name, text := range map[string]string{
		"nothing":                         "",
		"half a status line":              "HTTP/1.1 20",
		"half a header":                   "HTTP/1.1 200 OK\r\nContent-Le",
		"nonsense":                        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
		"declared, nothing":               head + "Content-Length: 10\r\n\r\n",
		"declared, short":                 head + "Content-Length: 10\r\n\r\n123456789",
		"chunked, nothing":                head + "Transfer-Encoding: chunked\r\n\r\n",
		"chunked, within a chunk":         head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
		"chunked, between chunks":         head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"chunked, no end":                 head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
		"chunked, bad size":               head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nxx\r\n",
		"over the limit, declared":        head + "Content-Length: 1000\r\n\r\n" + strings.Repeat("x", 999),
		"over the limit, chunked":         head + "Transfer-Encoding: chunked\r\n\r\n100\r\n" + strings.Repeat("x", 256) + "\r\n",
		"an event stream":                 "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n",
		"declared event stream":           "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 20\r\n\r\ndata: 1\n\n",
		"only a hint":                     "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
		"an upgrade nobody has asked for": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
	} {
		for _, recovery := range recoveries {
			for _, proto := range []string{"HTTP/1.1", "HTTP/2"} {
				t.Run(fmt.Sprintf("%s-%v-%s", name, recovery, proto), func(t *testing.T) {
					t.Parallel()
					whole := head + "Content-Length: 4\r\n\r\ndone"
					up := newRawUpstream(t, func(conn net.Conn, n int32) {
						if n == 1 {
							io.WriteString(conn, text)
							return
						}
						io.WriteString(conn, whole)
					})
					f := newFront(t, up.url, setup{route: proxy.Route{Recovery: recovery, MaxResponseBytes: 100}})
					client := plainClient
					if proto == "HTTP/2" {
						client = http2Client(t)
					}
					r := call{key: "k", body: "{}"}.request(t, f.url)
					r.GetBody = nil
					a, err := do(client, r)
					if err == nil {
						assert.Equal(t, a.status, 502, "status")
						wantProblem(t, a, 502, "upstream-broken")
					}
					want := kakutei.StatusFailed
					if recovery == kakutei.Hold {
						want = kakutei.StatusUncertain
					}
					eventually(t, "the attempt is settled", func() bool { return f.status("k") != kakutei.StatusProcessing })
					assert.Equal(t, f.status("k"), want, "record")
					a = f.send(call{key: "k", body: "{}"})
					if recovery == kakutei.Hold {
						wantProblem(t, a, 409, "uncertain")
						assert.Equal(t, up.count.Load(), 1, "requests that reached the upstream")
						return
					}
					wantFirst(t, a, 200, "done")
					assert.Equal(t, up.count.Load(), 2, "requests that reached the upstream")
				})
			}
		}
	}
}

// The same without a server under the proxy that would notice.
func TestAnswerBrokenOffWithoutServer(t *testing.T) {
	t.Parallel()
	up := newRawUpstream(t, func(conn net.Conn, _ int32) {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort")
	})
	f := newFront(t, up.url, setup{})
	func() {
		defer func() {
			if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
				panic(v)
			}
		}()
		r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader("{}"))
		r.Header.Set("X-Account-Id", "acme")
		r.Header.Set("Idempotency-Key", "k")
		f.server.Config.Handler.(http.HandlerFunc)(httptest.NewRecorder(), r)
	}()
	assert.Equal(t, f.status("k"), kakutei.StatusFailed, "record of an answer that broke off")
}

// An upstream that is too slow: 504, and then as the recovery says. It does not
// matter where it is slow.
func TestUpstreamTooSlow(t *testing.T) {
	t.Parallel()
	for _, recovery := range recoveries {
		for name, begin := range map[string]string{
			"no answer": "",
			"no body":   "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
			"no end":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nda\r\n",
		} {
			t.Run(fmt.Sprintf("%s-%v", name, recovery), func(t *testing.T) {
				t.Parallel()
				g := newGate(t)
				up := newRawUpstream(t, func(conn net.Conn, n int32) {
					if n > 1 {
						io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone")
						return
					}
					io.WriteString(conn, begin)
					g.pass()
				})
				f := newFront(t, up.url, setup{route: proxy.Route{Recovery: recovery, Timeout: 500 * time.Millisecond}})
				a, err := f.try(call{key: "k"})
				if name == "no answer" || err == nil {
					wantProblem(t, a, 504, "upstream-timeout")
				}
				eventually(t, "the attempt is settled", func() bool { return f.status("k") != kakutei.StatusProcessing })
				a = f.send(call{key: "k"})
				if recovery == kakutei.Hold {
					wantProblem(t, a, 409, "uncertain")
					assert.Equal(t, up.count.Load(), 1, "requests that reached the upstream")
					return
				}
				wantFirst(t, a, 200, "done")
				assert.Equal(t, up.count.Load(), 2, "requests that reached the upstream")
			})
		}
	}
}

// What is not protected has no deadline of the proxy's.
func TestNoDeadlineForWhatPasses(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(200 * time.Millisecond)
		io.WriteString(w, "done")
	})
	f := newFront(t, up.URL, setup{route: proxy.Route{Timeout: 50 * time.Millisecond}})
	wantFirst(t, f.send(call{method: "GET"}), 200, "done")
	wantFirst(t, f.send(call{}), 200, "done")
}

// A request that ran while its record was lost to another attempt is answered
// from the record, not with its own result.
func TestLeaseLost(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(proxy.AttemptHeader) == "1" {
			g.pass()
		}
		io.WriteString(w, "attempt "+r.Header.Get(proxy.AttemptHeader))
	})
	f := newFront(t, up.URL, setup{route: proxy.Route{Lease: 300 * time.Millisecond}})
	first := f.start(call{key: "k"})
	g.awaitStart(t)
	// Somebody takes the record away, as an operator might.
	rec := f.record("k")
	ref := kakutei.Ref{ID: kakutei.ID{Scope: "acme", Key: "k"}, Owner: rec.Owner, Attempt: rec.Attempt}
	errs, err := f.store.Settle(context.Background(), []kakutei.Settlement{{Ref: ref, Status: kakutei.StatusFailed}})
	assert.NoError(t, errors.Join(err, errs[0]))
	other := newFront(t, up.URL, setup{store: f.store})
	wantFirst(t, other.send(call{key: "k"}), 200, "attempt 2")
	// The renewal finds the lease gone and the proxy lets go of the upstream.
	wantReplay(t, await(t, first), 200, "attempt 2")
	up.wantRuns(t, 2)
}
