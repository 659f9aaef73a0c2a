package proxy_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/proxy"
)

// Cases 30 and 32: what makes a request another one, and what does not.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	first := call{method: "POST", target: "/charges?currency=jpy", key: "k", body: `{"amount":1}`}
	wantFirst(t, f.send(first), 201, "run 1")
	for name, change := range map[string]func(*call){
		"method":           func(c *call) { c.method = "PATCH" },
		"path":             func(c *call) { c.target = "/charge?currency=jpy" },
		"trailing slash":   func(c *call) { c.target = "/charges/?currency=jpy" },
		"escaped slash":    func(c *call) { c.target = "/charges%2F?currency=jpy" },
		"query":            func(c *call) { c.target = "/charges?currency=eur" },
		"more query":       func(c *call) { c.target = "/charges?currency=jpy&dry=1" },
		"no query":         func(c *call) { c.target = "/charges" },
		"media type":       func(c *call) { *c = c.with("Content-Type", "text/plain") },
		"no media type":    func(c *call) { *c = c.with("Content-Type", "") },
		"content encoding": func(c *call) { *c = c.with("Content-Encoding", "gzip") },
		"body":             func(c *call) { c.body = `{"amount":2}` },
		"spaces":           func(c *call) { c.body = `{"amount": 1}` },
		"no body":          func(c *call) { c.body = "" },
	} {
		changed := first
		change(&changed)
		a := f.send(changed)
		if !assert.Equal(t, a.status, 422, "status with another "+name) {
			continue
		}
		wantProblem(t, a, 422, "key-reused")
	}
	for name, change := range map[string]func(*call){
		"user agent":          func(c *call) { *c = c.with("User-Agent", "curl/8") },
		"trace":               func(c *call) { *c = c.with("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") },
		"credential":          func(c *call) { *c = c.with("Authorization", "Bearer another") },
		"date":                func(c *call) { *c = c.with("Date", "Tue, 01 Dec 2026 00:00:00 GMT") },
		"cookies":             func(c *call) { *c = c.with("Cookie", "a=b") },
		"address":             func(c *call) { *c = c.with("X-Forwarded-For", "192.0.2.1") },
		"quoted key":          func(c *call) { c.key = `"k"` },
		"spelling of type":    func(c *call) { *c = c.with("Content-Type", "Application/JSON") },
		"Accept":              func(c *call) { *c = c.with("Accept", "text/html") },
		"another wait":        func(c *call) { *c = c.with("Prefer", "wait=5") },
		"unprotected forgery": func(c *call) { *c = c.with("Kakutei-Attempt", "5") },
	} {
		changed := first
		change(&changed)
		a := f.send(changed)
		if !assert.Equal(t, a.status, 201, "status with another "+name) {
			continue
		}
		wantReplay(t, a, 201, "run 1")
	}
	// Case 32.
	for i, targets := range [][2]string{{"/x?dry=1", "/x"}, {"/tickets/1", "/tickets/2"}} {
		key := fmt.Sprintf("k32-%d", i)
		assert.Equal(t, f.send(call{target: targets[0], key: key}).status, 201, "status")
		wantProblem(t, f.send(call{target: targets[1], key: key}), 422, "key-reused")
	}
	up.wantRuns(t, 3)
}

