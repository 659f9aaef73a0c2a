package kakutei

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kakutei-go/kakutei/internal/coalesce"
)

// Engine runs operations once. It is made by [New], used by many goroutines, and
// closed at the end of the process.
type Engine struct {
	store   Store
	opts    Options
	flights flights
	leases  *leases
	waiters *waiters
	replays *replays // nil with NoReplayMemory
	claims  *coalesce.Group[*claimCall, Decision]
	settles *coalesce.Group[Settlement, error]

	// busy counts calls, and what outlives them. closing ends when Close begins,
	// life, for the background loops, when it is done.
	busy         *busy
	closing      context.Context
	beginClosing context.CancelFunc
	life         context.Context
	die          context.CancelFunc
	loops        sync.WaitGroup

	mu      sync.Mutex
	running map[*Attempt]struct{}
}

// claimCall is a claim on its way; sent is when it last went to the store.
type claimCall struct {
	Claim
	sent time.Time
}

// New returns an engine on store. It starts the background work: renewing
// leases and, if the store is a [Retainer], dropping old results.
func New(store Store, opts Options) (*Engine, error) {
	if store == nil {
		return nil, fmt.Errorf("%w: the store is nil", ErrInvalid)
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	e := &Engine{store: store, opts: opts, busy: newBusy(), running: make(map[*Attempt]struct{})}
	e.closing, e.beginClosing = context.WithCancel(context.Background())
	e.life, e.die = context.WithCancel(context.Background())
	e.leases = newLeases(store.Renew, opts.StoreTimeout)
	e.waiters = &waiters{look: func(ids []ID) ([]Looked, error) {
		ctx, cancel := context.WithTimeout(e.life, opts.StoreTimeout)
		defer cancel()
		return store.Look(ctx, ids)
	}}
	if opts.ReplayMemoryBytes > 0 {
		e.replays = newReplays(opts.ReplayMemoryBytes)
	}
	e.claims = coalesce.New(opts.MaxBatch, e.sendClaims)
	e.settles = coalesce.New(opts.MaxBatch, func(s []Settlement) ([]error, error) {
		ctx, cancel := context.WithTimeout(context.Background(), opts.StoreTimeout)
		defer cancel()
		return store.Settle(ctx, s)
	})
	e.loop(func() { e.leases.loop(e.life) })
	if r, ok := store.(Retainer); ok && opts.Retention > 0 {
		e.loop(func() { e.retain(r) })
	}
	return e, nil
}

// loop runs f in the background until the engine closes.
func (e *Engine) loop(f func()) {
	e.loops.Add(1)
	go func() {
		defer e.loops.Done()
		f()
	}()
}

// afterwards runs f in the background. Close waits for it.
func (e *Engine) afterwards(f func()) {
	e.busy.hold()
	go func() {
		defer e.busy.leave()
		f()
	}()
}

func (e *Engine) sendClaims(calls []*claimCall) ([]Decision, error) {
	ctx, cancel := context.WithTimeout(context.Background(), e.opts.StoreTimeout)
	defer cancel()
	claims := make([]Claim, len(calls))
	now := time.Now()
	for i, c := range calls {
		c.sent = now
		claims[i] = c.Claim
	}
	return e.store.Claim(ctx, claims)
}

// Close refuses new operations and waits for the running ones. When ctx ends
// first, their contexts are cancelled with cause [ErrClosed] and they get two
// more seconds to end; what still runs then keeps its lease until it expires,
// and an error says how many those are. The store is left open.
func (e *Engine) Close(ctx context.Context) error {
	e.busy.close()
	e.beginClosing()
	quiet := make(chan struct{})
	go func() {
		e.busy.wait()
		// A claim whose caller has left may be on its way, and be handed back yet.
		e.claims.Wait()
		e.busy.wait()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-ctx.Done():
		e.mu.Lock()
		for a := range e.running {
			a.cancel(ErrClosed)
		}
		e.mu.Unlock()
		select {
		case <-quiet:
		case <-time.After(closeGrace):
		}
	}
	e.die()
	e.loops.Wait()
	e.leases.stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.running); n > 0 {
		return fmt.Errorf("%d operations were still running when the engine closed; their leases run out by themselves", n)
	}
	return nil
}

// closeGrace is how long handlers have to end after Close has cancelled them.
const closeGrace = 2 * time.Second

