package proxy_test

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/proxy"
)

// Case 44: OPTIONS never claims; nor does any other method than POST and PATCH,
// whatever key stands in the request, even on a route that requires one.
func TestOtherMethodsPass(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Headers", "Idempotency-Key")
		io.Copy(w, r.Body)
	})
	f := newFront(t, up.URL, setup{route: proxy.Route{Required: true, Strict: true}})
	runs := 0
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE", "PROPFIND"} {
		for _, key := range []string{"", "k", `"unterminated`, "a, b", strings.Repeat("x", 300)} {
			for range 2 {
				a := f.send(call{method: method, key: key})
				assert.Equal(t, a.status, http.StatusOK, method+" status")
				assert.Equal(t, a.header.Get("Idempotent-Replayed"), "", "mark of a replay")
				runs++
				got := up.last(t)
				assert.Equal(t, got.method, method, "method")
				assert.Equal(t, got.header.Get(kakuteihttp.Header), key, "key at the upstream")
				assert.Equal(t, got.header.Get(proxy.AttemptHeader), "", "attempt number of an unprotected request")
			}
		}
	}
	up.wantRuns(t, runs)
	assert.Equal(t, f.status("k"), kakutei.StatusNone, "record")
	a := f.send(call{method: http.MethodOptions}.with("Origin", "https://shop.example").with("Access-Control-Request-Method", "POST"))
	assert.Equal(t, a.header.Get("Access-Control-Allow-Headers"), "Idempotency-Key", "the upstream's answer to a preflight")
}

// Without a key, and where none is required, POST and PATCH pass as well: any
// number of times, without limits on their size.
func TestNoKeyPasses(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{route: proxy.Route{MaxRequestBytes: 10, MaxResponseBytes: 1}})
	for i, method := range []string{"POST", "POST", "PATCH", "PATCH"} {
		wantFirst(t, f.send(call{method: method, body: strings.Repeat("b", 100)}), 201, fmt.Sprintf("run %d", i+1))
		assert.Equal(t, up.last(t).header.Get(proxy.AttemptHeader), "", "attempt number of an unprotected request")
	}
	// A request that cannot tell its scope needs none.
	r := call{}.request(t, f.url)
	r.Header.Del("X-Account-Id")
	a, err := do(plainClient, r)
	assert.NoError(t, err)
	assert.Equal(t, a.status, 201, "status without an account")
}

func TestKeyRequired(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{route: proxy.Route{Required: true}})
	for _, method := range []string{"POST", "PATCH"} {
		wantProblem(t, f.send(call{method: method}), 400, "key-missing")
	}
	up.wantRuns(t, 0)
	wantFirst(t, f.send(call{key: "k"}), 201, "run 1")
}

// Large bodies go both ways without being held in memory or cut.
func TestLargeBodiesPass(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		n, _ := io.Copy(sum, r.Body)
		w.Header().Set("X-Sum", fmt.Sprintf("%d %x", n, sum.Sum(nil)))
		zero := make([]byte, 64<<10)
		for range size / len(zero) {
			w.Write(zero)
		}
	})
	f := newFront(t, up.URL, setup{})
	body := make([]byte, size)
	rand.Read(body)
	want := fmt.Sprintf("%d %x", size, sha256.Sum256(body))
	r := call{method: http.MethodGet, key: "k"}.request(t, f.url)
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(string(body))), size
	resp, err := plainClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	n, err := io.Copy(io.Discard, resp.Body)
	assert.NoError(t, err)
	assert.Equal(t, n, int64(size), "downloaded bytes")
	assert.Equal(t, resp.Header.Get("X-Sum"), want, "uploaded bytes")
}

// What an upstream flushes reaches a client of an unprotected request at once.
func TestUnprotectedAnswersStream(t *testing.T) {
	t.Parallel()
	parts := make(chan string)
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		for part := range parts {
			if part == "" {
				return
			}
			io.WriteString(w, part)
			http.NewResponseController(w).Flush()
		}
	})
	f := newFront(t, up.URL, setup{})
	for _, method := range []string{"GET", "POST"} {
		_, r := exchange(t, f.addr, method+" /feed HTTP/1.1\r\nHost: api\r\nContent-Length: 0\r\n\r\n")
		parts <- "one"
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len("one"))
		_, err = io.ReadFull(resp.Body, got)
		assert.NoError(t, err)
		assert.Equal(t, string(got), "one", "first part, while the answer goes on")
		parts <- ""
		_, err = io.Copy(io.Discard, resp.Body)
		assert.NoError(t, err)
	}
}

// echoUpgrade answers an upgrade to any protocol and echoes lines.
func echoUpgrade(t testing.TB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			w.WriteHeader(http.StatusOK)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Accept: yes\r\n\r\n", r.Header.Get("Upgrade"))
		rw.Flush()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			rw.WriteString("echo " + line)
			rw.Flush()
		}
	}
}

func wantEcho(t testing.TB, conn net.Conn, r *bufio.Reader) {
	t.Helper()
	for _, line := range []string{"hello\n", "\x00\xff frame\n"} {
		if _, err := io.WriteString(conn, line); err != nil {
			t.Fatal(err)
		}
		got, err := r.ReadString('\n')
		assert.NoError(t, err)
		assert.Equal(t, got, "echo "+line, "through the tunnel")
	}
}

