package kakuteihttp_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/memstore"
)

// TestOptions: what can never work, or protects nothing, is refused at start,
// with a text that says what to do.
func TestOptions(t *testing.T) {
	t.Parallel()
	engine, err := kakutei.New(memstore.New(), kakutei.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close(t.Context()) }) //nolint:errcheck // nothing runs
	plain, err := kakutei.New(noTransactions{newStore()}, kakutei.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { plain.Close(t.Context()) }) //nolint:errcheck // nothing runs
	scope := kakuteihttp.SingleScope
	for _, c := range []struct {
		name   string
		engine *kakutei.Engine
		scope  kakuteihttp.ScopeFunc
		opts   kakuteihttp.Options
		want   string // part of the error; empty: none
	}{
		{"least", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold}, ""},
		{"transactional", engine, scope, kakuteihttp.Options{Recovery: kakutei.Transactional}, ""},
		{"no engine", nil, scope, kakuteihttp.Options{Recovery: kakutei.Hold}, "engine is nil"},
		{"case 37: no scope", engine, nil, kakuteihttp.Options{Recovery: kakutei.Hold}, "SingleScope"},
		{"no recovery", engine, scope, kakuteihttp.Options{}, "may it run again?"},
		{"unknown recovery", engine, scope, kakuteihttp.Options{Recovery: 9}, "recovery 9"},
		{"no transactions", plain, scope, kakuteihttp.Options{Recovery: kakutei.Transactional}, "no transactions"},
		{"GET", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Methods: []string{"POST", "GET"}}, "method GET"},
		{"HEAD", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Methods: []string{"HEAD"}}, "method HEAD"},
		{"OPTIONS", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Methods: []string{"OPTIONS"}}, "method OPTIONS"},
		{"no methods", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Methods: []string{}}, "no method"},
		{"small letters", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Methods: []string{"post"}}, `"post"`},
		{"PUT and DELETE", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Methods: []string{"PUT", "DELETE"}}, ""},
		{"request limit", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, MaxRequestBytes: -1}, "limit of -1 bytes"},
		{"response limit", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, MaxResponseBytes: -1}, "limit of -1 bytes"},
		{"lease too short", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Lease: time.Millisecond}, "a lease of 1ms"},
		{"deadline", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Deadline: -time.Second}, "a deadline of -1s"},
		{"no deadline", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Deadline: kakutei.NoDeadline}, ""},
		{"wait", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, Wait: -time.Second}, "a wait of -1s"},
		{"preferred wait", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, MaxPreferWait: -time.Second}, "NoPreferWait"},
		{"no preferred wait", engine, scope, kakuteihttp.Options{Recovery: kakutei.Hold, MaxPreferWait: kakuteihttp.NoPreferWait}, ""},
		{"unprotected transaction", engine, scope, kakuteihttp.Options{Recovery: kakutei.Transactional, FailOpen: true}, "FailOpen"},
	} {
		t.Run(c.name, func(t *testing.T) {
			protect, err := kakuteihttp.Middleware(c.engine, c.scope, c.opts)
			switch {
			case c.want == "" && (err != nil || protect == nil):
				t.Errorf("refused: %v", err)
			case c.want != "" && (!errors.Is(err, kakutei.ErrInvalid) || !strings.Contains(err.Error(), c.want) || protect != nil):
				t.Errorf("got %v, want an ErrInvalid with %q", err, c.want)
			}
		})
	}
}

// noTransactions is a store that is no Transactor.
type noTransactions struct{ kakutei.Store }