// Run runs fn once for op, or finds out why it need not or must not run.
//
// If fn ran in this call and its ending stands, Run returns an [Answer] that is
// not Replayed. If the operation is settled already, the answer is Replayed. Else
// the error is an [*Error] of kind [ErrInFlight], [ErrMismatch], [ErrUncertain],
// [ErrNotRetained], [ErrLeaseLost] (fn ran, but another attempt took over and
// has no answer yet), [ErrUnavailable], [ErrCorrupt], [ErrNested], [ErrInvalid]
// or [ErrClosed]. With [ErrLeaseLost] fn ran; under [Transactional] it may have
// run with [ErrUnavailable] and [ErrInvalid], too, and nothing it did was kept.
// With all others it did not run.
//
// fn is given a context that carries the [Attempt]. Under [Transactional] it may
// be called several times, one after the other, when the database refuses the
// transaction. A panic of fn passes through, after the attempt has ended as
// [FinalityUnknown]; so does runtime.Goexit. If ctx ends while Run claims or
// waits, Run returns its cause and fn does not run.
func (e *Engine) Run(ctx context.Context, op Operation, p Policy, fn func(ctx context.Context) Ending) (Answer, error) {
	if err := e.check(ctx, op, &p); err != nil {
		return Answer{}, err
	}
	if !e.busy.enter() {
		return Answer{}, &Error{Kind: ErrClosed, ID: op.ID()}
	}
	defer e.busy.leave()
	wait, stop := context.WithTimeout(ctx, p.Wait)
	defer stop()
	if p.Wait > 0 { // who waits when the engine closes is answered at once
		defer context.AfterFunc(e.closing, stop)()
	}
	for {
		f, d, err := e.obtain(ctx, op, p)
		if err != nil {
			return Answer{}, e.refuse(ctx, op, Decision{}, err)
		}
		switch {
		case d.Outcome == Acquired:
			return e.runAttempt(ctx, f, fn)
		case d.Outcome == Replay:
			return e.replay(ctx, op, d)
		case d.Outcome == InFlight && p.Wait > 0 && wait.Err() == nil:
			if settled := e.await(wait, op.ID(), f, d); settled != nil {
				return e.replay(ctx, op, *settled)
			}
			if err := context.Cause(ctx); err != nil {
				return Answer{}, err
			}
			if e.closing.Err() != nil {
				return Answer{}, &Error{Kind: ErrClosed, ID: op.ID()}
			}
		default:
			return Answer{}, e.refuse(ctx, op, d, nil)
		}
	}
}

// check refuses what can never work, before anything is asked of the store.
func (e *Engine) check(ctx context.Context, op Operation, p *Policy) error {
	fail := func(kind, cause error) error { return &Error{Kind: kind, ID: op.ID(), Cause: cause} }
	if err := op.Validate(); err != nil {
		return fail(ErrInvalid, err)
	}
	if err := e.CheckPolicy(*p); err != nil {
		return fail(ErrInvalid, err)
	}
	def(&p.Lease, e.opts.Lease)
	def(&p.Deadline, e.opts.Deadline)
	for outer := FromContext(ctx); outer != nil; outer = outer.outer {
		if outer.engine.store == e.store && (outer.exclusive() || outer.ID() == op.ID()) {
			return fail(ErrNested, nil)
		}
	}
	return nil
}

// CheckPolicy reports, as an [ErrInvalid], a policy that this engine cannot
// work by, so that a route with a wrong one fails at start.
func (e *Engine) CheckPolicy(p Policy) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if _, ok := e.store.(Transactor); p.Recovery == Transactional && !ok {
		return fmt.Errorf("%w: the recovery is transactional, but the store %T has no transactions", ErrInvalid, e.store)
	}
	return nil
}

// obtain returns the decision for op: from memory, from a caller that asks
// already, or from the store. f is the flight it comes from, nil for memory.
func (e *Engine) obtain(ctx context.Context, op Operation, p Policy) (*flight, Decision, error) {
	for {
		if e.replays != nil {
			if rec, ok := e.replays.find(op.ID()); ok {
				if d, _ := Decide(rec, Claim{Operation: op}); d.Err == nil {
					return nil, d, nil
				}
			}
		}
		f, leader := e.flights.join(op)
		if leader {
			d, err := e.lead(ctx, f, op, p)
			return f, d, err
		}
		select {
		case <-f.decided:
		case <-ctx.Done():
			return nil, Decision{}, context.Cause(ctx)
		}
		if d, err, again := f.share(op); !again {
			return f, d, err
		}
	}
}

// lead asks the store for all who joined the flight.
func (e *Engine) lead(ctx context.Context, f *flight, op Operation, p Policy) (Decision, error) {
	call := &claimCall{Claim: Claim{Operation: op, Owner: newOwner(), Lease: p.Lease, Recovery: p.Recovery, Node: e.opts.Node}}
	d, err := e.claim(ctx, call)
	if err == nil && d.Outcome == Acquired {
		f.attempt = e.newAttempt(ctx, f, call, d, p)
	}
	e.flights.decide(f, d, err, err != nil && ctx.Err() != nil)
	if err == nil && d.Outcome == Replay && e.replays != nil {
		e.replays.add(op, d.Attempt, d.Result)
	}
	return d, err
}

