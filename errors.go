package kakutei

import (
	"errors"
	"fmt"
	"time"
)

// The kinds of failure. Every error of the engine and of the stores wraps one of
// them; the package documentation maps them to HTTP.
var (
	// ErrInvalid: an operation, policy or option that can never work.
	ErrInvalid = errors.New("kakutei: invalid")
	// ErrInFlight: another attempt of the operation is running.
	ErrInFlight = errors.New("kakutei: the operation is in flight")
	// ErrMismatch: the key was used before with another request.
	ErrMismatch = errors.New("kakutei: the key belongs to another request")
	// ErrUncertain: an earlier attempt ended without an answer and the operation
	// is held until somebody settles it.
	ErrUncertain = errors.New("kakutei: the outcome of the operation is uncertain")
	// ErrNotRetained: the operation is settled, but its answer was not kept.
	ErrNotRetained = errors.New("kakutei: the result was not retained")
	// ErrLeaseLost: the attempt no longer owns its operation. It is also the
	// cause of the handler's cancelled context.
	ErrLeaseLost = errors.New("kakutei: the lease was lost")
	// ErrUnavailable: the store did not answer, or not in time.
	ErrUnavailable = errors.New("kakutei: the store is unavailable")
	// ErrCorrupt: a record that this program cannot read: damaged, or written by
	// a newer version. The operation is not run.
	ErrCorrupt = errors.New("kakutei: the record cannot be read")
	// ErrConflict: a transaction that the database refused for the sake of
	// another one (serialization failure, deadlock); it was rolled back as a
	// whole and may be tried again.
	ErrConflict = errors.New("kakutei: the transaction was refused by the database")
	// ErrNested: an operation that would wait for itself: it was started inside
	// itself (a middleware that was put on twice), or inside the open transaction
	// of another one on a store that has one writer.
	ErrNested = errors.New("kakutei: the operation would wait for the one that it is started in")
	// ErrClosed: the engine is shutting down.
	ErrClosed = errors.New("kakutei: the engine is closed")
)

// Error is what [Engine.Run] and [Do] return: the kind, found by [errors.Is],
// and what is known about the operation. Its text holds no key.
type Error struct {
	// Kind is one of the Err… values of this package.
	Kind error
	// ID is the operation concerned.
	ID ID
	// RetryAfter is when asking again makes sense; zero if it is not known or
	// if asking again is no use.
	RetryAfter time.Duration
	// Cause is what happened underneath, for logs. It may hold the texts of a
	// driver and is not meant for clients.
	Cause error
}

// Error implements error.
func (e *Error) Error() string {
	s := e.Kind.Error()
	if e.ID.Scope != "" {
		s += fmt.Sprintf(" (scope %q)", e.ID.Scope)
	}
	if e.Cause != nil && e.Cause != e.Kind { //nolint:errorlint // identity on purpose: not to print the kind twice
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap lets errors.Is find both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// noEffectError marks an error of a function as one before any effect.
type noEffectError struct{ err error }

func (e noEffectError) Error() string { return e.err.Error() }
func (e noEffectError) Unwrap() error { return e.err }

// NoEffect wraps the error of a function given to [Do] that knows that it did
// nothing: the attempt fails and the operation may run again, under every
// recovery. NoEffect(nil) is nil.
func NoEffect(err error) error {
	if err == nil {
		return nil
	}
	return noEffectError{err}
}
