package kakutei

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Attempt is one run of an operation, found in its handler's context by
// [FromContext]. Its methods may be called from many goroutines.
type Attempt struct {
	engine *Engine
	outer  *Attempt // that the caller runs in, or nil
	flight *flight
	op     Operation
	policy Policy
	ref    Ref
	held   *held

	// ctx is the handler's context, without its transaction.
	ctx    context.Context
	cancel context.CancelCauseFunc
	stop   context.CancelFunc

	noEffect atomic.Bool
	lost     sync.Once

	mu sync.Mutex
	tx Transaction
}

type attemptKey struct{}

// FromContext returns the attempt that ctx belongs to, or nil.
func FromContext(ctx context.Context) *Attempt {
	a, _ := ctx.Value(attemptKey{}).(*Attempt)
	return a
}

// ID returns the identity of the operation.
func (a *Attempt) ID() ID { return a.op.ID() }

// Number returns the attempt number: 1 for the first, growing with each claim
// that was acquired. It is the fencing token: a resource that remembers the
// highest number it saw can refuse a lower one.
func (a *Attempt) Number() int64 { return a.ref.Attempt }

// Ref returns what fences the attempt's writes, for use with a store.
func (a *Attempt) Ref() Ref { return a.ref }

// NoEffect tells the engine that this attempt certainly did nothing, whatever
// its answer says: the operation may run again, under every recovery.
func (a *Attempt) NoEffect() { a.noEffect.Store(true) }

// exclusive reports whether the attempt has a transaction open that keeps every
// other claim of its store waiting.
func (a *Attempt) exclusive() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tx != nil && a.tx.Exclusive()
}

// lose cancels the handler, and is observed once however it was noticed.
func (a *Attempt) lose(cause error) {
	a.lost.Do(func() {
		a.engine.observe(a.ctx, Event{Kind: EventLeaseLost, ID: a.ID(), Attempt: a.Number(), Err: cause})
		a.cancel(cause)
		// Whoever asks now is answered by the store, not by what still runs here.
		a.engine.flights.end(a.flight, nil)
	})
}

func (a *Attempt) setTx(tx Transaction) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tx = tx
}

// newAttempt starts the lease of a claim that was acquired.
func (e *Engine) newAttempt(ctx context.Context, f *flight, call *claimCall, d Decision, p Policy) *Attempt {
	a := &Attempt{
		engine: e, outer: FromContext(ctx), flight: f, op: call.Operation, policy: p,
		ref: Ref{ID: call.ID(), Owner: call.Owner, Attempt: d.Attempt},
	}
	if p.Detach {
		ctx = context.WithoutCancel(ctx)
	}
	a.ctx, a.cancel = context.WithCancelCause(context.WithValue(ctx, attemptKey{}, a))
	a.stop = func() {}
	var until time.Time
	if p.Deadline > 0 {
		until = time.Now().Add(p.Deadline)
		a.ctx, a.stop = context.WithDeadline(a.ctx, until)
	}
	a.held = e.leases.hold(a.ref, p.Lease, call.sent, until, a.lose)
	e.observe(ctx, Event{Kind: EventAcquired, ID: a.ID(), Attempt: d.Attempt})
	if d.Takeover {
		e.observe(ctx, Event{Kind: EventTakeover, ID: a.ID(), Attempt: d.Attempt})
	}
	return a
}

// finish ends the flight and gives back what the attempt holds in this process.
func (e *Engine) finish(f *flight, settled *Decision) {
	a := f.attempt
	e.leases.release(a.held)
	a.stop()
	a.cancel(nil)
	e.flights.end(f, settled)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, a)
}

// runAttempt runs fn under the flight's attempt, and settles it however fn ends.
func (e *Engine) runAttempt(ctx context.Context, f *flight, fn func(context.Context) Ending) (Answer, error) {
	a := f.attempt
	start := time.Now()
	e.mu.Lock()
	e.running[a] = struct{}{}
	e.mu.Unlock()
	if e.busy.isClosed() {
		if answer, err := e.settle(ctx, f, start, a.settlement(Ending{Finality: FinalityNoEffect})); err != nil || answer.Replayed {
			return answer, err
		}
		return Answer{}, &Error{Kind: ErrClosed, ID: a.ID()}
	}
	settling := false
	defer func() {
		if !settling { // fn, or the store's transaction, panicked or ended the goroutine
			//nolint:errcheck // the panic goes on; settle has observed how it went
			e.settle(ctx, f, start, a.settlement(Ending{}))
		}
	}()
	if a.policy.Recovery == Transactional {
		s, err := e.runTransaction(ctx, a, fn)
		settling = true
		return e.settleTransaction(ctx, f, start, s, err)
	}
	ending := fn(a.ctx)
	settling = true
	return e.settle(ctx, f, start, a.settlement(ending))
}

