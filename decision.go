package kakutei

import (
	"fmt"
	"time"
)

// Status is the state that a record is in.
type Status uint8

const (
	// StatusNone: there is no record.
	StatusNone Status = iota
	// StatusProcessing: an attempt owns the operation.
	StatusProcessing
	// StatusFailed: the last attempt ended without an effect that counts.
	StatusFailed
	// StatusUncertain: held until settled from outside.
	StatusUncertain
	// StatusSucceeded: settled; the result is recorded.
	StatusSucceeded
)

var statusNames = [...]string{"NONE", "PROCESSING", "FAILED", "UNCERTAIN", "SUCCEEDED"}

// String returns the name that the databases store.
func (s Status) String() string {
	if int(s) < len(statusNames) {
		return statusNames[s]
	}
	return fmt.Sprintf("STATUS(%d)", uint8(s))
}

// ParseStatus reads a stored name. An unknown one is an [ErrCorrupt]: it was
// written by a newer version, and to guess its meaning could run work twice.
func ParseStatus(name string) (Status, error) {
	for i := StatusProcessing; i <= StatusSucceeded; i++ {
		if statusNames[i] == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%w: status %q is unknown", ErrCorrupt, name)
}

// Record is what a store knows about an operation at one moment. The zero
// Record means that there is none.
type Record struct {
	Status      Status
	Fingerprint Fingerprint
	Attempt     int64
	// Owner is the token of the attempt that holds, or last held, the lease.
	Owner string
	// Left is what is left of the lease by the database's clock; not above
	// zero means expired. Only for [StatusProcessing].
	Left time.Duration
	// Result is set for [StatusSucceeded].
	Result Result
}

// Outcome is what a claim came to.
type Outcome uint8

const (
	// Acquired: the claim owns the operation; the handler runs.
	Acquired Outcome = iota + 1
	// Replay: the operation is settled; its result is the answer.
	Replay
	// Mismatch: the key belongs to another request.
	Mismatch
	// InFlight: another attempt holds a live lease.
	InFlight
	// Uncertain: held until settled from outside.
	Uncertain
)

// String returns the name used in events and metrics.
func (o Outcome) String() string {
	switch o {
	case Acquired:
		return "acquired"
	case Replay:
		return "replay"
	case Mismatch:
		return "mismatch"
	case InFlight:
		return "in_flight"
	case Uncertain:
		return "uncertain"
	}
	return fmt.Sprintf("outcome(%d)", uint8(o))
}

// Change is what a decision asks a store to write before the decision holds.
type Change uint8

const (
	// ChangeNone: the decision stands as it is.
	ChangeNone Change = iota
	// ChangeInsert: make the record, attempt 1. If one appeared meanwhile, start again.
	ChangeInsert
	// ChangeTake: make the claim the owner with the decision's attempt number,
	// if the record still has the owner and attempt it was read with; if not,
	// start again.
	ChangeTake
	// ChangeHold: set the record UNCERTAIN under the same condition.
	ChangeHold
)

// Decision is the outcome of one claim.
type Decision struct {
	Outcome Outcome
	// Attempt is the attempt number: the claim's own if it was acquired, else
	// that of the record.
	Attempt int64
	// Left is what is left of the lease, for [InFlight].
	Left time.Duration
	// Takeover tells that the claim was acquired from an attempt whose lease
	// had expired.
	Takeover bool
	// Result is the recorded answer, for [Replay].
	Result Result
	// Err is set, and everything else is zero, if this item could not be
	// decided. It wraps [ErrCorrupt], [ErrInvalid] or [ErrUnavailable].
	Err error
}

// Decide is the one decision table: what a claim comes to, given the record
// found. Every store uses it, and nothing else decides.
//
//	record      lease    fingerprint  outcome                      change
//	none                              Acquired, attempt 1          insert
//	any                  other        Mismatch
//	SUCCEEDED            same         Replay
//	UNCERTAIN            same         Uncertain
//	FAILED               same         Acquired, attempt + 1        take
//	PROCESSING  any      same         Acquired, if it is the claim's own owner (a claim sent again)
//	PROCESSING  live     same         InFlight
//	PROCESSING  expired  same         Hold: Uncertain              hold
//	                                  else: Acquired, attempt + 1  take
func Decide(rec Record, c Claim) (Decision, Change) {
	if rec.Status == StatusNone {
		return Decision{Outcome: Acquired, Attempt: 1}, ChangeInsert
	}
	same, err := c.matches(rec.Fingerprint)
	if err != nil {
		return Decision{Err: err}, ChangeNone
	}
	if !same {
		return Decision{Outcome: Mismatch, Attempt: rec.Attempt}, ChangeNone
	}
	switch rec.Status {
	case StatusSucceeded:
		return Decision{Outcome: Replay, Attempt: rec.Attempt, Result: rec.Result}, ChangeNone
	case StatusUncertain:
		return Decision{Outcome: Uncertain, Attempt: rec.Attempt}, ChangeNone
	case StatusFailed:
		return Decision{Outcome: Acquired, Attempt: rec.Attempt + 1}, ChangeTake
	case StatusProcessing:
		switch {
		case c.Owner != "" && rec.Owner == c.Owner:
			return Decision{Outcome: Acquired, Attempt: rec.Attempt}, ChangeNone
		case rec.Left > 0:
			return Decision{Outcome: InFlight, Attempt: rec.Attempt, Left: rec.Left}, ChangeNone
		case c.Recovery == Hold:
			return Decision{Outcome: Uncertain, Attempt: rec.Attempt}, ChangeHold
		case c.Recovery == Rerun || c.Recovery == Transactional:
			return Decision{Outcome: Acquired, Attempt: rec.Attempt + 1, Takeover: true}, ChangeTake
		}
		return Decision{Err: fmt.Errorf("%w: an expired attempt, and recovery %v does not say what to do", ErrInvalid, c.Recovery)}, ChangeNone
	}
	return Decision{Err: fmt.Errorf("%w: status %v", ErrCorrupt, rec.Status)}, ChangeNone
}
