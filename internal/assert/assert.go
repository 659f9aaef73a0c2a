// Package assert holds the few checks that the tests repeat. A failed check
// marks the test and lets it go on, so it may be used from any goroutine.
package assert

import (
	"errors"
	"testing"
)

// Equal checks that got is want.
func Equal[T comparable](t testing.TB, got, want T, what string) bool {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
	return got == want
}

// True checks a condition.
func True(t testing.TB, ok bool, format string, args ...any) bool {
	t.Helper()
	if !ok {
		t.Errorf(format, args...)
	}
	return ok
}

// NoError checks that err is nil.
func NoError(t testing.TB, err error) bool {
	t.Helper()
	if err != nil {
		t.Errorf("unexpected error: %v", err)
	}
	return err == nil
}

// ErrorIs checks that err is, or wraps, target.
func ErrorIs(t testing.TB, err, target error) bool {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got error %v, want one that is %q", err, target)
		return false
	}
	return true
}