// claim asks the store, again and again within the store's time if it does not
// answer: a claim sent again finds its own record. What may have been acquired
// for a caller that is gone, or was told otherwise, is handed back.
func (e *Engine) claim(ctx context.Context, call *claimCall) (Decision, error) {
	deadline := time.Now().Add(e.opts.StoreTimeout)
	unclear := false // a sending had no answer
	for try := 0; ; try++ {
		d, err := e.claims.Do(ctx, call, func(d Decision, err error) { e.handBack(call, d, err != nil) })
		if err == nil {
			err = d.Err
		}
		if err == nil && d.Outcome == Acquired && unclear {
			// An earlier sending may have acquired it, so how much is left of the
			// lease is not known: begin with a whole one.
			err = e.renewNow(call, d)
			if errors.Is(err, ErrLeaseLost) { // taken over meanwhile: ask anew
				call.Owner = newOwner()
			}
		}
		switch {
		case err == nil:
			return d, nil
		case errors.Is(err, ErrCorrupt), errors.Is(err, ErrInvalid):
			return Decision{}, err
		case ctx.Err() != nil:
			if unclear || !errors.Is(err, context.Cause(ctx)) {
				e.handBack(call, Decision{}, true)
			}
			return Decision{}, context.Cause(ctx)
		}
		unclear = true
		pause := backoff(try)
		if time.Now().Add(pause).After(deadline) || !sleep(ctx, pause) {
			e.handBack(call, Decision{}, true)
			if ctx.Err() != nil {
				return Decision{}, context.Cause(ctx)
			}
			return Decision{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
	}
}

// renewNow gives an attempt a whole lease before it starts.
func (e *Engine) renewNow(call *claimCall, d Decision) error {
	ctx, cancel := context.WithTimeout(context.Background(), e.opts.StoreTimeout)
	defer cancel()
	call.sent = time.Now()
	ref := Ref{ID: call.ID(), Owner: call.Owner, Attempt: d.Attempt}
	errs, err := e.store.Renew(ctx, []Renewal{{Ref: ref, Lease: call.Lease}})
	if err == nil {
		err = errs[0]
	}
	return err
}

// handBack fails an attempt that was, or may have been, acquired and did not
// start, so that the key is free at once. If the store does not answer, the
// lease runs out.
func (e *Engine) handBack(call *claimCall, d Decision, unclear bool) {
	if !unclear && (d.Err != nil || d.Outcome != Acquired) {
		return
	}
	e.afterwards(func() { // whoever calls must not wait for another batch
		ctx, cancel := context.WithTimeout(context.Background(), e.opts.StoreTimeout)
		defer cancel()
		attempt := d.Attempt
		if unclear {
			rec, err := e.look(ctx, call.ID())
			if err != nil || rec.Owner != call.Owner {
				return
			}
			attempt = rec.Attempt
		}
		ref := Ref{ID: call.ID(), Owner: call.Owner, Attempt: attempt}
		//nolint:errcheck // best effort: the lease runs out by itself
		e.settles.Do(ctx, Settlement{Ref: ref, Status: StatusFailed}, nil)
	})
}

// look reads one record.
func (e *Engine) look(ctx context.Context, id ID) (Record, error) {
	looked, err := e.store.Look(ctx, []ID{id})
	if err != nil {
		return Record{}, err
	}
	return looked[0].Record, looked[0].Err
}

// await waits until the attempt in flight may have ended, or ctx has. It returns
// the answer if the attempt ran in this process and was recorded.
func (e *Engine) await(ctx context.Context, id ID, f *flight, d Decision) *Decision {
	if f == nil || f.attempt == nil {
		e.waiters.until(ctx, id, d.Attempt)
		return nil
	}
	select {
	case <-f.done:
		return f.settled
	case <-ctx.Done():
		return nil
	}
}

// replay answers from the record.
func (e *Engine) replay(ctx context.Context, op Operation, d Decision) (Answer, error) {
	e.observe(ctx, Event{Kind: EventReplay, ID: op.ID(), Attempt: d.Attempt})
	if d.Result.Omitted != "" {
		return Answer{}, &Error{Kind: ErrNotRetained, ID: op.ID(), Cause: errors.New(d.Result.Omitted)}
	}
	return Answer{Replayed: true, Result: d.Result, Attempt: d.Attempt}, nil
}

// Unreadable reports that a recorded result cannot be read by who must replay
// it, and returns the error to answer with.
func (e *Engine) Unreadable(ctx context.Context, id ID, cause error) error {
	e.observe(ctx, Event{Kind: EventCorrupt, ID: id, Err: cause})
	return &Error{Kind: ErrCorrupt, ID: id, Cause: cause}
}

// refuse turns a decision against running, or a failure to decide, into an error.
func (e *Engine) refuse(ctx context.Context, op Operation, d Decision, err error) error {
	out := &Error{ID: op.ID(), Cause: err}
	ev := Event{ID: op.ID(), Attempt: d.Attempt, Err: err}
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrCorrupt):
		out.Kind, ev.Kind = ErrCorrupt, EventCorrupt
	case errors.Is(err, ErrInvalid):
		out.Kind, ev.Kind = ErrInvalid, EventUnavailable
	case err != nil:
		out.Kind, ev.Kind, out.RetryAfter = ErrUnavailable, EventUnavailable, time.Second
	case d.Outcome == Mismatch:
		out.Kind, ev.Kind = ErrMismatch, EventMismatch
	case d.Outcome == Uncertain:
		out.Kind, ev.Kind = ErrUncertain, EventUncertain
	default:
		out.Kind, ev.Kind, out.RetryAfter = ErrInFlight, EventInFlight, d.Left
	}
	e.observe(ctx, ev)
	return out
}

// newOwner returns a token that no other claim has.
func newOwner() string { return rand.Text() }
