package kakuteihttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// TestBodiesExactly is case 23: every body comes back byte for byte.
func TestBodiesExactly(t *testing.T) {
	t.Parallel()
	random := make([]byte, kakuteihttp.DefaultMaxBytes)
	rand.Read(random)
	bodies := map[string]string{
		"empty": "", "null": "null", "zero": "0", "string": `""`, "list": "[]", "object order": `{"b":1,"a":2, "a":3}`,
		"NUL": "\x00\x00a\x00", "not UTF-8": "\xff\xfe\xc3\x28", "breaks": "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"spaces": "  \t\n", "unicode": "\u0000\u2028\U0001f4b0", "random": string(random),
	}
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, engine: kakutei.Options{ReplayMemoryBytes: 1 << 20}, handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Typed") != "" {
				w.Header().Set("Content-Type", "application/json")
			}
			switch r.URL.Path {
			case "/204":
				w.WriteHeader(204)
			case "/304":
				w.WriteHeader(304)
			default:
				w.WriteHeader(201)
				io.WriteString(w, bodies[r.Header.Get("Body")])
			}
		}}).start(t)
		for name, body := range bodies {
			for _, typed := range []string{"", "1"} {
				c := call{key: strings.ReplaceAll(name, " ", "-") + typed, header: http.Header{"Body": {name}, "Typed": {typed}}}
				first := s.do(c)
				wantAnswer(t, first, 201, body)
				again := s.do(c)
				wantReplay(t, again, 201, body)
				if a, b := first.header["Content-Type"], again.header["Content-Type"]; !slices.Equal(a, b) {
					t.Errorf("%s: media type %q, replayed as %q", name, a, b)
				}
				if first.length != int64(len(body)) || again.length != int64(len(body)) {
					t.Errorf("%s: Content-Length %d, replayed as %d, want %d", name, first.length, again.length, len(body))
				}
			}
		}
		for _, c := range []call{{key: "204", path: "/204"}, {key: "304", path: "/304"}} {
			first, again := s.do(c), s.do(c)
			wantAnswer(t, first, first.status, "")
			wantReplay(t, again, first.status, "")
			if fmt.Sprint(first.status) != c.key || again.header.Get("Content-Length") != "" {
				t.Errorf("%s: %d, then with header %v", c.key, first.status, again.header)
			}
		}
	})
}

// TestUnreadableRecord is case 24: what this program does not understand is
// answered with 500 and seen by the operator, nothing runs, nothing is changed.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	good := "kakutei/1\r\n\r\n"
	for name, result := range map[string]kakutei.Result{
		"newer format":      {Code: 200, Header: []byte("kakutei/2\r\n\r\n"), Body: []byte("secret")},
		"no format":         {Code: 200, Body: []byte("secret")},
		"cut off":           {Code: 200, Header: []byte("kakutei/1\r\nA: b"), Body: []byte("secret")},
		"cut off at a line": {Code: 200, Header: []byte("kakutei/1\r\nA: b\r\n"), Body: []byte("secret")},
		"status 0":          {Header: []byte(good), Body: []byte("secret")},
		"status 199":        {Code: 199, Header: []byte(good), Body: []byte("secret")},
		"status 1000":       {Code: 1000, Header: []byte(good), Body: []byte("secret")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := (&site{handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
			s.settled("k", result)
			before := fmt.Sprint(s.record("k"))
			for i := range 3 {
				r := s.post("k", "")
				wantProblem(t, r, 500, "record-unreadable")
				if strings.Contains(r.body, "secret") || r.replayed() {
					t.Errorf("the answer gives away the record: %v %s", r.header, r.body)
				}
				if got := s.seen(kakutei.EventCorrupt); got != i+1 {
					t.Errorf("%d events, want %d", got, i+1)
				}
			}
			s.want(0, "k", kakutei.StatusSucceeded)
			if after := fmt.Sprint(s.record("k")); after != before {
				t.Errorf("the record was changed: %s, before %s", after, before)
			}
		})
	}
}

