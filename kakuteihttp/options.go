package kakuteihttp

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

// ScopeFunc returns the tenant of a request: who the caller is, from a session
// or a verified credential, never from what the caller merely says. An empty
// scope is refused. A caller who is not known is [ErrUnauthenticated]; other
// errors are answered with 400 and their text stays in the log.
type ScopeFunc func(r *http.Request) (string, error)

// ErrUnauthenticated lets a [ScopeFunc] have its request answered with 401.
var ErrUnauthenticated = errors.New("kakuteihttp: the caller is not known")

// SingleScope is the [ScopeFunc] of a service that has only one tenant.
func SingleScope(*http.Request) (string, error) { return "single", nil }

const (
	// DefaultMaxBytes is the default limit of request and response bodies.
	DefaultMaxBytes int64 = 4 << 20
	// DefaultMaxPreferWait is how long a client may ask to wait, by default.
	DefaultMaxPreferWait = 30 * time.Second
	// NoPreferWait ignores the client's wish to wait.
	NoPreferWait time.Duration = -1
)

// Options configures [Middleware] for one route. Recovery is required; the zero
// value of all else is the default.
type Options struct {
	// Recovery says what becomes of an attempt that ended without a final
	// answer; see [kakutei.Recovery]. Required.
	Recovery kakutei.Recovery
	// Required refuses requests without a key (400). If it is false they are
	// handled as if the middleware were not there.
	Required bool
	// Strict refuses bare keys: only the structured-field string is taken.
	Strict bool
	// Methods are those that a key is looked for on; all others pass untouched.
	// Default POST and PATCH.
	Methods []string

	// Lease and Deadline override the engine's; see [kakutei.Policy].
	Lease, Deadline time.Duration
	// Wait is how long a duplicate waits for the answer of the running attempt
	// before it gets 409. Default 0, not at all. A client may ask for another
	// time with "Prefer: wait=N", up to MaxPreferWait.
	Wait time.Duration
	// MaxPreferWait bounds what a client may ask for. Default
	// [DefaultMaxPreferWait]; [NoPreferWait] ignores the wish.
	MaxPreferWait time.Duration

	// MaxRequestBytes bounds the request body, which is read as a whole before
	// anything runs. Above it: 413. Default [DefaultMaxBytes].
	MaxRequestBytes int64
	// MaxResponseBytes bounds what is kept for replay. A larger answer reaches
	// the first client whole; a retry gets 409 and the handler does not run
	// again. Default [DefaultMaxBytes].
	MaxResponseBytes int64

	// FinalityFunc says which answers are final. Default [DefaultFinality].
	FinalityFunc func(status int, header http.Header) kakutei.Finality
	// ActorFunc names who made the call, for the audit trail. Default: nobody.
	ActorFunc func(r *http.Request) string
	// AuthorizeReplayFunc is asked before a recorded answer is given; an error
	// refuses it with 403, [ErrUnauthenticated] with 401, and
	// [kakutei.ErrUnavailable] with 503. Handlers check rights when they run, and a replay
	// runs no handler: set it where a right can be withdrawn in between and the
	// answer is worth protecting from its own former owner. Default: allow.
	AuthorizeReplayFunc func(r *http.Request) error
	// ErrorFunc answers what the middleware refuses. Default [WriteProblem].
	ErrorFunc func(w http.ResponseWriter, r *http.Request, p Problem)
	// FailOpen runs the handler without protection when the store cannot be
	// reached. A retry may then run twice: choose it only where that is better
	// than not to run at all. Default false: 503.
	FailOpen bool
	// ObserveFailOpenFunc is told of each run that FailOpen let through.
	ObserveFailOpenFunc func(r *http.Request, cause error)
}

func (o Options) withDefaults(e *kakutei.Engine, scope ScopeFunc) (Options, error) {
	invalid := func(format string, args ...any) (Options, error) {
		return o, fmt.Errorf("%w: "+format, append([]any{kakutei.ErrInvalid}, args...)...)
	}
	if e == nil {
		return invalid("the engine is nil")
	}
	if scope == nil {
		return invalid("there is no ScopeFunc: every key belongs to a tenant; a service that has only one uses SingleScope")
	}
	if err := e.CheckPolicy(o.policy()); err != nil {
		return o, err
	}
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	for _, m := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodConnect} {
		if slices.Contains(o.Methods, m) {
			return invalid("method %s has no effect to protect", m)
		}
	}
	if len(o.Methods) == 0 {
		return invalid("no method is protected; nil stands for POST and PATCH")
	}
	for _, m := range o.Methods {
		if m == "" || m != strings.ToUpper(m) {
			return invalid("no request has method %q: methods are case-sensitive", m)
		}
	}
	if o.FailOpen && o.Recovery == kakutei.Transactional {
		return invalid("FailOpen would run a transactional handler without its transaction")
	}
	if o.MaxPreferWait < 0 && o.MaxPreferWait != NoPreferWait {
		return invalid("a MaxPreferWait of %v; use NoPreferWait for none", o.MaxPreferWait)
	}
	if o.MaxPreferWait == 0 {
		o.MaxPreferWait = DefaultMaxPreferWait
	}
	for _, size := range []*int64{&o.MaxRequestBytes, &o.MaxResponseBytes} {
		if *size < 0 {
			return invalid("a limit of %d bytes", *size)
		}
		if *size == 0 {
			*size = DefaultMaxBytes
		}
	}
	if o.FinalityFunc == nil {
		o.FinalityFunc = DefaultFinality
	}
	if o.ErrorFunc == nil {
		o.ErrorFunc = WriteProblem
	}
	return o, nil
}

func (o Options) policy() kakutei.Policy {
	return kakutei.Policy{Recovery: o.Recovery, Lease: o.Lease, Deadline: o.Deadline, Wait: o.Wait, Detach: true}
}

// DefaultFinality takes every answer for final but 408, 425, 429 and 5xx: after
// those, whether the effect happened is unknown.
func DefaultFinality(status int, _ http.Header) kakutei.Finality {
	switch {
	case status >= 500, status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return kakutei.FinalityUnknown
	}
	return kakutei.FinalityFinal
}