// Case 31: a body is the same however it comes, and the upstream reads all of it.
func TestWaysToSendABody(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	body := make([]byte, 1<<20)
	rand.Read(body)
	const head = "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nContent-Type: application/json\r\nIdempotency-Key: %s\r\n"
	ways := map[string]func(key string) answer{
		"Content-Length": func(key string) answer { return f.send(call{key: key, body: string(body)}) },
		"chunked": func(key string) answer {
			r := call{key: key, body: "."}.request(t, f.url)
			r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(body)), -1, nil
			a, err := do(plainClient, r)
			assert.NoError(t, err)
			return a
		},
		"byte by byte": func(key string) answer {
			conn, r := exchange(t, f.addr, fmt.Sprintf(head+"Transfer-Encoding: chunked\r\n\r\n", key))
			var chunks bytes.Buffer
			for _, c := range body {
				chunks.Write([]byte{'1', '\r', '\n', c, '\r', '\n'})
			}
			chunks.WriteString("0\r\n\r\n")
			_, err := conn.Write(chunks.Bytes())
			assert.NoError(t, err)
			return readAnswer(t, r)
		},
		"slowly": func(key string) answer {
			conn, r := exchange(t, f.addr, fmt.Sprintf(head+"Content-Length: %d\r\n\r\n", key, len(body)))
			for rest := body; len(rest) > 0; rest = rest[min(len(rest), 1<<16):] {
				if len(rest) > len(body)-100 { // the beginning, in pieces of one byte
					_, err := conn.Write(rest[:1])
					assert.NoError(t, err)
					rest = rest[1:]
				}
				_, err := conn.Write(rest[:min(len(rest), 1<<16)])
				assert.NoError(t, err)
			}
			return readAnswer(t, r)
		},
		"HTTP/2": func(key string) answer {
			a, err := do(http2Client(t), call{key: key, body: string(body)}.request(t, f.url))
			assert.NoError(t, err)
			assert.Equal(t, a.proto, "HTTP/2.0", "protocol")
			return a
		},
		"HTTP/2 of unknown length": func(key string) answer {
			r := call{key: key, body: "."}.request(t, f.url)
			r.Body, r.ContentLength, r.GetBody = io.NopCloser(bytes.NewReader(body)), -1, nil
			a, err := do(http2Client(t), r)
			assert.NoError(t, err)
			return a
		},
	}
	wantFirst(t, f.send(call{key: "k", body: string(body)}), 201, "run 1")
	runs := 1
	for name, send := range ways {
		wantReplay(t, send("k"), 201, "run 1")
		runs++
		wantFirst(t, send(strings.ReplaceAll(name, " ", "-")), 201, fmt.Sprintf("run %d", runs))
		assert.True(t, bytes.Equal(up.last(t).body, body), "%s: the upstream got other bytes", name)
	}
	up.wantRuns(t, runs)
}

// Case 36: what is a key, and what is not. A bad one is refused where none is
// required, too, and nothing runs.
func TestKeys(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	long := strings.Repeat("k", 255)
	for _, strict := range []bool{false, true} {
		f := newFront(t, up.URL, setup{route: proxy.Route{Strict: strict}})
		before := up.count()
		for _, lines := range [][]string{
			{""}, {"   "}, {`""`}, {`"`}, {long + "k"}, {`"` + long + `k"`}, {"a\tb"}, {"caf\xc3\xa9"}, {"\"caf\xc3\xa9\""}, {"a b"},
			{"a", "b"}, {"a", "a"}, {"a", ""}, {`"a"`, `"a"`}, {"a, b"}, {`"a", "b"`}, {"a,"}, {`"unterminated`}, {`unbegun"`}, {`"a"b`}, {`"a\b"`},
			{"k;v=1"}, {`"k";V=`}, {"\x80"}, {":YWJj:extra;"},
		} {
			raw := "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nContent-Length: 0\r\n"
			for _, line := range lines {
				raw += "Idempotency-Key: " + line + "\r\n"
			}
			a := sendRaw(t, f.addr, raw+"\r\n")
			if !assert.Equal(t, a.status, 400, fmt.Sprintf("status for %q", lines)) {
				continue
			}
			wantProblem(t, a, 400, "key-malformed")
		}
		assert.Equal(t, up.count(), before, "requests that reached the upstream with bad keys")
		for key, sameAs := range map[string]string{
			`"k"`: `"k";v=1`, `"` + long + `"`: `"` + long + `"`, `"a\"b"`: `"a\"b" `, `"a b"`: `"a b"`, `"~!@#$%^&*()"`: `"~!@#$%^&*()";a;b="c"`,
		} {
			assert.Equal(t, f.send(call{key: key, account: fmt.Sprint(strict)}).status, 201, "status for "+key)
			a := f.send(call{key: sameAs, account: fmt.Sprint(strict)})
			assert.Equal(t, a.header.Get("Idempotent-Replayed"), "true", sameAs+" is the same as "+key)
		}
		for _, bare := range []string{"k1", long, "8e03978e-40d5-43dd-bc93-6894a57f9324", "a/b+c=="} {
			a := f.send(call{key: bare})
			if strict {
				wantProblem(t, a, 400, "key-malformed")
				continue
			}
			assert.Equal(t, a.status, 201, "status for "+bare)
			assert.Equal(t, up.last(t).header.Get("Idempotency-Key"), bare, "key at the upstream, as it was sent")
			a = f.send(call{key: `"` + bare + `"`})
			assert.Equal(t, a.header.Get("Idempotent-Replayed"), "true", "quoted it is the same key")
		}
	}
}

