package kakuteihttp

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/dunglas/httpsfv"

	"github.com/kakutei-go/kakutei"
)

// Header is the request header that carries the key.
const Header = "Idempotency-Key"

var (
	errKeyLines = errors.New("the header stands in the request more than once; one operation has one key")
	errKeyForm  = errors.New(`the value is neither a structured-field string ("…") nor a bare key`)
	errKeyBare  = errors.New(`the value is not a structured-field string; write it as "…"`)
)

// ParseKey reads the key of a request. ok is false if the request has none. The
// value is a structured-field string (draft-ietf-httpapi-idempotency-key-header,
// RFC 9651 section 3.3.3), whose parameters are ignored; or, unless strict, the
// bare key that most clients send. `"k"` and `k` are the same key.
func ParseKey(h http.Header, strict bool) (key string, ok bool, err error) {
	lines := h[Header]
	switch len(lines) {
	case 0:
		return "", false, nil
	case 1:
	default:
		return "", true, errKeyLines
	}
	value := lines[0]
	switch {
	case len(value) > 0 && value[0] == '"':
		item, err := httpsfv.UnmarshalItem(lines)
		if err != nil {
			return "", true, fmt.Errorf("%w: %w", errKeyForm, err)
		}
		if key, ok = item.Value.(string); !ok {
			return "", true, errKeyForm
		}
	case strict:
		return "", true, errKeyBare
	default:
		for i := 0; i < len(value); i++ {
			// A comma would be a list, a semicolon parameters, a quote a string
			// that somebody forgot to begin.
			if c := value[i]; c <= ' ' || c > '~' || c == ',' || c == ';' || c == '"' {
				return "", true, errKeyForm
			}
		}
		key = value
	}
	return key, true, kakutei.ValidateKey(key)
}