// TestUnknownStatus is case 24: a status that the store cannot name.
func TestUnknownStatus(t *testing.T) {
	t.Parallel()
	s := (&site{handler: func(http.ResponseWriter, *http.Request) {}, opts: kakuteihttp.Options{FailOpen: true}}).start(t)
	s.store.hook(func(st *store) {
		st.claim = func(claims []kakutei.Claim, _ claimFunc) ([]kakutei.Decision, error) {
			_, err := kakutei.ParseStatus("EVAPORATED")
			return slices.Repeat([]kakutei.Decision{{Err: err}}, len(claims)), nil
		}
	})
	for range 2 {
		wantProblem(t, s.post("k", ""), 500, "record-unreadable")
	}
	s.want(0, "", 0)
	if got := s.seen(kakutei.EventCorrupt); got != 2 {
		t.Errorf("%d events, want 2", got)
	}
}

// settled records a result for POST /charges with an empty body, as another
// process would have.
func (s *site) settled(key string, result kakutei.Result) {
	s.t.Helper()
	req := kakutei.Request{Method: "POST", Path: "/charges", ContentType: "application/json"}
	op := kakutei.Operation{Scope: "acme", Key: key, Fingerprint: req.Fingerprint()}
	s.store.succeed(s.t, s.store.takeOver(s.t, op), result)
}

// TestHeaderLines is case 39: lines come back as they were, apart from those
// that belong to one client, one moment or one connection.
func TestHeaderLines(t *testing.T) {
	t.Parallel()
	kept := http.Header{
		"Content-Type":        {"application/vnd.x+json; charset=UTF-8"},
		"Content-Disposition": {`attachment; filename="a, b; c.pdf"; filename*=UTF-8''%e2%82%ac.pdf`},
		"Vary":                {"Accept", "Origin, Accept-Language"},
		"Content-Encoding":    {"gzip"},
		"Etag":                {`W/"1"`},
		"Expires":             {"Thu, 01 Jan 1970 00:00:00 GMT"},
		"Location":            {"/charges/1"},
		"Link":                {`</a>; rel="x"`, `</b>; rel="y, z"`},
		"Last-Modified":       {"Wed, 21 Oct 2015 07:28:00 GMT"},
	}
	dropped := http.Header{
		"Set-Cookie":         {"a=1; Expires=Wed, 21 Oct 2015 07:28:00 GMT, x", "b=2; Expires=Thu, 22 Oct 2015 07:28:00 GMT"},
		"Set-Cookie2":        {"c=3"},
		"Authorization":      {"Bearer secret"},
		"Www-Authenticate":   {"Basic"},
		"Proxy-Authenticate": {"Basic"},
		"Date":               {"Wed, 21 Oct 2015 07:28:00 GMT"},
		"Keep-Alive":         {"timeout=5"},
		"Connection":         {"X-Hop, keep-alive", "x-other-hop"},
		"X-Hop":              {"1"},
		"X-Other-Hop":        {"2"},
		"Te":                 {"trailers"},
		"Upgrade":            {"h2c"},
		"Proxy-Connection":   {"keep-alive"},
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	io.WriteString(z, `{"paid":true}`)
	z.Close()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, _ *http.Request) {
			for _, h := range []http.Header{kept, dropped} {
				for name, values := range h {
					for _, v := range values {
						w.Header().Add(name, v)
					}
				}
			}
			w.Header()["set-cookie"] = []string{"d=4"} // as who writes maps by hand would
			w.WriteHeader(201)
			w.Write(body.Bytes())
		}}).start(t)
		first, again := s.post("k", ""), s.post("k", "")
		wantAnswer(t, first, 201, body.String())
		wantReplay(t, again, 201, body.String())
		if got := len(first.header["Set-Cookie"]); got != 3 {
			t.Errorf("the first client got %d cookies, want 3", got)
		}
		for name, want := range kept {
			if got := again.header[name]; !slices.Equal(got, want) || !slices.Equal(first.header[name], want) {
				t.Errorf("%s: first %q, replay %q, want %q", name, first.header[name], got, want)
			}
			for _, v := range want {
				if line := name + ": " + v + "\r\n"; !bytes.Contains(s.record("k").Result.Header, []byte(line)) {
					t.Errorf("the record does not hold the line %q", line)
				}
			}
		}
		for name := range dropped {
			if got := again.header[name]; name != "Date" && name != "Connection" && got != nil {
				t.Errorf("%s was replayed: %q", name, got)
			}
			if bytes.Contains(bytes.ToLower(s.record("k").Result.Header), []byte("\n"+strings.ToLower(name)+":")) {
				t.Errorf("%s is in the record:\n%s", name, s.record("k").Result.Header)
			}
		}
		for _, line := range again.header["Connection"] { // the test's own connections close
			if line != "close" {
				t.Errorf("Connection was replayed: %q", line)
			}
		}
		date, err := http.ParseTime(again.header.Get("Date"))
		if age := time.Since(date); err != nil || age > time.Minute || age < -time.Minute || len(again.header["Date"]) != 1 {
			t.Errorf("Date of the replay: %q, %v", again.header["Date"], err)
		}
		s.want(1, "k", kakutei.StatusSucceeded)
	})
}