// settlement applies the recovery to an ending.
func (a *Attempt) settlement(ending Ending) Settlement {
	s := Settlement{Ref: a.ref, Status: StatusFailed, Result: Result{Code: ending.Result.Code}}
	switch {
	case ending.Finality == FinalityNoEffect || a.noEffect.Load():
	case ending.Finality == FinalityFinal:
		s.Status, s.Result = StatusSucceeded, ending.Result
		// The function may use its buffers again while the result is on its way.
		s.Result.Header, s.Result.Body = bytes.Clone(s.Result.Header), bytes.Clone(s.Result.Body)
	case a.policy.Recovery == Hold:
		s.Status = StatusUncertain
	}
	return s
}

// settle records how the attempt ended, trying again while the store is away.
func (e *Engine) settle(ctx context.Context, f *flight, start time.Time, s Settlement) (Answer, error) {
	ctx = context.WithoutCancel(ctx)
	f.attempt.held.settle(true)
	limited, stop := context.WithTimeout(ctx, e.opts.SettleTimeout)
	defer stop()
	err := e.settleUntil(limited, s)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		e.observe(ctx, Event{Kind: EventUnrecorded, ID: s.ID, Attempt: s.Attempt, Duration: time.Since(start), Err: err})
		e.opts.Logger.WarnContext(ctx, "kakutei: an attempt could not be settled; trying on in the background",
			"scope", s.Scope, "attempt", s.Attempt, "status", s.Status.String(), "error", err)
		e.afterwards(func() { e.settleLate(f, start, s) })
		return Answer{Result: s.Result, Attempt: s.Attempt, Unrecorded: true}, nil
	}
	return e.settled(ctx, f, start, s, err)
}

// settled ends an attempt that the store has settled (err is nil) or refused to.
func (e *Engine) settled(ctx context.Context, f *flight, start time.Time, s Settlement, err error) (Answer, error) {
	op, policy := f.op, f.attempt.policy
	ev := Event{ID: s.ID, Attempt: s.Attempt, Duration: time.Since(start)}
	if err != nil {
		f.attempt.lose(err)
		e.finish(f, nil)
		return e.fromRecord(ctx, op, policy)
	}
	switch s.Status {
	case StatusSucceeded:
		ev.Kind = EventSucceeded
		if e.replays != nil {
			e.replays.add(op, s.Attempt, s.Result)
		}
		e.finish(f, &Decision{Outcome: Replay, Attempt: s.Attempt, Result: s.Result})
	case StatusUncertain:
		ev.Kind = EventHeld
		e.finish(f, nil)
	default:
		ev.Kind = EventFailed
		e.finish(f, nil)
	}
	e.observe(ctx, ev)
	return Answer{Result: s.Result, Attempt: s.Attempt}, nil
}

// lateLimit ends the background tries: by then the lease has long run out or
// been taken over.
const lateLimit = 10 * time.Minute

// settleLate goes on with a settlement whose caller has been answered. The
// lease is renewed meanwhile, if the store lets us, so that the key is not run
// again while its answer is known.
func (e *Engine) settleLate(f *flight, start time.Time, s Settlement) {
	ctx, stop := context.WithTimeout(e.life, lateLimit)
	defer stop()
	err := e.settleUntil(ctx, s)
	if err != nil && !errors.Is(err, ErrLeaseLost) {
		e.finish(f, nil)
		e.opts.Logger.ErrorContext(ctx, "kakutei: an attempt was never settled; its recovery decides when the lease has run out",
			"scope", s.Scope, "attempt", s.Attempt, "status", s.Status.String(), "error", err)
		return
	}
	//nolint:errcheck // nobody waits for this answer any more
	e.settled(context.WithoutCancel(ctx), f, start, s, err)
}

// settleUntil tries until the store has settled or refused, or ctx ends. The
// store is always asked once.
func (e *Engine) settleUntil(ctx context.Context, s Settlement) error {
	for try := 0; ; try++ {
		err := e.settleOnce(ctx, s)
		if err == nil || errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrInvalid) || !sleep(ctx, backoff(try)) {
			return err
		}
	}
}

func (e *Engine) settleOnce(ctx context.Context, s Settlement) error {
	itemErr, err := e.settles.Do(context.WithoutCancel(ctx), s, nil)
	if err == nil {
		err = itemErr
	}
	return err
}

