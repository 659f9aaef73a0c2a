package kakutei

import (
	"fmt"
	"unicode/utf8"
)

const (
	// MaxKeyBytes is the longest key that is accepted, in bytes.
	MaxKeyBytes = 255
	// MaxScopeBytes is the longest scope that is accepted, in bytes.
	MaxScopeBytes = 255
)

// ID is the identity of an operation: a key within a scope. Both are compared
// byte for byte: "Ab" is not "aB", and "a" is not "a ".
type ID struct {
	// Scope is the tenant that the key belongs to. It must come from who the
	// caller is (a session, a verified credential), never from what the caller says.
	Scope string
	// Key is what the client calls the operation.
	Key string
}

// String returns the scope and the length of the key. The key itself stays out
// of logs: whoever knows it can ask for its result.
func (id ID) String() string {
	return fmt.Sprintf("%s/(key of %d bytes)", id.Scope, len(id.Key))
}

// Operation is one logical call that must take effect once: its identity, the
// fingerprint of the request, and what the audit trail says about its origin.
type Operation struct {
	// Scope is the tenant; 1 to [MaxScopeBytes] bytes of UTF-8 without control characters.
	Scope string
	// Key is the idempotency key; 1 to [MaxKeyBytes] bytes of printable ASCII.
	Key string
	// Fingerprint tells one request from another under the same key. Required.
	Fingerprint Fingerprint
	// FingerprintFunc computes the fingerprint of the same request by an older
	// version, so that a record written before an upgrade still matches. It may
	// be nil; then only records of the version of Fingerprint can match.
	FingerprintFunc func(version uint8) (Fingerprint, bool)

	// Method and Path describe the request in the audit trail. Optional.
	Method, Path string
	// Actor is who made the call within the scope. Optional.
	Actor string
	// TraceID links the record to a trace. Optional.
	TraceID string
}

// ID returns the identity of the operation.
func (op Operation) ID() ID { return ID{Scope: op.Scope, Key: op.Key} }

// Validate reports what makes the operation unusable, as an [ErrInvalid].
func (op Operation) Validate() error {
	if err := ValidateScope(op.Scope); err != nil {
		return err
	}
	if err := ValidateKey(op.Key); err != nil {
		return err
	}
	if op.Fingerprint.Version == 0 {
		return fmt.Errorf("%w: the fingerprint is missing: without it the same key with another request cannot be told apart; make one with FingerprintOf or Request.Fingerprint", ErrInvalid)
	}
	return nil
}

// ValidateScope reports what is wrong with a scope, as an [ErrInvalid].
func ValidateScope(scope string) error {
	switch {
	case scope == "":
		return fmt.Errorf("%w: the scope is empty: every key belongs to a tenant; a service without tenants uses one constant scope", ErrInvalid)
	case len(scope) > MaxScopeBytes:
		return fmt.Errorf("%w: the scope has %d bytes, at most %d are allowed", ErrInvalid, len(scope), MaxScopeBytes)
	case !utf8.ValidString(scope) || hasControl(scope):
		return fmt.Errorf("%w: the scope is not UTF-8 text without control characters", ErrInvalid)
	}
	return nil
}

// ValidateKey reports what is wrong with a key, as an [ErrInvalid].
func ValidateKey(key string) error {
	if key == "" {
		return fmt.Errorf("%w: the key is empty", ErrInvalid)
	}
	if len(key) > MaxKeyBytes {
		return fmt.Errorf("%w: the key has %d bytes, at most %d are allowed", ErrInvalid, len(key), MaxKeyBytes)
	}
	for i := 0; i < len(key); i++ {
		if key[i] < 0x20 || key[i] > 0x7e {
			return fmt.Errorf("%w: the key has byte 0x%02x at position %d; only printable ASCII is allowed", ErrInvalid, key[i], i)
		}
	}
	return nil
}

// matches reports whether the stored fingerprint is that of this operation's
// request, recomputed by the version that the record was written with.
func (op Operation) matches(stored Fingerprint) (bool, error) {
	if stored.Version == op.Fingerprint.Version {
		return stored == op.Fingerprint, nil
	}
	if op.FingerprintFunc != nil {
		if fp, ok := op.FingerprintFunc(stored.Version); ok {
			return stored == fp, nil
		}
	}
	return false, fmt.Errorf("%w: the fingerprint has version %d, which this program cannot compute", ErrCorrupt, stored.Version)
}

func hasControl(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < 0x20 || s[i] == 0x7f {
			return true
		}
	}
	return false
}