// A client may also speak HTTP/2, where the names of headers are small.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	client := http2Client(t)
	for i, want := range []string{"", "true"} {
		a, err := do(client, call{key: "k", body: "{}"}.request(t, f.url))
		assert.NoError(t, err)
		assert.Equal(t, a.status, 201, fmt.Sprintf("status %d", i))
		assert.Equal(t, a.header.Get("Idempotent-Replayed"), want, "mark of a replay")
	}
	wantReplay(t, f.send(call{key: "k", body: "{}"}), 201, "run 1")
	a, err := do(client, call{method: "GET", key: "k"}.request(t, f.url))
	assert.NoError(t, err)
	wantFirst(t, a, 201, "run 2")
}

// Case 41: a body over the limit is refused before anything is held of it,
// whatever its Content-Length says, and leaves no record.
func TestRequestsTooLarge(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	const limit = 1000
	f := newFront(t, up.URL, setup{route: proxy.Route{MaxRequestBytes: limit}})
	body := strings.Repeat("b", limit)
	wantFirst(t, f.send(call{key: "at-the-limit", body: body}), 201, "run 1")
	const head = "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\n"
	chunked := func(n int) string {
		return head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", n, strings.Repeat("b", n))
	}
	for name, raw := range map[string]string{
		"declared":              head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", limit+1, body+"b"),
		"declared and not sent": head + "Content-Length: 9000000000000000000\r\n\r\n",
		"chunked":               chunked(limit + 1),
		"chunked, much more":    chunked(1 << 20),
	} {
		conn, r := exchange(t, f.addr, "")
		go io.WriteString(conn, raw) // who is refused may not be read to the end
		a := readAnswer(t, r)
		if !assert.Equal(t, a.status, 413, "status of "+name) {
			continue
		}
		wantProblem(t, a, 413, "request-too-large")
	}
	assert.Equal(t, f.status("k"), kakutei.StatusNone, "record")
	// The key is free.
	wantFirst(t, f.send(call{key: "k", body: body}), 201, "run 2")
	assert.Equal(t, up.last(t).header.Get(proxy.AttemptHeader), "1", "attempt number")

	// Endless bodies are not held in memory.
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const mib = 1 << 20
	for range 4 {
		r := call{key: "endless", body: "."}.request(t, f.url)
		r.Body, r.ContentLength, r.GetBody = io.NopCloser(io.LimitReader(zeros{}, 64*mib)), -1, nil
		if a, err := do(plainClient, r); err == nil {
			wantProblem(t, a, 413, "request-too-large")
		}
	}
	runtime.ReadMemStats(&after)
	// Other tests allocate meanwhile; what would be held here is four times 64 MiB.
	assert.True(t, after.HeapSys < before.HeapSys+128*mib, "the heap grew by %d MiB", (after.HeapSys-before.HeapSys)/mib)
}

// A request that breaks off before its end has not been made: 400 for who still
// listens, and the key is as free as before.
func TestRequestsBrokenOff(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	const head = "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\n"
	for _, raw := range []string{
		head + "Content-Length: 10\r\n\r\nshort",
		head + "Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
		head + "Transfer-Encoding: chunked\r\n\r\n5\r\nsho",
		head + "Transfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n\r\n",
	} {
		conn, r := exchange(t, f.addr, raw)
		assert.NoError(t, conn.(*net.TCPConn).CloseWrite())
		wantProblem(t, readAnswer(t, r), 400, "body-unreadable")
		assert.Equal(t, f.status("k"), kakutei.StatusNone, "record")
	}
	up.wantRuns(t, 0)
	wantFirst(t, f.send(call{key: "k", body: "whole body"}), 201, "run 1")
	wantReplay(t, f.send(call{key: "k", body: "whole body"}), 201, "run 1")
}

// A server that is asked ambiguously where a request ends refuses it.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	const head = "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\n"
	for _, raw := range []string{
		head + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
		head + "Content-Length: +5\r\n\r\nhello",
		head + "Transfer-Encoding: xchunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"POST /charges HTTP/1.1\r\nHost: api\r\nHost: other\r\nContent-Length: 0\r\n\r\n",
		head + "Idempotency-Key : k2\r\nContent-Length: 0\r\n\r\n",
	} {
		_, r := exchange(t, f.addr, raw)
		resp, err := http.ReadResponse(r, nil)
		if !assert.NoError(t, err) {
			continue
		}
		assert.True(t, resp.StatusCode == 400 || resp.StatusCode == 501, "status %d for %q", resp.StatusCode, raw)
	}
	up.wantRuns(t, 0)
}

// zeros is a body without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
