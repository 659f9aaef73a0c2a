package kakuteihttp_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// watched is outer middleware that shows when the server notices that a client
// has left, and when it is done with the request.
func watched(left, done chan struct{}) func(http.Handler) http.Handler {
	return func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stop := context.AfterFunc(r.Context(), func() { left <- struct{}{} })
			defer func() { stop(); done <- struct{}{} }()
			h.ServeHTTP(w, r)
		})
	}
}

// TestClientLeaves is case 20: the handler goes on when its client has left, and
// the retry gets its answer.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	second := strings.Repeat("second", 50_000) // more than is buffered anywhere on the way
	both(t, func(t *testing.T, http2 bool) {
		for _, flushed := range []bool{false, true} {
			left, done := make(chan struct{}, 10), make(chan struct{}, 10)
			g := newGate()
			defer g.release()
			s := &site{http2: http2, outer: watched(left, done)}
			s.handler = func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "first ")
				if flushed {
					w.(http.Flusher).Flush()
				}
				g.pass(r)
				if err := r.Context().Err(); err != nil {
					t.Errorf("the handler's context ended: %v", err)
				}
				if n, err := io.WriteString(w, second); n != len(second) || err != nil {
					t.Errorf("the handler cannot write: %d, %v", n, err)
				}
				if flushed {
					w.(http.Flusher).Flush()
				}
			}
			s.start(t)
			ctx, hangUp := context.WithCancel(context.Background())
			gone := make(chan error, 1)
			go func() { gone <- s.send(s.request(ctx, call{key: "k"})).err }()
			receive(t, "the handler", g.entered)
			hangUp()
			if err := receive(t, "the client", gone); !errors.Is(err, context.Canceled) {
				t.Fatalf("the client did not hang up: %v", err)
			}
			receive(t, "that the server notices", left)
			s.want(1, "k", kakutei.StatusProcessing)
			wantProblem(t, s.post("k", ""), 409, "in-flight")
			receive(t, "the duplicate's end", done)
			g.release()
			receive(t, "the handler's end", done)
			s.want(1, "k", kakutei.StatusSucceeded)
			wantReplay(t, s.post("k", ""), 200, "first "+second)
			s.want(1, "k", kakutei.StatusSucceeded)
		}
	})
}

// TestShutdown is case 20: what runs when the server shuts down is finished and
// recorded, and the next process replays it.
func TestShutdown(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		g := newGate()
		defer g.release()
		handler := func(w http.ResponseWriter, r *http.Request) {
			g.pass(r)
			w.WriteHeader(201)
			io.WriteString(w, "created")
		}
		s := (&site{http2: http2, handler: handler}).start(t)
		first := s.later(call{key: "k"})
		receive(t, "the handler", g.entered)
		stopped := make(chan error, 2)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			stopped <- s.srv.Config.Shutdown(ctx)
			stopped <- s.Engine.Close(ctx)
		}()
		until(t, "that the server refuses connections", func() bool {
			conn, err := net.Dial("tcp", s.srv.Listener.Addr().String())
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
		g.release()
		wantAnswer(t, receive(t, "the answer", first), 201, "created")
		for range 2 {
			if err := receive(t, "the shutdown", stopped); err != nil {
				t.Error(err)
			}
		}
		s.want(1, "k", kakutei.StatusSucceeded)
		next := (&site{http2: http2, store: s.store, handler: handler}).start(t)
		wantReplay(t, next.post("k", ""), 201, "created")
		next.want(0, "k", kakutei.StatusSucceeded)
	})
}

