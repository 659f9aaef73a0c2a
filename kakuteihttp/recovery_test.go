package kakuteihttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// chargeOp is the operation of POST /charges with a body.
func chargeOp(key, body string) kakutei.Operation {
	req := kakutei.Request{Method: "POST", Path: "/charges", ContentType: "application/json", Body: []byte(body)}
	return kakutei.Operation{Scope: "acme", Key: key, Fingerprint: req.Fingerprint()}
}

// TestKilledAfterClaim is case 12: while the lease of a dead process lasts its
// key is in flight, with a time to ask again that is within the lease; then, and
// no later, the operation runs.
func TestKilledAfterClaim(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, opts: kakuteihttp.Options{MaxPreferWait: patience}, handler: func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(201)
			fmt.Fprint(w, "attempt ", kakutei.FromContext(r.Context()).Number())
		}}).start(t)
		s.store.dies(t, chargeOp("held", ""), 57*time.Second)
		for range 3 {
			r := s.post("held", "")
			wantProblem(t, r, 409, "in-flight")
			wantRetryAfter(t, r, 57)
		}
		wantProblem(t, s.post("held", "other"), 422, "key-reused")
		s.want(0, "held", kakutei.StatusProcessing)

		const lease = 300 * time.Millisecond
		start := time.Now()
		s.store.dies(t, chargeOp("k", ""), lease)
		wantAnswer(t, s.do(call{key: "k", header: http.Header{"Prefer": {"wait=60"}}}), 201, "attempt 2")
		if took := time.Since(start); took < lease {
			t.Errorf("taken over after %v of a lease of %v", took, lease)
		}
		wantReplay(t, s.post("k", ""), 201, "attempt 2")
		s.want(1, "k", kakutei.StatusSucceeded)
		if s.seen(kakutei.EventTakeover) != 1 {
			t.Errorf("%d takeovers", s.seen(kakutei.EventTakeover))
		}
	})
}

// TestOutlivesLease is case 13: the lease of a handler that runs for longer is
// renewed, and nobody gets in, in this process or in another one.
func TestOutlivesLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const lease, rounds = 10 * time.Second, 40
		s := &site{engine: kakutei.Options{Lease: lease}, handler: func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(rounds / 4 * lease)
			if r.Context().Err() != nil {
				t.Errorf("the handler is cancelled: %v", context.Cause(r.Context()))
			}
			w.WriteHeader(201)
		}}
		other := &site{engine: s.engine, handler: s.handler}
		s.store = newStore()
		other.store = s.store
		ask := func(h http.Handler) *reply {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, directRequest("k", ""))
			return read(w.Result())
		}
		h, h2 := s.protect(t), other.protect(t)
		defer s.stop()
		defer other.stop()
		first := make(chan *reply, 1)
		go func() { first <- ask(h) }()
		for i := range rounds - 1 {
			time.Sleep(lease / 4)
			for _, h := range []http.Handler{h, h2} {
				r := ask(h)
				wantProblem(t, r, 409, "in-flight")
				wantRetryAfter(t, r, max(1, int(s.record("k").Left.Seconds())))
			}
			s.want(1, "k", kakutei.StatusProcessing)
			if t.Failed() {
				t.Fatalf("after %d quarters of the lease", i+1)
			}
		}
		wantAnswer(t, <-first, 201, "")
		wantReplay(t, ask(h), 201, "")
		wantReplay(t, ask(h2), 201, "")
		s.want(1, "k", kakutei.StatusSucceeded)
		other.want(0, "k", kakutei.StatusSucceeded)
	})
}

// TestOvertaken is case 15: the client of an attempt that lost its lease gets
// what is recorded, or is told that another attempt is at work; never the
// loser's own answer.
func TestOvertaken(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		for _, done := range []bool{true, false} {
			a, b := newGate(), newGate()
			defer a.release()
			defer b.release()
			shared := newStore()
			shared.expireAtOnce()
			answer := func(name string, g *gate) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					g.pass(r)
					w.Header().Set("X-Process", name)
					w.WriteHeader(201)
					io.WriteString(w, "of "+name)
				}
			}
			first := (&site{http2: http2, store: shared, handler: answer("A", a)}).start(t)
			second := (&site{http2: http2, store: shared, handler: answer("B", b)}).start(t)
			ofA := first.later(call{key: "k"})
			request := receive(t, "A's handler", a.entered)
			ofB := second.later(call{key: "k"})
			receive(t, "B's handler", b.entered)
			shared.hook(func(s *store) { s.claim = nil })
			if done {
				b.release()
				wantAnswer(t, receive(t, "B's answer", ofB), 201, "of B")
			}
			a.release()
			r := receive(t, "A's answer", ofA)
			if done {
				wantReplay(t, r, 201, "of B")
				if r.header.Get("X-Process") != "B" {
					t.Errorf("header of the loser: %v", r.header)
				}
			} else {
				wantProblem(t, r, 409, "in-flight")
				if r.header.Get("X-Process") != "" {
					t.Errorf("header of the loser: %v", r.header)
				}
				b.release()
				wantAnswer(t, receive(t, "B's answer", ofB), 201, "of B")
			}
			if cause := context.Cause(request.Context()); !errors.Is(cause, kakutei.ErrLeaseLost) {
				t.Errorf("A's handler was cancelled with %v", cause)
			}
			wantReplay(t, first.post("k", ""), 201, "of B")
			wantReplay(t, second.post("k", ""), 201, "of B")
			first.want(1, "k", kakutei.StatusSucceeded)
			second.want(1, "k", kakutei.StatusSucceeded)
			if first.seen(kakutei.EventLeaseLost) != 1 {
				t.Errorf("%d events of a lost lease", first.seen(kakutei.EventLeaseLost))
			}
		}
	})
}

