package kakuteihttp_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// TestConflictAndMismatch is case 7: while a request runs, the same one is told
// so, another one under its key is refused, and the record is as it was.
func TestConflictAndMismatch(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		g := newGate()
		defer g.release()
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, r *http.Request) {
			g.pass(r)
			w.WriteHeader(201)
		}}).start(t)
		first := s.later(call{key: "k", body: "B"})
		receive(t, "the handler", g.entered)
		before := s.record("k")
		for range 2 {
			r := s.post("k", "B")
			wantProblem(t, r, 409, "in-flight")
			wantRetryAfter(t, r, 30)
		}
		r := s.post("k", "B'")
		wantProblem(t, r, 422, "key-reused")
		if r.header.Get("Retry-After") != "" {
			t.Errorf("a mismatch is to be sent again: %v", r.header)
		}
		after := s.record("k")
		before.Left, after.Left = 0, 0
		if fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("the record was changed: %+v, before %+v", after, before)
		}
		g.release()
		wantAnswer(t, receive(t, "the answer", first), 201, "")
		wantReplay(t, s.post("k", "B"), 201, "")
		wantProblem(t, s.post("k", "B'"), 422, "key-reused")
		s.want(1, "k", kakutei.StatusSucceeded)
	})
}

// TestFingerprint is case 30: what makes a request another one, and what does not.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }}).start(t)
		base := func() call {
			return call{key: "k", path: "/charges?a=1", body: `{"amount":1}`, header: http.Header{
				"Content-Type": {"application/json; charset=utf-8"}, "Authorization": {"Bearer 1"},
			}}
		}
		wantAnswer(t, s.do(base()), 201, "")
		for name, change := range map[string]func(c *call){
			"method":             func(c *call) { c.method = "PATCH" },
			"path":               func(c *call) { c.path = "/charge?a=1" },
			"path, slash":        func(c *call) { c.path = "/charges/?a=1" },
			"path, escaped":      func(c *call) { c.path = "/charg%65s?a=1" },
			"query, value":       func(c *call) { c.path = "/charges?a=2" },
			"query, more":        func(c *call) { c.path = "/charges?a=1&b=" },
			"query, gone":        func(c *call) { c.path = "/charges" },
			"media type":         func(c *call) { c.header.Set("Content-Type", "text/json; charset=utf-8") },
			"media type, params": func(c *call) { c.header.Set("Content-Type", "application/json; charset=latin1") },
			"coding":             func(c *call) { c.header.Set("Content-Encoding", "gzip") },
			"body":               func(c *call) { c.body = `{"amount":2}` },
			"body, a blank":      func(c *call) { c.body = `{"amount": 1}` },
			"body, empty":        func(c *call) { c.body = "" },
		} {
			c := base()
			change(&c)
			r := s.do(c)
			if r.problem() != "key-reused" {
				t.Errorf("another %s", name)
			}
			wantProblem(t, r, 422, "key-reused")
		}
		for name, change := range map[string]func(c *call){
			"nothing":                 func(*call) {},
			"User-Agent":              func(c *call) { c.header.Set("User-Agent", "curl") },
			"traceparent":             func(c *call) { c.header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") },
			"Authorization":           func(c *call) { c.header.Set("Authorization", "Bearer 2") },
			"Date":                    func(c *call) { c.header.Set("Date", "Wed, 21 Oct 2015 07:28:00 GMT") },
			"Accept":                  func(c *call) { c.header.Set("Accept", "text/html") },
			"Accept-Encoding":         func(c *call) { c.header.Set("Accept-Encoding", "br") },
			"X-Request-Id":            func(c *call) { c.header.Set("X-Request-Id", "2") },
			"spelling of the type":    func(c *call) { c.header.Set("Content-Type", `Application/JSON;charset="utf-8"`) },
			"spelling of the coding":  func(c *call) { c.header["Content-Encoding"] = nil },
			"no length in the header": func(c *call) { c.reader = iotest.DataErrReader(strings.NewReader(c.body)) },
		} {
			c := base()
			change(&c)
			if r := s.do(c); !r.replayed() {
				t.Errorf("other %s: %d %s", name, r.status, r.body)
			}
		}
		s.want(1, "k", kakutei.StatusSucceeded)
	})
}