// fromRecord answers the caller of an attempt that lost its lease: with the
// recorded answer if there is one, never with the loser's own.
func (e *Engine) fromRecord(ctx context.Context, op Operation, p Policy) (Answer, error) {
	lost := &Error{Kind: ErrLeaseLost, ID: op.ID(), RetryAfter: time.Second}
	ctx, stop := context.WithTimeout(ctx, e.opts.StoreTimeout)
	defer stop()
	rec, err := e.look(ctx, op.ID())
	if err != nil {
		lost.Cause = err
		return Answer{}, lost
	}
	d, _ := Decide(rec, Claim{Operation: op, Recovery: p.Recovery})
	switch {
	case d.Outcome == Replay:
		return e.replay(ctx, op, d)
	case d.Outcome == InFlight:
		lost.RetryAfter = d.Left
	case d.Outcome != Acquired || d.Err != nil:
		return Answer{}, e.refuse(ctx, op, d, d.Err)
	}
	return Answer{}, lost
}

// runTransaction runs fn in a transaction that also settles the attempt, again
// while the database refuses it and time is left. No error means that the
// ending stands: committed with its settlement if it was final, rolled back if not.
func (e *Engine) runTransaction(ctx context.Context, a *Attempt, fn func(context.Context) Ending) (Settlement, error) {
	for try := 0; ; try++ {
		s, sent, err := e.runOnce(a, fn)
		if !errors.Is(err, ErrConflict) || sent || a.ctx.Err() != nil {
			return s, err
		}
		e.observe(ctx, Event{Kind: EventConflict, ID: a.ID(), Attempt: a.Number(), Err: err})
		if !sleep(a.ctx, backoff(try)) {
			return s, err
		}
		a.held.settle(false)
	}
}

// settleTransaction ends an attempt after its transaction.
func (e *Engine) settleTransaction(ctx context.Context, f *flight, start time.Time, s Settlement, err error) (Answer, error) {
	a := f.attempt
	switch {
	case err == nil && s.Status == StatusSucceeded: // by the commit
		return e.settled(ctx, f, start, s, nil)
	case err == nil:
		return e.settle(ctx, f, start, s)
	case errors.Is(err, ErrLeaseLost):
		return e.settled(ctx, f, start, s, err)
	}
	// Nothing of it was kept, or so it seems: the attempt fails, and asking again
	// is safe. If it was kept after all, the attempt cannot fail, and the record
	// has the answer.
	answer, settleErr := e.settle(ctx, f, start, a.settlement(Ending{Finality: FinalityNoEffect}))
	if settleErr != nil || answer.Replayed {
		return answer, settleErr
	}
	return Answer{}, e.refuse(context.WithoutCancel(ctx), a.op, Decision{}, err)
}

// runOnce is one run of fn in one transaction. It returns what its ending comes
// to, and whether a part of the answer has left already.
func (e *Engine) runOnce(a *Attempt, fn func(context.Context) Ending) (s Settlement, sent bool, err error) {
	tx, err := e.store.(Transactor).Begin(a.ctx, a.ref)
	if err != nil {
		return a.settlement(Ending{}), false, fmt.Errorf("begin: %w", err)
	}
	a.setTx(tx)
	defer func() {
		a.setTx(nil)
		//nolint:errcheck // after a commit there is nothing to roll back; else the connection is dropped with it
		tx.Rollback()
	}()
	ending := fn(tx.Context(a.ctx))
	s, sent = a.settlement(ending), ending.Sent
	if s.Status != StatusSucceeded {
		if tx.Conflicted() {
			return s, sent, fmt.Errorf("%w: in a statement of the handler", ErrConflict)
		}
		return s, sent, nil
	}
	a.held.settle(true)
	ctx, stop := context.WithTimeout(context.WithoutCancel(a.ctx), e.opts.StoreTimeout)
	defer stop()
	err = tx.Commit(ctx, s)
	if err == nil || errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrConflict) || errors.Is(err, ErrInvalid) {
		return s, sent, err
	}
	return s, sent, e.readBack(ctx, a, err)
}

// readBack settles an unclear commit by asking for what it would have left. If
// the record is still ours, the commit did not happen, and should it yet
// happen, the fence lets only one of the two through.
func (e *Engine) readBack(ctx context.Context, a *Attempt, commitErr error) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), e.opts.StoreTimeout)
	defer stop()
	for try := 0; ; try++ {
		rec, err := e.look(ctx, a.ID())
		if err == nil {
			ours := rec.Owner == a.ref.Owner && rec.Attempt == a.ref.Attempt
			switch {
			case ours && rec.Status == StatusSucceeded:
				return nil
			case ours && rec.Status == StatusProcessing:
				return fmt.Errorf("%w: %w", ErrConflict, commitErr)
			default:
				return ErrLeaseLost
			}
		}
		if !sleep(ctx, backoff(try)) {
			return fmt.Errorf("%w: commit: %w", ErrUnavailable, commitErr)
		}
	}
}