// TestShutdownInHaste is case 20: when the time for it is over, handlers are
// cancelled, and what they answer then decides, as it always does. New requests
// are refused.
func TestShutdownInHaste(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{}, 1)
	s := (&site{handler: func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-r.Context().Done()
		if cause := context.Cause(r.Context()); !errors.Is(cause, kakutei.ErrClosed) {
			t.Errorf("cancelled with %v", cause)
		}
		w.WriteHeader(503)
	}}).start(t)
	first := s.later(call{key: "k"})
	receive(t, "the handler", entered)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Engine.Close(ctx); err != nil {
		t.Error(err)
	}
	wantAnswer(t, receive(t, "the answer", first), 503, "")
	r := s.post("k", "")
	wantProblem(t, r, 503, "shutting-down")
	wantRetryAfter(t, r, 1)
	s.want(1, "k", kakutei.StatusFailed)
}

// TestClientSendsAgain is case 43: Go's client sends a request that has a key
// again by itself when the connection that it used before breaks. It gets the
// recorded answer, and the handler runs once.
func TestClientSendsAgain(t *testing.T) {
	t.Parallel()
	var requests, cut atomic.Int32
	s := &site{}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(201)
		io.Copy(w, r.Body)
	}
	s.outer = func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			if r.Header.Get(kakuteihttp.Header) == "" || cut.Load() > 0 {
				h.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(httptest.NewRecorder(), r) // runs and is recorded; its answer is lost
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			cut.Add(1)
			conn.Close()
		})
	}
	s.start(t)
	s.client.Transport.(*http.Transport).DisableKeepAlives = false
	if r := s.do(call{method: "GET"}); r.err != nil { // the connection is used now
		t.Fatal(r.err)
	}
	s.runs.Store(0)
	requests.Store(0)
	r := s.post("k", "body")
	wantReplay(t, r, 201, "body")
	if cut.Load() != 1 || requests.Load() != 2 {
		t.Fatalf("the fault did not fire: %d connections cut, %d requests", cut.Load(), requests.Load())
	}
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestClientLeavesBeforeTheClaim: whoever has left before anything runs leaves
// nothing running behind.
func TestClientLeavesBeforeTheClaim(t *testing.T) {
	t.Parallel()
	left, done := make(chan struct{}, 10), make(chan struct{}, 10)
	claiming, answer := make(chan struct{}, 10), make(chan struct{})
	s := (&site{outer: watched(left, done), handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }}).start(t)
	s.store.hook(func(st *store) {
		st.claim = func(claims []kakutei.Claim, next claimFunc) ([]kakutei.Decision, error) {
			claiming <- struct{}{}
			<-answer
			return next(claims)
		}
	})
	conn := s.dial()
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	receive(t, "the claim", claiming)
	conn.Close()
	receive(t, "that the server notices", left)
	receive(t, "the end of the request", done)
	s.store.whole()
	close(answer)
	s.want(0, "", 0)
	var r *reply
	until(t, "that the key is free", func() bool { r = s.post("k", ""); return r.status != 409 })
	wantAnswer(t, r, 201, "")
	s.want(1, "k", kakutei.StatusSucceeded)
}