// TestTrailerFields is case 39: trailers are replayed, whichever way they were
// set, and those that belong to one client are not.
func TestTrailerFields(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		for _, size := range []int{0, 10, 10000} {
			s := (&site{http2: http2, handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum, Set-Cookie")
				w.Write(make([]byte, size))
				w.(http.Flusher).Flush()
				w.Header().Set("X-Sum", "sum, of it")
				w.Header().Set("Set-Cookie", "a=1")
				w.Header()[http.TrailerPrefix+"X-Late"] = []string{"1", "2"}
			}}).start(t)
			first, again := s.post("k", ""), s.post("k", "")
			wantAnswer(t, first, 200, string(make([]byte, size)))
			wantReplay(t, again, 200, string(make([]byte, size)))
			for what, r := range map[string]*reply{"first": first, "replay": again} {
				if r.trailer.Get("X-Sum") != "sum, of it" || !slices.Equal(r.trailer["X-Late"], []string{"1", "2"}) {
					t.Errorf("%d bytes: trailer of the %s answer: %v", size, what, r.trailer)
				}
				if r.header.Get("X-Sum") != "" || r.header.Get("X-Late") != "" {
					t.Errorf("%d bytes: the %s answer has its trailer in the header: %v", size, what, r.header)
				}
			}
			if first.trailer.Get("Set-Cookie") == "" || again.trailer.Get("Set-Cookie") != "" {
				t.Errorf("cookie in the trailer: %v, then %v", first.trailer, again.trailer)
			}
			s.want(1, "k", kakutei.StatusSucceeded)
		}
	})
}

// TestOuterHeader is case 39: what middleware outside sets is its own affair in
// every answer, and is not frozen into the record; what the handler changed is.
func TestOuterHeader(t *testing.T) {
	t.Parallel()
	calls := 0 // one after the other
	s := (&site{outer: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			calls++
			w.Header().Set("X-Request-Id", fmt.Sprint(calls))
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Add("Vary", "Origin")
			w.Header().Set("X-Both", fmt.Sprint("outer ", calls))
			h.ServeHTTP(w, r)
		})
	}, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Set("X-Both", "handler")
		io.WriteString(w, "<html>")
	}}).start(t)
	for i := range 3 {
		r := s.post("k", "")
		h := r.header
		if h.Get("X-Request-Id") != fmt.Sprint(i+1) || h.Get("X-Both") != "handler" || h.Get("Content-Type") != "text/plain" ||
			!slices.Equal(h["Vary"], []string{"Origin", "Accept"}) || r.replayed() != (i > 0) {
			t.Errorf("answer %d: %v", i+1, h)
		}
	}
	if stored := s.record("k").Result.Header; bytes.Contains(stored, []byte("Request-Id")) || bytes.Contains(stored, []byte("Content-Type")) {
		t.Errorf("what was set outside is in the record:\n%s", stored)
	}
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestStatuses is case 40: the same on replay, marked; the first is not marked.
func TestStatuses(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, r *http.Request) {
			var status int
			fmt.Sscan(r.URL.Path[1:], &status)
			w.Header().Set("Location", "/charges/1")
			w.Header().Set("Etag", `"1"`)
			w.WriteHeader(status)
			fmt.Fprintf(w, "body of %d", status)
		}}).start(t)
		for i, status := range []int{200, 201, 202, 203, 204, 206, 301, 303, 304, 307, 400, 401, 402, 403, 404, 409, 410, 418, 422, 451, 499} {
			c := call{key: fmt.Sprint(status), path: fmt.Sprintf("/%d", status)}
			body := fmt.Sprintf("body of %d", status)
			if status == 204 || status == 304 {
				body = ""
			}
			first, again := s.do(c), s.do(c)
			wantAnswer(t, first, status, body)
			wantReplay(t, again, status, body)
			if again.header.Get("Location") != "/charges/1" || again.header.Get("Etag") != `"1"` || again.problem() != "" {
				t.Errorf("%d: header %v", status, again.header)
			}
			s.want(int32(i+1), c.key, kakutei.StatusSucceeded)
		}
	})
}

