package kakutei_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

const lease = 10 * time.Second

var (
	rerun         = kakutei.Policy{Recovery: kakutei.Rerun}
	hold          = kakutei.Policy{Recovery: kakutei.Hold}
	transactional = kakutei.Policy{Recovery: kakutei.Transactional}
)

// bubble runs a test in time of its own: it takes no real time, and sleeping in
// it makes no test slow or flaky.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(time.Hour) }) // runs last: what ends by itself, like a pause between two looks, ends
		f(t)
	})
}

// operation returns an operation whose request is made of parts.
func operation(key string, parts ...string) kakutei.Operation {
	body := []byte(key)
	for _, p := range parts {
		body = append(body, p...)
	}
	return kakutei.Operation{Scope: "acme", Key: key, Fingerprint: kakutei.FingerprintOf(body)}
}

// testEngine is an engine and what was observed of it.
type testEngine struct {
	*kakutei.Engine
	t testing.TB

	mu     sync.Mutex
	events []kakutei.Event
}

// newEngine returns an engine on store that is closed when the test ends, and
// must hold nothing then.
func newEngine(t testing.TB, store kakutei.Store, opts kakutei.Options) *testEngine {
	t.Helper()
	e := &testEngine{t: t}
	opts.Node = "test"
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Lease == 0 {
		opts.Lease = lease
	}
	if opts.ObserveFunc == nil {
		opts.ObserveFunc = func(_ context.Context, ev kakutei.Event) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.events = append(e.events, ev)
		}
	}
	var err error
	if e.Engine, err = kakutei.New(store, opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		assert.NoError(t, e.Close(ctx))
		assert.Equal(t, e.Inside(), kakutei.Inside{}, "left in the engine at its end")
	})
	return e
}

// seen returns the events of the given kinds, or all.
func (e *testEngine) seen(kinds ...kakutei.EventKind) []kakutei.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []kakutei.Event
	for _, ev := range e.events {
		if len(kinds) == 0 || slices.Contains(kinds, ev.Kind) {
			out = append(out, ev)
		}
	}
	return out
}

// wantEvents checks the whole history, in order.
func (e *testEngine) wantEvents(want ...kakutei.EventKind) {
	e.t.Helper()
	var got []kakutei.EventKind
	for _, ev := range e.seen() {
		got = append(got, ev.Kind)
	}
	assert.True(e.t, slices.Equal(got, want), "events: got %v, want %v", got, want)
}

// call is one call of Run on its way.
type call struct {
	answer kakutei.Answer
	err    error
	done   chan struct{}
}

// start calls Run in a goroutine of its own.
func (e *testEngine) start(ctx context.Context, op kakutei.Operation, p kakutei.Policy, fn func(context.Context) kakutei.Ending) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.answer, c.err = e.Run(ctx, op, p, fn)
	}()
	return c
}

// result waits for the call.
func (c *call) result() (kakutei.Answer, error) {
	<-c.done
	return c.answer, c.err
}

// ended reports whether the call has returned.
func (c *call) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// handler counts its runs and can be held up.
type handler struct {
	runs    atomic.Int32
	body    string
	gate    chan struct{} // nil: does not wait
	started chan struct{} // gets a value at each run, if there is room
	ctx     atomic.Value  // of the latest run
}

// answering returns a handler that ends at once, with body as its final answer.
func answering(body string) *handler {
	return &handler{body: body, started: make(chan struct{}, 100)}
}

// gated returns a handler that ends when open is called. It does not look at
// its context.
func gated(body string) (h *handler, open func()) {
	h = answering(body)
	h.gate = make(chan struct{})
	return h, sync.OnceFunc(func() { close(h.gate) })
}

func (h *handler) run(ctx context.Context) kakutei.Ending {
	h.runs.Add(1)
	h.ctx.Store(ctx)
	select {
	case h.started <- struct{}{}:
	default:
	}
	if h.gate != nil {
		<-h.gate
	}
	return final(h.body)
}

// context returns the context of the latest run.
func (h *handler) context() context.Context { return h.ctx.Load().(context.Context) }

func final(body string) kakutei.Ending {
	return kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Code: 201, Body: []byte(body)}}
}

// never is a function that must not run.
func never(t testing.TB) func(context.Context) kakutei.Ending {
	return func(context.Context) kakutei.Ending {
		t.Error("the function ran, and must not")
		return kakutei.Ending{}
	}
}

// wantAnswer checks that fn's own ending stands.
func wantAnswer(t testing.TB, a kakutei.Answer, err error, body string) {
	t.Helper()
	if !assert.NoError(t, err) {
		return
	}
	assert.Equal(t, string(a.Result.Body), body, "body")
	assert.True(t, !a.Replayed, "the answer is marked as replayed")
	assert.True(t, !a.Unrecorded, "the answer is marked as unrecorded")
}

// wantReplay checks that the recorded answer was given.
func wantReplay(t testing.TB, a kakutei.Answer, err error, body string) {
	t.Helper()
	if !assert.NoError(t, err) {
		return
	}
	assert.Equal(t, string(a.Result.Body), body, "replayed body")
	assert.True(t, a.Replayed, "the answer is not marked as replayed")
}

// wantInFlight checks a refusal with a time to ask again that is above zero and
// at most limit.
func wantInFlight(t testing.TB, err error, limit time.Duration) {
	t.Helper()
	if !assert.ErrorIs(t, err, kakutei.ErrInFlight) {
		return
	}
	left := retryAfter(err)
	assert.True(t, left > 0 && left <= limit, "RetryAfter is %v; want above 0 and at most %v", left, limit)
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*kakutei.Error](err); ok {
		return e.RetryAfter
	}
	return -1
}

// abandon leaves an operation as a process does that died right after its claim.
func abandon(t testing.TB, s kakutei.Store, op kakutei.Operation, lease time.Duration) {
	t.Helper()
	ds, err := s.Claim(t.Context(), []kakutei.Claim{{Operation: op, Owner: "dead", Lease: lease, Recovery: kakutei.Rerun}})
	if assert.NoError(t, err) {
		assert.Equal(t, ds[0].Outcome, kakutei.Acquired, "the claim of the process that dies")
	}
}

// record reads what the store knows about op.
func record(t testing.TB, s kakutei.Store, op kakutei.Operation) kakutei.Record {
	t.Helper()
	looked, err := s.Look(context.Background(), []kakutei.ID{op.ID()})
	if !assert.NoError(t, err) {
		return kakutei.Record{}
	}
	assert.NoError(t, looked[0].Err)
	return looked[0].Record
}

func wantStatus(t testing.TB, s kakutei.Store, op kakutei.Operation, want kakutei.Status) {
	t.Helper()
	assert.Equal(t, record(t, s, op).Status, want, "recorded status")
}