// TestPreferWait: a duplicate waits as long as it asks to, within the route's
// bounds, and gets the answer of the running attempt.
func TestPreferWait(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		for _, c := range []struct {
			name   string
			opts   kakuteihttp.Options
			prefer []string
			waits  bool
		}{
			{"no wish", kakuteihttp.Options{}, nil, false},
			{"route's default", kakuteihttp.Options{Wait: patience}, nil, true},
			{"wish", kakuteihttp.Options{MaxPreferWait: patience}, []string{"wait=60"}, true},
			{"wish among others", kakuteihttp.Options{MaxPreferWait: patience}, []string{"respond-async, handling=strict", `foo; bar=1, WAIT = "60"; x`}, true},
			{"wish of none", kakuteihttp.Options{Wait: patience}, []string{"wait=0"}, false},
			{"first wish counts", kakuteihttp.Options{}, []string{"wait=0, wait=30"}, false},
			{"no number", kakuteihttp.Options{}, []string{"wait=soon, wait=-5, wait="}, false},
			{"without a value", kakuteihttp.Options{}, []string{"wait"}, false},
			{"bounded", kakuteihttp.Options{MaxPreferWait: 30 * time.Millisecond}, []string{"wait=2147483647"}, false},
			{"ignored", kakuteihttp.Options{MaxPreferWait: kakuteihttp.NoPreferWait}, []string{"wait=30"}, false},
			{"ignored, route's default", kakuteihttp.Options{MaxPreferWait: kakuteihttp.NoPreferWait, Wait: patience}, []string{"wait=0"}, true},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				g := newGate()
				defer g.release()
				shared := newStore()
				handler := func(w http.ResponseWriter, r *http.Request) {
					g.pass(r)
					w.WriteHeader(201)
					io.WriteString(w, "created")
				}
				s := (&site{http2: http2, opts: c.opts, store: shared, handler: handler}).start(t)
				other := (&site{http2: http2, opts: c.opts, store: shared, handler: handler}).start(t) // another process
				first := s.later(call{key: "k"})
				receive(t, "the handler", g.entered)
				dup := call{key: "k", header: http.Header{"Prefer": c.prefer}}
				if !c.waits {
					for _, x := range []*site{s, other} {
						r := x.do(dup)
						wantProblem(t, r, 409, "in-flight")
						wantRetryAfter(t, r, 30)
					}
					g.release()
				} else {
					told := make(chan struct{}, 10)
					shared.hook(func(st *store) {
						st.claim = func(claims []kakutei.Claim, next claimFunc) ([]kakutei.Decision, error) {
							d, err := next(claims)
							if d[0].Outcome == kakutei.InFlight {
								told <- struct{}{}
							}
							return d, err
						}
					})
					waiting := []<-chan *reply{s.later(dup), s.later(dup), other.later(dup)}
					receive(t, "that the other process is told to wait", told)
					wantProblem(t, s.do(call{key: "k", body: "other", header: dup.header}), 422, "key-reused") // at once
					g.release()
					for _, w := range waiting {
						wantReplay(t, receive(t, "the waiter's answer", w), 201, "created")
					}
				}
				wantAnswer(t, receive(t, "the answer", first), 201, "created")
				s.want(1, "k", kakutei.StatusSucceeded)
				other.want(0, "k", kakutei.StatusSucceeded)
			})
		}
	})
}

// TestWaiterLeaves: who hangs up while it waits is let go at once, and disturbs
// nobody.
func TestWaiterLeaves(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		left, done := make(chan struct{}, 10), make(chan struct{}, 10)
		g := newGate()
		defer g.release()
		shared := newStore()
		handler := func(w http.ResponseWriter, r *http.Request) {
			g.pass(r)
			w.WriteHeader(201)
		}
		arrived := make(chan struct{}, 10)
		opts := kakuteihttp.Options{ActorFunc: func(*http.Request) string { // called right before the claim
			arrived <- struct{}{}
			return ""
		}}
		s := (&site{http2: http2, opts: opts, store: shared, outer: watched(left, done), handler: handler}).start(t)
		other := (&site{http2: http2, opts: opts, store: shared, outer: watched(left, done), handler: handler}).start(t)
		first := s.later(call{key: "k"})
		receive(t, "the handler", g.entered)
		receive(t, "the request", arrived)
		for _, x := range []*site{s, other} {
			ctx, hangUp := context.WithCancel(context.Background())
			gone := make(chan error, 1)
			go func() {
				gone <- x.send(x.request(ctx, call{key: "k", header: http.Header{"Prefer": {"wait=30"}}})).err
			}()
			receive(t, "the waiter", arrived)
			hangUp()
			if err := receive(t, "the waiter's end", gone); !errors.Is(err, context.Canceled) {
				t.Errorf("the waiter got an answer: %v", err)
			}
			receive(t, "that the server notices", left)
			receive(t, "the end of the waiter's request", done)
		}
		s.want(1, "k", kakutei.StatusProcessing)
		g.release()
		wantAnswer(t, receive(t, "the answer", first), 201, "")
		s.want(1, "k", kakutei.StatusSucceeded)
		other.want(0, "k", kakutei.StatusSucceeded)
	})
}
