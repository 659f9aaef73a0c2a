package kakutei

import (
	"fmt"
	"time"
)

// Recovery says what becomes of an attempt that ended without a final answer:
// its process died, its handler panicked, failed or ran out of time, or the
// store was gone when the result was to be recorded. Whether the effect happened
// is then unknown. Only the author of a route knows what is right, so there is
// no default: the zero Recovery is refused.
type Recovery uint8

const (
	// Transactional is for effects that live in the store's own database and are
	// written in the attempt's transaction. What did not end was rolled back, so
	// running again is always right: exactly once.
	Transactional Recovery = iota + 1
	// Rerun takes the operation over and runs it again. Right where the handler
	// passes its key on to a provider that recognises it, or where the effect is
	// harmless twice. Everywhere else it can do the effect twice.
	Rerun
	// Hold never runs again by itself: the operation becomes UNCERTAIN and stays
	// so until somebody who found out what happened settles it. At most once.
	Hold
)

// String returns the name that configuration files and metrics use.
func (r Recovery) String() string {
	switch r {
	case Transactional:
		return "transactional"
	case Rerun:
		return "rerun"
	case Hold:
		return "hold"
	}
	return fmt.Sprintf("recovery(%d)", uint8(r))
}

// ParseRecovery reads the name of a recovery.
func ParseRecovery(s string) (Recovery, error) {
	for _, r := range []Recovery{Transactional, Rerun, Hold} {
		if s == r.String() {
			return r, nil
		}
	}
	return 0, fmt.Errorf("%w: recovery %q is unknown; choose rerun, hold or transactional", ErrInvalid, s)
}

// Policy says how the operations of one route are run.
type Policy struct {
	// Recovery is required; see [Recovery].
	Recovery Recovery
	// Lease is how long an attempt owns its operation between two renewals: the
	// longest time that a crash blocks the key. Zero means [Options.Lease].
	Lease time.Duration
	// Deadline is how long a handler may run. After it the context is cancelled
	// and the lease is no longer renewed. Zero means [Options.Deadline];
	// [NoDeadline] lets a handler that hangs keep its key for ever.
	Deadline time.Duration
	// Wait is how long a duplicate waits for the answer of the running attempt
	// before it is told [ErrInFlight]. Zero means not at all.
	Wait time.Duration
	// Detach lets the function go on when its caller's context is cancelled, as
	// it must where the caller is a client that may hang up. Claiming and waiting
	// still end with the caller.
	Detach bool
}

const (
	// NoDeadline lets a handler run for ever.
	NoDeadline time.Duration = -1

	// MinLease and MaxLease bound a lease. Under a tenth of a second, renewals
	// would be late on any busy machine; over a day, a crash blocks its key for
	// longer than anybody waits.
	MinLease = 100 * time.Millisecond
	MaxLease = 24 * time.Hour
)

// Validate reports, as an [ErrInvalid], what makes the policy unusable.
func (p Policy) Validate() error {
	switch p.Recovery {
	case Transactional, Rerun, Hold:
	case 0:
		return fmt.Errorf("%w: the recovery is not chosen. If an attempt dies in the middle, may it run again? "+
			"Transactional: yes, its effect is in this database and was rolled back. "+
			"Rerun: yes, the effect is recognised by its key or harmless twice. "+
			"Hold: no, a person or a reconciler must look first", ErrInvalid)
	default:
		return fmt.Errorf("%w: recovery %d is unknown", ErrInvalid, p.Recovery)
	}
	if p.Lease != 0 && (p.Lease < MinLease || p.Lease > MaxLease) {
		return fmt.Errorf("%w: a lease of %v; it must be between %v and %v", ErrInvalid, p.Lease, MinLease, MaxLease)
	}
	if p.Deadline < 0 && p.Deadline != NoDeadline {
		return fmt.Errorf("%w: a deadline of %v; use NoDeadline for none", ErrInvalid, p.Deadline)
	}
	if p.Wait < 0 {
		return fmt.Errorf("%w: a wait of %v; zero means not to wait", ErrInvalid, p.Wait)
	}
	return nil
}
