package kakutei

import (
	"context"
	"fmt"
	"time"
)

// Claim asks to own an operation.
type Claim struct {
	Operation
	// Owner is the random token of this claim. Sending the claim again with the
	// same token finds its own record.
	Owner string
	// Lease is how long the ownership lasts without renewal, by the database's clock.
	Lease time.Duration
	// Recovery decides between takeover and hold if an expired attempt is found.
	Recovery Recovery
	// Node names the process, for people.
	Node string
}

// Validate reports, as an [ErrInvalid], what makes the claim unusable. Every store
// asks it of each item.
func (c Claim) Validate() error {
	if err := c.Operation.Validate(); err != nil {
		return err
	}
	if c.Owner == "" {
		return fmt.Errorf("%w: the claim has no owner", ErrInvalid)
	}
	return validateLease(c.Lease)
}

// Validate reports, as an [ErrInvalid], a lease that no attempt can have.
func (r Renewal) Validate() error { return validateLease(r.Lease) }

func validateLease(lease time.Duration) error {
	if lease <= 0 || lease > MaxLease {
		return fmt.Errorf("%w: a lease of %v; it must be above zero and at most %v", ErrInvalid, lease, MaxLease)
	}
	return nil
}

// Millis returns a lease in whole milliseconds, rounded up, for databases that
// store times so.
func Millis(lease time.Duration) int64 {
	return int64((lease + time.Millisecond - 1) / time.Millisecond)
}

// Ref names one attempt: the operation, and who holds it under which number.
// A write that carries a Ref is fenced by it.
type Ref struct {
	ID
	Owner   string
	Attempt int64
}

// Renewal extends the lease of an attempt to Lease from now.
type Renewal struct {
	Ref
	Lease time.Duration
}

// Settlement ends an attempt.
type Settlement struct {
	Ref
	// Status is what the operation becomes: [StatusSucceeded], [StatusFailed] or
	// [StatusUncertain].
	Status Status
	// Result is recorded for SUCCEEDED; for FAILED its Code is.
	Result Result
}

// Store keeps the records. Its methods take batches, so that many operations
// cost one round trip and one commit; a batch of one must be as fast as it can be.
//
// The contract, which package storetest checks case by case:
//
//	C1  Answers come in the order of the items, one for each.
//	C2  Claim decides every item by [Decide] on the committed record, and only
//	    after the change that the decision asks for is itself committed.
//	C3  Of all claims of one ID at most one is acquired for an attempt number;
//	    scope and key are compared byte for byte.
//	C4  A settlement that was committed before Claim was called is always seen;
//	    one that is committed while the claim is under way is seen, or the claim
//	    is not acquired.
//	C5  A claim sent again with the same owner, while that owner holds the
//	    operation, is acquired with the same attempt number.
//	C6  Items are independent: one that fails, or two of the same ID, change
//	    nothing for the others. An item's own failure is in its answer; the
//	    error of the whole call means that nothing is known about any item.
//	C7  Leases are measured by the database's clock alone. The store is given
//	    durations, never points in time.
//	C8  An expired lease is taken over by comparing owner and attempt: one
//	    claim wins, and the attempt number grows by one.
//	C9  Under [Hold] an expired lease turns the record UNCERTAIN, durably.
//	C10 Renew and Settle act only for the owner and attempt that hold the
//	    operation in PROCESSING; else the item's answer is [ErrLeaseLost] and
//	    nothing changes. A lease that has expired but was not taken over is
//	    still held.
//	C11 Settling again, alike, by the same owner and attempt is a success
//	    without effect.
//	C12 Settle to SUCCEEDED removes the live record and records the result in
//	    one transaction: no moment shows both or neither.
//	C13 Results come back byte for byte.
//	C14 A record with a status, fingerprint or format that is not known answers
//	    [ErrCorrupt] and is left as it is.
//	C15 Look only reads; it takes no lock that a claim would wait for.
//	C16 Every method may be called from many goroutines, and again after a
//	    failure whose outcome is not known.
//	C17 Nothing in PROCESSING or UNCERTAIN is ever removed by retention.
//	C18 In a [Transaction] the business writes and the settlement become
//	    visible together, or not at all. Commit works only for the attempt that
//	    holds the operation: C11 does not extend to it, since a second run may
//	    not commit its writes on the strength of the first one's settlement.
type Store interface {
	// Claim tries to own operations.
	Claim(ctx context.Context, claims []Claim) ([]Decision, error)
	// Look reads records without claiming anything.
	Look(ctx context.Context, ids []ID) ([]Looked, error)
	// Renew extends leases. A nil answer means that the lease was extended.
	Renew(ctx context.Context, renewals []Renewal) ([]error, error)
	// Settle ends attempts. A nil answer means that it is durable.
	Settle(ctx context.Context, settlements []Settlement) ([]error, error)
}

// Looked is the answer of [Store.Look] for one ID.
type Looked struct {
	Record Record
	// Err wraps [ErrCorrupt] if the record cannot be read.
	Err error
}

// Transactor is a Store that can settle an attempt inside the transaction that
// holds the business writes; [Transactional] needs it.
type Transactor interface {
	Store
	// Begin makes ready for one run of an attempt. It may put off opening the
	// database transaction until the handler asks for it.
	Begin(ctx context.Context, ref Ref) (Transaction, error)
}

// Transaction is one run of a transactional attempt.
type Transaction interface {
	// Context returns the context that the handler finds its transaction in.
	Context(ctx context.Context) context.Context
	// Commit settles the attempt and commits, with everything that the handler
	// wrote. [ErrLeaseLost], [ErrConflict] and [ErrInvalid] (the handler has
	// spoilt its transaction, and would do so again) mean that all of it was
	// rolled back; after any other error the outcome is unknown.
	Commit(ctx context.Context, s Settlement) error
	// Rollback undoes what was not committed. It may be called at any time.
	Rollback() error
	// Exclusive reports whether the transaction is open and keeps every other
	// writer of the store waiting.
	Exclusive() bool
	// Conflicted reports whether the database refused a statement of the
	// handler in a way that running it again may cure.
	Conflicted() bool
}

// Retainer is a Store that can drop old results.
type Retainer interface {
	// Retain drops the results that are older than keep, whole days at a time.
	Retain(ctx context.Context, keep time.Duration) (Retained, error)
}

// Retained is what one pass of [Retainer.Retain] did.
type Retained struct {
	// Dropped names the days, as 2006-01-02 in UTC, whose results were dropped.
	Dropped []string
	// FailedRemoved counts the records of failed operations, none of them held
	// by anybody, that were older than keep.
	FailedRemoved int64
}
