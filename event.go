package kakutei

import (
	"context"
	"time"
)

// EventKind says what happened to an operation.
type EventKind uint8

// The kinds of events. A counter for each is what an operator needs to watch.
const (
	// EventAcquired: an attempt starts; Takeover attempts count as both.
	EventAcquired EventKind = iota + 1
	// EventTakeover: the attempt took over from one whose lease had expired.
	EventTakeover
	// EventReplay: a recorded answer was given.
	EventReplay
	// EventMismatch: refused, the key belongs to another request.
	EventMismatch
	// EventInFlight: refused, another attempt is running.
	EventInFlight
	// EventUncertain: refused, the operation is held.
	EventUncertain
	// EventSucceeded: an attempt ended with a final answer, durably.
	EventSucceeded
	// EventFailed: an attempt ended and the operation may run again.
	EventFailed
	// EventHeld: an attempt ended without an answer and the operation is held.
	EventHeld
	// EventLeaseLost: an attempt lost its lease while it ran or when it ended.
	EventLeaseLost
	// EventUnrecorded: an attempt ended and the store could not take its ending.
	EventUnrecorded
	// EventUnavailable: refused, the store did not answer before the run.
	EventUnavailable
	// EventCorrupt: refused, the record cannot be read.
	EventCorrupt
	// EventConflict: a transaction was refused by the database and is run again.
	EventConflict
)

var eventNames = [...]string{
	"unknown", "acquired", "takeover", "replay", "mismatch", "in_flight", "uncertain", "succeeded",
	"failed", "held", "lease_lost", "unrecorded", "unavailable", "corrupt", "conflict",
}

// String returns the name used in metrics and logs.
func (k EventKind) String() string {
	if int(k) < len(eventNames) {
		return eventNames[k]
	}
	return eventNames[0]
}

// EventKinds returns all kinds, for exporters that announce every counter at zero.
func EventKinds() []EventKind {
	kinds := make([]EventKind, 0, len(eventNames)-1)
	for k := EventAcquired; int(k) < len(eventNames); k++ {
		kinds = append(kinds, k)
	}
	return kinds
}

// Event is one thing that happened, given to [Options.ObserveFunc].
type Event struct {
	Kind EventKind
	// ID is the operation. Do not export the key: it is as good as a password
	// for the result, and as a label it has no bound.
	ID ID
	// Attempt is the attempt number, where one is known.
	Attempt int64
	// Duration is how long the function ran, for the kinds that end an attempt.
	Duration time.Duration
	// Err is the cause, for the kinds that are failures.
	Err error
}

func (e *Engine) observe(ctx context.Context, ev Event) {
	if e.opts.ObserveFunc != nil {
		e.opts.ObserveFunc(ctx, ev)
	}
}