// TestMethods: what is not named passes untouched, with no look at its key
// (case 44: OPTIONS never claims).
func TestMethods(t *testing.T) {
	t.Parallel()
	s := (&site{opts: kakuteihttp.Options{Required: true}, handler: func(w http.ResponseWriter, r *http.Request) {
		if kakutei.FromContext(r.Context()) != nil {
			w.Header().Set("Protected", "1")
		}
	}}).start(t)
	for method, protected := range map[string]bool{
		"GET": false, "HEAD": false, "OPTIONS": false, "PUT": false, "DELETE": false, "POST": true, "PATCH": true,
	} {
		c := call{method: method, key: "k-" + method}
		if r := s.do(c); r.status != 200 || (r.header.Get("Protected") != "") != protected {
			t.Errorf("%s: %d, protected %q", method, r.status, r.header.Get("Protected"))
		}
		if r := s.do(c); r.replayed() != protected {
			t.Errorf("%s again: replayed %v", method, r.replayed())
		}
		c.key = `"malformed`
		if r := s.do(c); (r.status == 400) != protected {
			t.Errorf("%s with a malformed key: %d", method, r.status)
		}
	}
	if live, results := s.store.Len(); live != 0 || results != 2 {
		t.Errorf("%d live records and %d results, want those of POST and PATCH", live, results)
	}

	s = (&site{opts: kakuteihttp.Options{Methods: []string{"PUT"}}, handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
	for range 2 {
		s.do(call{method: "PUT", key: "k"})
		s.do(call{method: "POST", key: "k"})
	}
	s.want(3, "k", kakutei.StatusSucceeded)
}

// TestFinalityFunc: what is final can be said per route; the function gets the
// header as it is sent.
func TestFinalityFunc(t *testing.T) {
	t.Parallel()
	s := (&site{opts: kakuteihttp.Options{FinalityFunc: func(status int, h http.Header) kakutei.Finality {
		switch {
		case !strings.HasPrefix(h.Get("Content-Type"), "text/plain"):
			return kakutei.FinalityUnknown
		case status == 503:
			return kakutei.FinalityFinal
		case h.Get("Nothing-Done") != "":
			return kakutei.FinalityNoEffect
		}
		return kakuteihttp.DefaultFinality(status, h)
	}}, handler: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/final" {
			w.WriteHeader(503)
		} else {
			w.Header().Set("Nothing-Done", "1")
		}
		w.Write([]byte("text"))
	}}).withRecovery(kakutei.Hold).start(t)
	wantAnswer(t, s.do(call{key: "a", path: "/final"}), 503, "text")
	wantReplay(t, s.do(call{key: "a", path: "/final"}), 503, "text")
	s.want(1, "a", kakutei.StatusSucceeded)
	for range 2 {
		wantAnswer(t, s.do(call{key: "b"}), 200, "text")
	}
	s.want(3, "b", kakutei.StatusFailed)
}

// TestDefaultFinality: 408, 425, 429 and 5xx leave open whether anything was done.
func TestDefaultFinality(t *testing.T) {
	t.Parallel()
	for status := 200; status < 1000; status++ {
		want := kakutei.FinalityFinal
		if status >= 500 || status == 408 || status == 425 || status == 429 {
			want = kakutei.FinalityUnknown
		}
		if got := kakuteihttp.DefaultFinality(status, nil); got != want {
			t.Errorf("%d is %v, want %v", status, got, want)
		}
	}
}

// TestErrorFunc: a service can answer refusals in its own form, and sees the cause.
func TestErrorFunc(t *testing.T) {
	t.Parallel()
	s := (&site{opts: kakuteihttp.Options{Required: true, ErrorFunc: func(w http.ResponseWriter, r *http.Request, p kakuteihttp.Problem) {
		w.Header().Set("Problem", strings.TrimPrefix(p.Type, kakuteihttp.TypeBase))
		if p.Err != nil {
			w.Header().Set("Cause", p.Err.Error())
		}
		w.Header().Set("Path", r.URL.Path)
		w.WriteHeader(499)
	}}, handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
	r := s.post("", "")
	if r.status != 499 || r.header.Get("Problem") != "key-missing" || r.header.Get("Path") != "/charges" {
		t.Errorf("no key: %d %v", r.status, r.header)
	}
	if r = s.post(`"a`, ""); r.header.Get("Problem") != "key-malformed" || r.header.Get("Cause") == "" {
		t.Errorf("malformed: %v", r.header)
	}
	s.post("k", "one")
	if r = s.post("k", "two"); r.status != 499 || r.header.Get("Problem") != "key-reused" {
		t.Errorf("mismatch: %d %v", r.status, r.header)
	}
	s.want(1, "k", kakutei.StatusSucceeded)
}