// TestClientHeaders is case 38: what a client says about the answer is ignored,
// and a new credential of the same principal gets the replay.
func TestClientHeaders(t *testing.T) {
	t.Parallel()
	s := (&site{handler: func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		io.WriteString(w, r.Header.Get("Authorization"))
	}}).start(t)
	c := call{key: "k", header: http.Header{
		"Authorization": {"Bearer 1"}, "Idempotent-Replayed": {"true"}, "Idempotent-Unrecorded": {"true"}, "Kakutei-Attempt": {"9"},
	}}
	first := s.do(c)
	wantAnswer(t, first, 201, "Bearer 1")
	if first.header.Get("Idempotent-Unrecorded") != "" {
		t.Errorf("the client's own mark came back: %v", first.header)
	}
	c.header = http.Header{"Authorization": {"Bearer 2"}, "Idempotent-Replayed": {"false"}, "User-Agent": {"other"}}
	wantReplay(t, s.do(c), 201, "Bearer 1")
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestAuthorizeReplay: a recorded answer is given only to who may have it, also
// to one who waited for it. The first run does not ask.
func TestAuthorizeReplay(t *testing.T) {
	t.Parallel()
	g := newGate()
	defer g.release()
	var asked atomic.Int32
	s := &site{opts: kakuteihttp.Options{MaxPreferWait: patience, AuthorizeReplayFunc: func(r *http.Request) error {
		asked.Add(1)
		switch r.Header.Get("Role") {
		case "owner":
			return nil
		case "nobody":
			return fmt.Errorf("token: %w", kakuteihttp.ErrUnauthenticated)
		case "unlucky":
			return fmt.Errorf("ask: %w", kakutei.ErrUnavailable)
		}
		return errors.New("the secret reason")
	}}}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		g.pass(r)
		w.WriteHeader(201)
		io.WriteString(w, "secret")
	}
	s.start(t)
	as := func(role string) call {
		return call{key: "k", header: http.Header{"Role": {role}, "Prefer": {"wait=60"}}}
	}
	first := s.later(as("former"))
	receive(t, "the handler", g.entered)
	if asked.Load() != 0 {
		t.Errorf("the first run was asked for")
	}
	waiting := s.later(as("former"))
	g.release()
	wantAnswer(t, receive(t, "the answer", first), 201, "secret")
	for _, r := range []*reply{receive(t, "the waiter's answer", waiting), s.do(as("former"))} {
		wantProblem(t, r, 403, "replay-forbidden")
		if strings.Contains(r.body, "secret") || r.replayed() {
			t.Errorf("the refusal gives something away: %v %s", r.header, r.body)
		}
	}
	wantProblem(t, s.do(as("nobody")), 401, "unauthenticated")
	r := s.do(as("unlucky"))
	wantProblem(t, r, 503, "store-unavailable")
	if r.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After: %v", r.header)
	}
	wantReplay(t, s.do(as("owner")), 201, "secret")
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestReplayAfterRestart is case 39 and 40 from the store: another process knows
// nothing but the record.
func TestReplayAfterRestart(t *testing.T) {
	t.Parallel()
	handler := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/charges/1")
		w.WriteHeader(201)
		io.WriteString(w, "created")
	}
	before := (&site{handler: handler}).start(t)
	wantAnswer(t, before.post("k", "{}"), 201, "created")
	before.stop()
	after := (&site{handler: handler, store: before.store, http2: true}).start(t)
	r := after.send(after.request(context.Background(), call{key: "k", body: "{}"}))
	wantReplay(t, r, 201, "created")
	if r.header.Get("Location") != "/charges/1" {
		t.Errorf("header %v", r.header)
	}
	after.want(0, "k", kakutei.StatusSucceeded)
}
