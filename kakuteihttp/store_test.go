package kakuteihttp_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

var errDriver = errors.New(`pq: password authentication failed for user "kakutei" at 10.0.0.7`)

// TestStoreDown is case 42: without its records a server runs nothing.
func TestStoreDown(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, engine: kakutei.Options{StoreTimeout: 500 * time.Millisecond}, handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }}).start(t)
		s.store.storeDown()
		for range 2 {
			r := s.post("k", "")
			wantProblem(t, r, 503, "store-unavailable")
			wantRetryAfter(t, r, 1)
			if strings.Contains(r.body, "pq:") {
				t.Errorf("the answer holds the driver's text: %s", r.body)
			}
		}
		s.want(0, "", 0)
		if s.seen(kakutei.EventUnavailable) != 2 {
			t.Errorf("%d events", s.seen(kakutei.EventUnavailable))
		}
		if r := s.do(call{method: "GET"}); r.status != 201 {
			t.Errorf("a request without protection: %d", r.status)
		}
		s.runs.Store(0)
		s.store.whole()
		wantAnswer(t, s.post("k", ""), 201, "")
		wantReplay(t, s.post("k", ""), 201, "")
		s.want(1, "k", kakutei.StatusSucceeded)
	})
}

// TestFailOpen is case 42: only a route that says so runs without protection,
// the handler gets the whole request, and somebody is told.
func TestFailOpen(t *testing.T) {
	t.Parallel()
	var told atomic.Int32
	s := &site{engine: kakutei.Options{StoreTimeout: 500 * time.Millisecond}, opts: kakuteihttp.Options{
		FailOpen: true,
		ObserveFailOpenFunc: func(r *http.Request, cause error) {
			if told.Add(1); !errors.Is(cause, kakutei.ErrUnavailable) || !errors.Is(cause, errDriver) || r.Header.Get(kakuteihttp.Header) != "k" {
				t.Errorf("told of %v", cause)
			}
		},
	}, handler: func(w http.ResponseWriter, r *http.Request) {
		if kakutei.FromContext(r.Context()) != nil {
			w.Header().Set("Protected", "1")
		}
		w.WriteHeader(201)
		io.Copy(w, r.Body)
	}}
	s.start(t)
	s.store.storeDown()
	for i := range int32(2) {
		r := s.post("k", "body")
		wantAnswer(t, r, 201, "body")
		if r.header.Get("Protected") != "" || told.Load() != i+1 {
			t.Errorf("protected %q, told %d times", r.header.Get("Protected"), told.Load())
		}
	}
	s.want(2, "k", kakutei.StatusNone)
	// Not for other refusals.
	s.store.whole()
	wantAnswer(t, s.post("k", "body"), 201, "body")
	wantProblem(t, s.post("k", "other"), 422, "key-reused")
	s.want(3, "k", kakutei.StatusSucceeded)
	if told.Load() != 2 {
		t.Errorf("told %d times", told.Load())
	}
}

// TestCompletionRetried is case 27: a completion that fails twice is tried again
// before the client is answered.
func TestCompletionRetried(t *testing.T) {
	t.Parallel()
	s := (&site{handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }}).start(t)
	failed := s.store.settleFails(2)
	first := s.post("k", "")
	wantAnswer(t, first, 201, "")
	if first.header.Get(kakuteihttp.UnrecordedHeader) != "" || failed.Load() != 2 {
		t.Errorf("unrecorded %q after %d failures", first.header.Get(kakuteihttp.UnrecordedHeader), failed.Load())
	}
	wantReplay(t, s.post("k", ""), 201, "")
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestCompletionLost is case 27, and G7: when the store is gone for longer, the
// client gets its answer, marked; the key stays held, and is replayed once the
// store is back.
func TestCompletionLost(t *testing.T) {
	t.Parallel()
	for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold} {
		s := (&site{engine: kakutei.Options{SettleTimeout: 20 * time.Millisecond}, opts: kakuteihttp.Options{MaxPreferWait: patience}, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			io.WriteString(w, "paid")
		}}).withRecovery(recovery).start(t)
		failed := s.store.settleFails(-1)
		first := s.post("k", "")
		wantAnswer(t, first, 201, "paid")
		if first.header.Get(kakuteihttp.UnrecordedHeader) != "true" || failed.Load() == 0 || s.seen(kakutei.EventUnrecorded) != 1 {
			t.Errorf("header %v after %d failures, %d events", first.header, failed.Load(), s.seen(kakutei.EventUnrecorded))
		}
		wantProblem(t, s.post("k", ""), 409, "in-flight")
		s.store.whole()
		again := s.do(call{key: "k", header: http.Header{"Prefer": {"wait=60"}}})
		wantReplay(t, again, 201, "paid")
		if again.header.Get(kakuteihttp.UnrecordedHeader) != "" {
			t.Errorf("the mark is in the record: %v", again.header)
		}
		s.want(1, "k", kakutei.StatusSucceeded)
	}
}

// TestCompletionLostForGood is case 27: if the process ends before the store is
// back, the recovery of the route decides.
func TestCompletionLostForGood(t *testing.T) {
	t.Parallel()
	for recovery, want := range map[kakutei.Recovery]string{kakutei.Rerun: "", kakutei.Hold: "uncertain"} {
		handler := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }
		s := (&site{engine: kakutei.Options{SettleTimeout: time.Millisecond}, handler: handler}).withRecovery(recovery).start(t)
		s.store.expireAtOnce()
		s.store.settleFails(-1)
		wantAnswer(t, s.post("k", ""), 201, "")
		s.want(1, "k", kakutei.StatusProcessing)

		next := (&site{store: s.store, handler: handler}).withRecovery(recovery).start(t) // the next process
		s.store.hook(func(st *store) { st.settle = nil; st.claim = nil })
		r := next.post("k", "")
		if want == "" {
			// The first process goes on trying: whichever settles first, the other is refused.
			if r.err != nil || r.status != 201 {
				t.Errorf("rerun: %d %s %v", r.status, r.body, r.err)
			}
			continue
		}
		if r.problem() != want && !r.replayed() {
			t.Errorf("hold: %d %s", r.status, r.body)
		}
		if next.runs.Load() != 0 {
			t.Errorf("hold: the handler ran again")
		}
	}
}

// TestReplayFromStore: what is recorded is replayed from the store, too, when
// nothing is remembered.
func TestReplayFromStore(t *testing.T) {
	t.Parallel()
	s := (&site{engine: kakutei.Options{ReplayMemoryBytes: kakutei.NoReplayMemory}, handler: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/1")
		w.WriteHeader(201)
		io.WriteString(w, "created")
	}}).start(t)
	wantAnswer(t, s.post("k", ""), 201, "created")
	for range 3 {
		r := s.post("k", "")
		wantReplay(t, r, 201, "created")
		if r.header.Get("Location") != "/1" {
			t.Errorf("header %v", r.header)
		}
	}
	s.want(1, "k", kakutei.StatusSucceeded)
}