// TestMountedRoutes is case 32: what is another target for the client is another
// request, also where routers have cut the paths until they look alike.
func TestMountedRoutes(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := &site{http2: http2, outer: func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/a/", http.StripPrefix("/a", h))
			mux.Handle("/b/", http.StripPrefix("/b", h))
			mux.Handle("POST /tickets/{id}", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.URL.Path, r.URL.RawQuery = "/ticket", ""
				h.ServeHTTP(w, r)
			}))
			mux.Handle("/x", h)
			return mux
		}}
		s.handler = func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }
		s.start(t)
		for key, paths := range map[string][]string{
			"k1": {"/x?dry=1", "/x"},
			"k2": {"/tickets/1", "/tickets/2", "/tickets/1?seat=3"},
			"k3": {"/a/pay", "/b/pay", "/a/pay/", "/a/%70ay"},
		} {
			first := s.do(call{key: key, path: paths[0]})
			wantAnswer(t, first, 200, first.body)
			for _, path := range paths[1:] {
				wantProblem(t, s.do(call{key: key, path: path}), 422, "key-reused")
			}
			wantReplay(t, s.do(call{key: key, path: paths[0]}), 200, first.body)
		}
		s.want(3, "", 0)
	})
}

// TestAbsoluteTarget is case 32: a proxy's form of the target is the same target.
func TestAbsoluteTarget(t *testing.T) {
	t.Parallel()
	s := (&site{handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }}).start(t)
	for i, target := range []string{"/x?a=1", "http://example.com/x?a=1", "http://example.com/y?a=1"} {
		conn := s.dial()
		conn.say("POST " + target + " HTTP/1.1\r\nHost: example.com\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
		switch r := conn.hear(); i {
		case 0:
			wantAnswer(t, r, 201, "")
		case 1:
			wantReplay(t, r, 201, "")
		default:
			wantProblem(t, r, 422, "key-reused")
		}
	}
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestBodyInEveryForm is case 31: however a body of 1 MiB comes, the request is
// the same, and the handler reads all of it.
func TestBodyInEveryForm(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	body := make([]byte, 1<<20)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range body {
		body[i] = byte(r.Uint32())
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(body))
	shared := newStore()
	handler := func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%x %d %d %v %v", sha256.Sum256(got), len(got), r.ContentLength, r.TransferEncoding, err)
	}
	want := fmt.Sprintf("%s %d %d [] <nil>", sum, len(body), len(body))
	http1 := (&site{store: shared, handler: handler}).start(t)
	http2 := (&site{store: shared, handler: handler, http2: true}).start(t)
	plain := func() io.Reader { return bytes.NewReader(body) }
	unknown := func() io.Reader { return io.MultiReader(bytes.NewReader(body)) } // of unknown length
	for i, f := range []struct {
		name string
		site *site
		body func() io.Reader
	}{
		{"Content-Length", http1, plain},
		{"chunked", http1, unknown},
		{"HTTP2-with-Content-Length", http2, plain},
		{"HTTP2", http2, unknown},
	} {
		wantAnswer(t, f.site.do(call{key: "own-" + f.name, reader: f.body()}), 200, want)
		if r := f.site.do(call{key: "shared", reader: f.body()}); i == 0 {
			wantAnswer(t, r, 200, want)
		} else {
			wantReplay(t, r, 200, want)
		}
	}

	var chunks bytes.Buffer // of one byte each
	for _, b := range body {
		chunks.Write([]byte{'1', '\r', '\n', b, '\r', '\n'})
	}
	conn := http1.dial()
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: shared\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" +
		chunks.String() + "0\r\n\r\n")
	wantReplay(t, conn.hear(), 200, want)

	// Byte by byte through the connection, as slow clients do; less of it.
	small := string(body[:2000])
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: slow\r\nContent-Length: 2000\r\n\r\n")
	for i := range len(small) {
		conn.say(small[i : i+1])
	}
	wantAnswer(t, conn.hear(), 200, fmt.Sprintf("%x 2000 2000 [] <nil>", sha256.Sum256([]byte(small))))
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: slow\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + small + "\r\n0\r\n\r\n")
	if r := conn.hear(); !r.replayed() {
		t.Errorf("chunked, on the same connection: %d %s", r.status, r.body)
	}
}

// TestHandlerChangesRequest is case 28: the identity is the one fixed at the
// claim, whatever the handler does to its request.
func TestHandlerChangesRequest(t *testing.T) {
	t.Parallel()
	s := &site{outer: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(w, r)
			if r.Method != "POST" || r.URL.Path != "/charges" || r.Header.Get("Content-Type") != "application/json" || r.Header.Get("Idempotency-Key") != "k" {
				t.Errorf("the handler's changes reached outside: %s %s %v", r.Method, r.URL, r.Header)
			}
		})
	}}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "body" {
			t.Errorf("the handler reads %q, %v", body, err)
		}
		clear(body)
		r.Method, r.URL.Path, r.URL.RawQuery, r.RequestURI = "DELETE", "/other", "x=1", "/other"
		r.Header.Set("Content-Type", "text/plain")
		r.Header.Del("Idempotency-Key")
		r.Body = io.NopCloser(strings.NewReader("another"))
		w.WriteHeader(201)
	}
	s.start(t)
	wantAnswer(t, s.post("k", "body"), 201, "")
	wantReplay(t, s.post("k", "body"), 201, "")
	wantProblem(t, s.post("k", "another"), 422, "key-reused")
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestTenants is case 37: the same key of another tenant is another operation,
// and nothing of the first is seen.
func TestTenants(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(201)
			io.WriteString(w, "of "+r.Header.Get(account))
		}}).start(t)
		as := func(name, body string) call {
			return call{key: "k", body: body, header: http.Header{account: {name}}}
		}
		for _, name := range []string{"acme", "umbrella", "Acme"} {
			wantAnswer(t, s.do(as(name, "B")), 201, "of "+name)
			wantReplay(t, s.do(as(name, "B")), 201, "of "+name)
			wantProblem(t, s.do(as(name, "B'")), 422, "key-reused")
		}
	})
}

