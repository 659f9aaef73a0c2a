package proxy

import (
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/net/http/httpguts"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// ScopeOptions is what the kinds of scope need beside their name.
type ScopeOptions struct {
	// JWTKey verifies tokens: an RSA, ECDSA or Ed25519 public key, or a []byte
	// that is the secret of an HMAC.
	JWTKey crypto.PublicKey
	// JWTUnverified takes the claims of a token on trust. Safe only where every
	// request has passed a gateway that verifies the same token: else anybody
	// can write himself a token with another's name in it.
	JWTUnverified bool
}

// ParseScope returns what tells the tenant of a request: "header:NAME" takes a
// header that a gateway in front has set (and that clients cannot), "jwt:CLAIM"
// a claim of the bearer token, "single" puts all requests into one scope.
func ParseScope(s string, opts ScopeOptions) (kakuteihttp.ScopeFunc, error) {
	kind, name, _ := strings.Cut(s, ":")
	switch {
	case s == "single":
		return kakuteihttp.SingleScope, nil
	case kind == "header" && name != "":
		// net/http keeps Host elsewhere.
		if name = http.CanonicalHeaderKey(name); !httpguts.ValidHeaderFieldName(name) || name == "Host" {
			return nil, fmt.Errorf("%w: scope %q names no header that a request can have", kakutei.ErrInvalid, s)
		}
		return headerScope(name), nil
	case kind == "jwt" && name != "":
		if opts.JWTKey == nil && !opts.JWTUnverified {
			return nil, fmt.Errorf("%w: scope %q needs the key that tokens are verified with; to take their claims on trust, because a gateway in front verifies them, say so", kakutei.ErrInvalid, s)
		}
		if opts.JWTKey != nil && opts.JWTUnverified {
			return nil, fmt.Errorf("%w: scope %q has a key that tokens are verified with, and takes their claims on trust: choose one", kakutei.ErrInvalid, s)
		}
		return jwtScope(name, opts)
	}
	return nil, fmt.Errorf("%w: scope %q is unknown; use header:NAME, jwt:CLAIM or single", kakutei.ErrInvalid, s)
}

func headerScope(name string) kakuteihttp.ScopeFunc {
	return func(r *http.Request) (string, error) {
		switch values := r.Header[name]; len(values) {
		case 0:
			return "", fmt.Errorf("header %s is missing", name)
		case 1:
			return values[0], nil
		default:
			return "", fmt.Errorf("header %s stands in the request %d times", name, len(values))
		}
	}
}

func jwtScope(claim string, opts ScopeOptions) (kakuteihttp.ScopeFunc, error) {
	var methods []string
	if opts.JWTKey != nil {
		var err error
		if methods, err = methodsOf(opts.JWTKey); err != nil {
			return nil, err
		}
	}
	parser := jwt.NewParser(jwt.WithValidMethods(methods), jwt.WithJSONNumber())
	return func(r *http.Request) (string, error) {
		lines := r.Header["Authorization"]
		if len(lines) != 1 { // of two, the upstream might take the other one
			return "", fmt.Errorf("%w: header Authorization stands in the request %d times", kakuteihttp.ErrUnauthenticated, len(lines))
		}
		scheme, token, _ := strings.Cut(lines[0], " ")
		if !strings.EqualFold(scheme, "Bearer") || token == "" {
			return "", fmt.Errorf("%w: no bearer token", kakuteihttp.ErrUnauthenticated)
		}
		claims := jwt.MapClaims{}
		var err error
		if opts.JWTUnverified {
			_, _, err = parser.ParseUnverified(token, claims)
		} else {
			_, err = parser.ParseWithClaims(token, claims, func(*jwt.Token) (any, error) { return opts.JWTKey, nil })
		}
		if err != nil {
			return "", fmt.Errorf("%w: %w", kakuteihttp.ErrUnauthenticated, err)
		}
		switch v := claims[claim].(type) {
		case string:
			return v, nil
		case json.Number:
			return v.String(), nil
		}
		return "", errors.New("the token has no claim " + claim)
	}, nil
}
