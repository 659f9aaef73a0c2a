package kakutei

import (
	"sync"
	"time"
)

// flights settles duplicates inside the process: of all callers with one ID, one
// (the leader) asks the store, and the others share what it learns.
type flights struct {
	mu   sync.Mutex
	byID map[ID]*flight
}

// flight is one claim and, if it is acquired, the attempt that follows.
type flight struct {
	op Operation

	// decided is closed when decision and err are set.
	decided  chan struct{}
	decision Decision
	err      error
	// abandoned tells that the leader left before the store answered, so that
	// err says nothing about the operation.
	abandoned bool

	// done is closed when there is nothing to wait for under this flight any more.
	done  chan struct{}
	ended bool
	// settled holds the answer, if the attempt was recorded as succeeded.
	settled *Decision

	// attempt is what runs under the flight; nil unless the leader acquired it.
	attempt *Attempt
}

// join returns the flight of op's ID, and whether the caller is its leader.
func (fs *flights) join(op Operation) (f *flight, leader bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f, ok := fs.byID[op.ID()]; ok {
		return f, false
	}
	if fs.byID == nil {
		fs.byID = make(map[ID]*flight)
	}
	f = &flight{op: op, decided: make(chan struct{}), done: make(chan struct{})}
	fs.byID[op.ID()] = f
	return f, true
}

// decide publishes what the leader learned. A flight that acquired nothing is over.
func (fs *flights) decide(f *flight, d Decision, err error, abandoned bool) {
	f.decision, f.err, f.abandoned = d, err, abandoned
	close(f.decided)
	if err != nil || d.Outcome != Acquired {
		fs.end(f, nil)
	}
}

// end takes the flight out and wakes who waits for it. It may be called again:
// an attempt that lost its lease ends its flight when that is noticed, so that
// later callers ask the store, and its handler returns when it likes.
func (fs *flights) end(f *flight, settled *Decision) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.ended {
		return
	}
	f.ended, f.settled = true, settled
	delete(fs.byID, f.op.ID())
	close(f.done)
}

// share returns what a decided flight means for another caller with the same ID;
// again tells that it must ask for itself.
func (f *flight) share(op Operation) (d Decision, err error, again bool) { //nolint:revive // the flag qualifies the pair before it
	if f.abandoned {
		return Decision{}, nil, true
	}
	if f.attempt != nil {
		select {
		case <-f.done: // over meanwhile: the store knows how
			return Decision{}, nil, true
		default:
		}
	}
	same, err := op.matches(f.op.Fingerprint)
	if err != nil { // of two versions, the newer can compute both
		same, err = f.op.matches(op.Fingerprint)
	}
	switch {
	case err != nil:
		return Decision{}, err, false
	case !same && (f.err != nil || f.decision.Outcome == Mismatch):
		//nolint:nilerr // the error is the leader's; the record may be op's
		return Decision{}, nil, true
	case !same:
		return Decision{Outcome: Mismatch, Attempt: f.decision.Attempt}, nil, false
	case f.err == nil && f.decision.Outcome == Acquired: // by the leader, so in flight for everybody else
		return Decision{Outcome: InFlight, Attempt: f.decision.Attempt, Left: f.attempt.held.left(time.Now())}, nil, false
	}
	return f.decision, f.err, false
}