// TestScope is case 37: who is not known is refused before the body is read or
// anything is claimed.
func TestScope(t *testing.T) {
	t.Parallel()
	s := (&site{scope: func(r *http.Request) (string, error) {
		switch who := r.Header.Get(account); who {
		case "unknown":
			return "", fmt.Errorf("token 8f3a: %w", kakuteihttp.ErrUnauthenticated)
		case "broken":
			return "acme", errors.New("token 8f3a cannot be parsed")
		case "long":
			return strings.Repeat("a", kakutei.MaxScopeBytes+1), nil
		case "control":
			return "a\nb", nil
		default:
			return who, nil
		}
	}, handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
	for who, want := range map[string]string{"": "scope-missing", "unknown": "unauthenticated", "broken": "scope-missing", "long": "scope-missing", "control": "scope-missing"} {
		r := s.do(call{key: "k", body: "body", header: http.Header{account: {who}}})
		status := map[string]int{"scope-missing": 400, "unauthenticated": 401}[want]
		wantProblem(t, r, status, want)
		if strings.Contains(r.body, "8f3a") {
			t.Errorf("%s: the answer holds the cause: %s", who, r.body)
		}
	}
	s.want(0, "", 0)
	if live, results := s.store.Len(); live+results != 0 {
		t.Errorf("%d records and %d results of nobody", live, results)
	}
	single := (&site{scope: kakuteihttp.SingleScope, handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
	single.send(single.request(context.Background(), call{key: "k"}))
	if got := single.store.lastClaim(kakutei.ID{Scope: "single", Key: "k"}); got.Key != "k" {
		t.Errorf("SingleScope: nothing was claimed")
	}
}

// TestAudit: what the audit trail says about the origin goes with the claim.
func TestAudit(t *testing.T) {
	t.Parallel()
	s := (&site{opts: kakuteihttp.Options{ActorFunc: func(r *http.Request) string { return "user " + r.Header.Get("User") }},
		handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
	const good = "4bf92f3577b34da6a3ce929d0e0e4736"
	for traceparent, want := range map[string]string{
		"":                                    "",
		"00-" + good + "-00f067aa0ba902b7-01": good,
		"cc-" + good + "-00f067aa0ba902b7-01-what-the-future-will-be-like": good,
		"00-" + good:                  "",
		"00-4bf9-00f067aa0ba902b7-01": "",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01":     "",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01":     "",
		"00-" + strings.Repeat("\xff", 32) + "-00f067aa0ba902b7-01":   "", // not text for PostgreSQL
		"00-" + strings.Repeat("\u00e9", 16) + "-00f067aa0ba902b7-01": "",
		"00-" + strings.Repeat("'", 32) + "-00f067aa0ba902b7-01":      "",
	} {
		key := fmt.Sprintf("k%d", s.runs.Load())
		conn := s.dial()
		conn.say("POST /a%2Fb/c?secret=1 HTTP/1.1\r\nHost: x\r\nIdempotency-Key: " + key + "\r\nUser: 7\r\nTraceparent: " + traceparent + "\r\nContent-Length: 0\r\n\r\n")
		wantAnswer(t, conn.hear(), 200, "")
		c := s.store.lastClaim(kakutei.ID{Scope: "acme", Key: key})
		if c.Actor != "user 7" || c.Method != "POST" || c.Path != "/a%2Fb/c" || c.TraceID != want {
			t.Errorf("traceparent %q: actor %q, %s %s, trace id %q, want %q", traceparent, c.Actor, c.Method, c.Path, c.TraceID, want)
		}
	}

	// A path is stored in part, and fingerprinted as a whole.
	long := "/" + strings.Repeat("a", 5000)
	wantAnswer(t, s.do(call{key: "long", path: long + "1"}), 200, "")
	wantProblem(t, s.do(call{key: "long", path: long + "2"}), 422, "key-reused")
	if got := s.store.lastClaim(kakutei.ID{Scope: "acme", Key: "long"}).Path; len(got) != 1024 {
		t.Errorf("%d bytes of a path are stored", len(got))
	}
}
