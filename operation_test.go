package kakutei_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// Case 36, the root package's part, and case 37: the scope is required.
func TestCase36OperationValidate(t *testing.T) {
	t.Parallel()
	fp := kakutei.FingerprintOf()
	for _, tc := range []struct {
		name string
		op   kakutei.Operation
		ok   bool
	}{
		{"usual", kakutei.Operation{Scope: "s", Key: "k", Fingerprint: fp}, true},
		{"longest key", kakutei.Operation{Scope: "s", Key: strings.Repeat("k", 255), Fingerprint: fp}, true},
		{"key too long", kakutei.Operation{Scope: "s", Key: strings.Repeat("k", 256), Fingerprint: fp}, false},
		{"no key", kakutei.Operation{Scope: "s", Fingerprint: fp}, false},
		{"printable key", kakutei.Operation{Scope: "s", Key: ` "~,;\`, Fingerprint: fp}, true},
		{"control in the key", kakutei.Operation{Scope: "s", Key: "a\nb", Fingerprint: fp}, false},
		{"DEL in the key", kakutei.Operation{Scope: "s", Key: "a\x7f", Fingerprint: fp}, false},
		{"key not ASCII", kakutei.Operation{Scope: "s", Key: "schlüssel", Fingerprint: fp}, false},
		{"no scope", kakutei.Operation{Key: "k", Fingerprint: fp}, false},
		{"scope of any script", kakutei.Operation{Scope: "確定 tenant", Key: "k", Fingerprint: fp}, true},
		{"longest scope", kakutei.Operation{Scope: strings.Repeat("s", 255), Key: "k", Fingerprint: fp}, true},
		{"scope too long in bytes", kakutei.Operation{Scope: strings.Repeat("確", 86), Key: "k", Fingerprint: fp}, false},
		{"scope not UTF-8", kakutei.Operation{Scope: "a\xff", Key: "k", Fingerprint: fp}, false},
		{"NUL in the scope", kakutei.Operation{Scope: "a\x00", Key: "k", Fingerprint: fp}, false},
		{"DEL in the scope", kakutei.Operation{Scope: "a\x7f", Key: "k", Fingerprint: fp}, false},
		{"no fingerprint", kakutei.Operation{Scope: "s", Key: "k"}, false},
	} {
		err := tc.op.Validate()
		if tc.ok != (err == nil) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err != nil {
			assert.ErrorIs(t, err, kakutei.ErrInvalid)
		}
	}
}

// Nothing reaches the store that can never work.
func TestRunRefusesBadOperations(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newFaultStore(t)
		e := newEngine(t, s, kakutei.Options{})
		for _, op := range []kakutei.Operation{{}, {Scope: "s", Key: "k"}, {Scope: "s", Key: "k\n", Fingerprint: kakutei.FingerprintOf()}} {
			_, err := e.Run(t.Context(), op, rerun, never(t))
			assert.ErrorIs(t, err, kakutei.ErrInvalid)
			known, ok := errors.AsType[*kakutei.Error](err)
			assert.True(t, ok && known.ID == op.ID() && known.Kind == kakutei.ErrInvalid, "error: %#v", err) //nolint:errorlint // the kind itself
		}
		assert.Equal(t, s.count(claim), 0, "claims")
	})
}

// Without it a text would be refused by some databases and not by others.
func FuzzValidateKey(f *testing.F) {
	for _, k := range []string{"", "k", " ", "~", "\x7f", "\x00", "ü", "\xff", strings.Repeat("k", 255), strings.Repeat("k", 256), `"k"`, "a\r\nb"} {
		f.Add(k)
	}
	f.Fuzz(func(t *testing.T, key string) {
		want := key != "" && len(key) <= kakutei.MaxKeyBytes && !strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' })
		err := kakutei.ValidateKey(key)
		assert.Equal(t, err == nil, want, "accepted")
		if err != nil {
			assert.ErrorIs(t, err, kakutei.ErrInvalid)
			if len(key) > 8 { // short ones may stand in the text by chance
				assert.True(t, !strings.Contains(err.Error(), key), "the error shows the key: %v", err)
			}
		}
	})
}