// A WebSocket is a tunnel in both directions; so is every other upgrade,
// whatever its method, if it is not the sending of a key.
func TestUpgradesPass(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, echoUpgrade(t))
	f := newFront(t, up.URL, setup{})
	for _, start := range []string{
		"GET /ws HTTP/1.1\r\nHost: api\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
		"GET /ws HTTP/1.1\r\nHost: api\r\nIdempotency-Key: k\r\nX-Account-Id: acme\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
		"POST /containers/7/attach HTTP/1.1\r\nHost: api\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n",
	} {
		conn, r := exchange(t, f.addr, start)
		a := readAnswer(t, r)
		assert.Equal(t, a.status, 101, "status")
		assert.Equal(t, a.header.Get("X-Accept"), "yes", "header of the upgrade's answer")
		wantEcho(t, conn, r)
		conn.Close()
	}
	assert.Equal(t, up.all()[0].header.Get("Sec-Websocket-Key"), "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Key at the upstream")
	assert.Equal(t, f.status("k"), kakutei.StatusNone, "record")
}

// To ask for an upgrade is no way around protection: Java's HttpClient does it
// in every first request, and anybody can. The request is protected, and the
// offer, which a server is free to ignore, is not passed on.
func TestUpgradeOfferIsNoWayAround(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"h2c", "websocket", "tcp"} {
		up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") != "" {
				echoUpgrade(t)(w, r)
				return
			}
			io.WriteString(w, "done")
		})
		f := newFront(t, up.URL, setup{})
		offer := "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 2\r\n" +
			"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + "\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n\r\n{}"
		wantFirst(t, sendRaw(t, f.addr, offer), 200, "done")
		wantReplay(t, sendRaw(t, f.addr, offer), 200, "done")
		up.wantRuns(t, 1)
		required := newFront(t, up.URL, setup{route: proxy.Route{Required: true}})
		a := sendRaw(t, required.addr, strings.Replace(offer, "Idempotency-Key: k\r\n", "", 1))
		wantProblem(t, a, 400, "key-missing")
		up.wantRuns(t, 1)
	}
}

// An upgrade to HTTP/2 without TLS would open a tunnel to the upstream in which
// requests are protected no more. It is an offer of one connection, not to be
// passed on (RFC 7540 section 3.2), and RFC 9113 has none any more.
func TestNoTunnelToHTTP2(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, echoUpgrade(t))
	f := newFront(t, up.URL, setup{})
	for _, upgrade := range []string{"h2c", "H2C", "websocket, h2c", "h2c, websocket"} {
		for _, method := range []string{"GET", "POST"} {
			a := sendRaw(t, f.addr, method+" / HTTP/1.1\r\nHost: api\r\nContent-Length: 0\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "+upgrade+
				"\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n\r\n")
			assert.Equal(t, a.status, 200, "status")
			got := up.last(t)
			for _, name := range []string{"Upgrade", "Http2-Settings", "Connection"} {
				assert.Equal(t, got.header.Get(name), "", name+" at the upstream")
			}
		}
	}
}

// A client that waits for "100 Continue" gets it, protected or not; one whose
// request is refused is not told to send its body.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		sum, _ := io.ReadAll(r.Body)
		io.WriteString(w, hex.EncodeToString(sum))
	})
	f := newFront(t, up.URL, setup{route: proxy.Route{MaxRequestBytes: 100}})
	for _, tt := range []struct{ method, key, size, want string }{
		{"POST", "k1", "5", "68656c6c6f"},
		{"PUT", "", "5", "68656c6c6f"},
		{"POST", "", "5", "68656c6c6f"},
	} {
		head := tt.method + " /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nExpect: 100-continue\r\nContent-Length: " + tt.size + "\r\n"
		if tt.key != "" {
			head += "Idempotency-Key: " + tt.key + "\r\n"
		}
		conn, r := exchange(t, f.addr, head+"\r\n")
		line, err := r.ReadString('\n')
		assert.NoError(t, err)
		assert.Equal(t, line, "HTTP/1.1 100 Continue\r\n", "before the body is sent")
		r.ReadString('\n')
		io.WriteString(conn, "hello")
		a := readAnswer(t, r)
		assert.Equal(t, a.status, 200, "status")
		assert.Equal(t, a.body, tt.want, "what the upstream read")
	}
	for _, tt := range []struct {
		lines, kind string
		status      int
	}{
		{"Idempotency-Key: k2\r\nContent-Length: 101\r\n", "request-too-large", 413},
		{"Idempotency-Key: a, b\r\nContent-Length: 5\r\n", "key-malformed", 400},
	} {
		_, r := exchange(t, f.addr, "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nExpect: 100-continue\r\n"+tt.lines+"\r\n")
		line, err := r.Peek(12)
		assert.NoError(t, err)
		assert.True(t, strings.HasPrefix(string(line), fmt.Sprintf("HTTP/1.1 %d", tt.status)), "the first line begins with %q", line)
		wantProblem(t, readAnswer(t, r), tt.status, tt.kind)
	}
	up.wantRuns(t, 3)
}

// An upstream that says 103 is heard through protection, and the hint is no answer.
func TestInformationalAnswersPass(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		time.Sleep(10 * time.Millisecond)
		w.WriteHeader(http.StatusCreated)
	})
	f := newFront(t, up.URL, setup{})
	send := func() (hints []int, a answer) {
		_, r := exchange(t, f.addr, "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
		for {
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode >= 200 {
				return hints, answer{status: resp.StatusCode, header: resp.Header}
			}
			hints = append(hints, resp.StatusCode)
		}
	}
	hints, a := send()
	assert.True(t, slices.Equal(hints, []int{103}), "informational answers: %v", hints)
	wantFirst(t, a, 201, "")
	_, a = send()
	wantReplay(t, a, 201, "")
	up.wantRuns(t, 1)
}
