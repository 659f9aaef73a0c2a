package kakuteihttp_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

var update = flag.Bool("update", false, "write the golden files")

const (
	secretKey   = "secret-key-4f3a"
	secretCause = "pq: secret cause at 10.0.0.7"
)

// situation leads to one problem document.
type situation struct {
	problem string
	site    site
	before  func(s *site)
	call    call
}

func situations(t *testing.T) []situation {
	keyed := call{key: secretKey, body: "secret body", path: "/secret/path?secret=query"}
	decide := func(d kakutei.Decision) func(s *site) {
		return func(s *site) {
			s.store.hook(func(st *store) {
				st.claim = func([]kakutei.Claim, claimFunc) ([]kakutei.Decision, error) { return []kakutei.Decision{d}, nil }
			})
		}
	}
	return []situation{
		{problem: "key-missing", site: site{opts: kakuteihttp.Options{Required: true}}, call: call{body: "secret body"}},
		{problem: "key-malformed", call: call{key: secretKey + ",b"}},
		{problem: "scope-missing", site: site{scope: func(*http.Request) (string, error) { return "", errors.New(secretCause) }}, call: keyed},
		{problem: "unauthenticated", site: site{scope: func(*http.Request) (string, error) {
			return "", fmt.Errorf("%w: %s", kakuteihttp.ErrUnauthenticated, secretCause)
		}}, call: keyed},
		{problem: "replay-forbidden", site: site{opts: kakuteihttp.Options{AuthorizeReplayFunc: func(*http.Request) error { return errors.New(secretCause) }}},
			before: func(s *site) { s.do(keyed) }, call: keyed},
		{problem: "body-unreadable", call: keyed}, // sent by hand
		{problem: "request-too-large", site: site{opts: kakuteihttp.Options{MaxRequestBytes: 5}}, call: keyed},
		{problem: "in-flight", before: decide(kakutei.Decision{Outcome: kakutei.InFlight, Attempt: 3, Left: 20*time.Second + 900*time.Millisecond}), call: keyed},
		{problem: "uncertain", before: decide(kakutei.Decision{Outcome: kakutei.Uncertain, Attempt: 3}), call: keyed},
		{problem: "result-not-retained", before: decide(kakutei.Decision{Outcome: kakutei.Replay, Result: kakutei.Result{Code: 200, Omitted: "too-large"}}), call: keyed},
		{problem: "key-reused", before: func(s *site) { s.post(secretKey, "another body") }, call: keyed},
		{problem: "record-unreadable", before: decide(kakutei.Decision{Outcome: kakutei.Replay, Result: kakutei.Result{Code: 200, Header: []byte(secretCause)}}), call: keyed},
		{problem: "store-unavailable", site: site{engine: kakutei.Options{StoreTimeout: time.Millisecond}}, before: func(s *site) {
			s.store.hook(func(st *store) {
				st.claim = func([]kakutei.Claim, claimFunc) ([]kakutei.Decision, error) { return nil, errors.New(secretCause) }
			})
		}, call: keyed},
		{problem: "shutting-down", before: func(s *site) {
			if err := s.Engine.Close(context.Background()); err != nil {
				t.Error(err)
			}
		}, call: keyed},
		{problem: "server-error", site: site{outer: func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Body = http.NoBody
				h.ServeHTTP(w, r)
			})
		}}, call: keyed},
	}
}

// TestProblems compares every problem document with its file: status, header and
// text. Nothing of the key, the request or a cause is in any of them.
func TestProblems(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	all := situations(t)
	for i := range all {
		x := &all[i]
		t.Run(x.problem, func(t *testing.T) {
			s := &x.site
			s.handler = func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Handler", "1") }
			s.start(t)
			if x.before != nil {
				x.before(s)
			}
			runs := s.runs.Load()
			var r *reply
			if x.problem == "body-unreadable" {
				conn := s.dial()
				conn.say("POST / HTTP/1.1\r\nHost: x\r\nIdempotency-Key: " + secretKey + "\r\nContent-Length: 100\r\n\r\nsecret body")
				conn.closeWrite()
				r = conn.hear()
			} else {
				r = s.do(x.call)
			}
			if r.err != nil {
				t.Fatal(r.err)
			}
			wantProblem(t, r, r.status, x.problem)
			if s.runs.Load() != runs {
				t.Errorf("the handler ran")
			}
			checkGolden(t, "problem-"+x.problem+".txt", dump(r))
			seen[x.problem] = true
		})
	}
	files, err := filepath.Glob(filepath.Join("testdata", "golden", "problem-*.txt"))
	if err != nil || len(files) != len(seen) {
		t.Errorf("%d files for %d problems, %v", len(files), len(seen), err)
	}
}

// TestLostLeaseProblem: who lost its lease is answered as a duplicate would be.
func TestLostLeaseProblem(t *testing.T) {
	t.Parallel()
	s := &site{}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Handler", "1")
		s.lose(r)
	}
	s.start(t)
	s.store.expireAtOnce()
	r := s.post(secretKey, "")
	wantProblem(t, r, 409, "in-flight")
	wantRetryAfter(t, r, 3600) // what the other one has left
	if r.header.Get("X-Handler") != "" {
		t.Errorf("header of the loser: %v", r.header)
	}
}

// dump is an answer as text, without what changes from run to run.
func dump(r *reply) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", r.status, http.StatusText(r.status))
	for _, name := range slices.Sorted(maps.Keys(r.header)) {
		if name != "Date" && name != "Connection" {
			for _, v := range r.header[name] {
				fmt.Fprintf(&b, "%s: %s\n", name, v)
			}
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.body)
	return []byte(b.String())
}

func checkGolden(t *testing.T, name string, got []byte) {
	t.Helper()
	for _, secret := range []string{"secret", "4f3a", "10.0.0.7", "X-Handler"} {
		if strings.Contains(string(got), secret) {
			t.Errorf("%q is in the answer:\n%s", secret, got)
		}
	}
	path := filepath.Join("testdata", "golden", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestWriteProblem: what a service adds to a problem stays, what must not vary
// is set, and the text is JSON whatever it holds.
func TestWriteProblem(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	w.Header().Set("Cache-Control", "public")
	w.Header().Set("X-Request-Id", "1")
	kakuteihttp.WriteProblem(w, nil, kakuteihttp.Problem{
		Type: "about:blank", Title: `"a" <b>`, Status: 418, Detail: "line\nline", Err: errors.New("cause"),
	})
	h := w.Result().Header
	if w.Code != 418 || h.Get("Cache-Control") != "no-store" || h.Get("X-Request-Id") != "1" || h.Get("Retry-After") != "" ||
		h.Get("Content-Type") != "application/problem+json" || h.Get("Content-Length") != fmt.Sprint(w.Body.Len()) {
		t.Errorf("%d %v", w.Code, h)
	}
	if got, want := w.Body.String(), `{"type":"about:blank","title":"\"a\" \u003cb\u003e","status":418,"detail":"line\nline"}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