// TestHold is case 17: after a crash between the call of the provider and its
// record the operation is never run again by itself.
func TestHold(t *testing.T) {
	t.Parallel()
	var charged atomic.Int32 // P
	s := (&site{engine: kakutei.Options{SettleTimeout: time.Millisecond}, handler: func(http.ResponseWriter, *http.Request) {
		charged.Add(1)
		panic(http.ErrAbortHandler)
	}}).withRecovery(kakutei.Hold).start(t)
	s.store.settleFails(-1) // the process dies: it records nothing
	s.store.expireAtOnce()
	if r := s.post("k", ""); r.err == nil {
		t.Errorf("a crash was answered with %d", r.status)
	}
	next := (&site{store: s.store, handler: s.handler}).withRecovery(kakutei.Hold).start(t)
	for range 5 {
		r := next.post("k", "")
		wantProblem(t, r, 409, "uncertain")
		if r.header.Get("Retry-After") != "" {
			t.Errorf("an uncertain operation is to be sent again: %v", r.header)
		}
	}
	wantProblem(t, next.post("k", "other"), 422, "key-reused")
	next.want(0, "k", kakutei.StatusUncertain)
	if charged.Load() != 1 {
		t.Errorf("P = %d", charged.Load())
	}
}

// TestNoEffect is case 29: a handler that knows that it did nothing has the
// operation run again, also under Hold and with whatever status.
func TestNoEffect(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold} {
			s := &site{http2: http2}
			s.handler = func(w http.ResponseWriter, r *http.Request) {
				if s.runs.Load() <= 3 {
					kakutei.FromContext(r.Context()).NoEffect()
				}
				switch s.runs.Load() {
				case 1:
					w.WriteHeader(422)
				case 2:
					w.WriteHeader(502)
				case 3:
					panic(http.ErrAbortHandler)
				default:
					w.WriteHeader(201)
				}
			}
			s.withRecovery(recovery).start(t)
			wantAnswer(t, s.post("k", ""), 422, "")
			s.want(1, "k", kakutei.StatusFailed)
			wantProblem(t, s.post("k", "other"), 422, "key-reused")
			wantAnswer(t, s.post("k", ""), 502, "")
			s.want(2, "k", kakutei.StatusFailed)
			if r := s.post("k", ""); r.err == nil {
				t.Errorf("a panic was answered with %d", r.status)
			}
			s.want(3, "k", kakutei.StatusFailed)
			wantAnswer(t, s.post("k", ""), 201, "")
			wantReplay(t, s.post("k", ""), 201, "")
			s.want(4, "k", kakutei.StatusSucceeded)
		}
	})
}

// TestPanicReachesOuter is case 21: a panic goes on to middleware that catches
// it, which answers as it always does; nothing of the handler's answer is left.
func TestPanicReachesOuter(t *testing.T) {
	t.Parallel()
	s := &site{outer: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if v := recover(); v != nil {
					http.Error(w, fmt.Sprint("caught ", v), 500)
				}
			}()
			h.ServeHTTP(w, r)
		})
	}}
	s.handler = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Handler", "1")
		w.WriteHeader(201)
		io.WriteString(w, "created")
		panic("by the handler")
	}
	s.start(t)
	r := s.post("k", "")
	wantAnswer(t, r, 500, "caught by the handler\n")
	if r.header.Get("X-Handler") != "" {
		t.Errorf("header of the handler: %v", r.header)
	}
	s.want(1, "k", kakutei.StatusFailed)
}

// TestDeadline: a handler that overruns the route's deadline is cancelled.
func TestDeadline(t *testing.T) {
	t.Parallel()
	s := (&site{opts: kakuteihttp.Options{Deadline: 20 * time.Millisecond}, handler: func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		http.Error(w, context.Cause(r.Context()).Error(), http.StatusGatewayTimeout)
	}}).start(t)
	r := s.post("k", "")
	if r.status != 504 || !strings.Contains(r.body, "deadline") {
		t.Errorf("%d %s", r.status, r.body)
	}
	s.want(1, "k", kakutei.StatusFailed)
}

// TestRetryAfter is case 12: the time to ask again is never above what is left
// of the lease, in whole seconds and not under one, which is the least that
// keeps a client from asking without a pause.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	s := (&site{handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
	for left, want := range map[time.Duration]string{
		30 * time.Second: "30", 29999 * time.Millisecond: "29", 1999 * time.Millisecond: "1", time.Second: "1",
		400 * time.Millisecond: "1", time.Nanosecond: "1", 24 * time.Hour: "86400",
	} {
		s.store.hook(func(st *store) {
			st.claim = func(claims []kakutei.Claim, _ claimFunc) ([]kakutei.Decision, error) {
				return []kakutei.Decision{{Outcome: kakutei.InFlight, Attempt: 1, Left: left}}, nil
			}
		})
		r := s.post("k", "")
		wantProblem(t, r, 409, "in-flight")
		if got := r.header["Retry-After"]; len(got) != 1 || got[0] != want {
			t.Errorf("%v are left: Retry-After %q, want %q", left, got, want)
		}
	}
}
