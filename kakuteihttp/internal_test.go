package kakuteihttp

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// TestProblemOf is the table of docs/protocol.md: situation to status and type.
func TestProblemOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind   error
		status int
		name   string
		after  time.Duration
	}{
		{kakutei.ErrInvalid, 500, "server-error", 0},
		{kakutei.ErrNested, 500, "server-error", 0},
		{kakutei.ErrInFlight, 409, "in-flight", 0},
		{kakutei.ErrLeaseLost, 409, "in-flight", 0},
		{kakutei.ErrMismatch, 422, "key-reused", 0},
		{kakutei.ErrUncertain, 409, "uncertain", 0},
		{kakutei.ErrNotRetained, 409, "result-not-retained", 0},
		{kakutei.ErrCorrupt, 500, "record-unreadable", 0},
		{kakutei.ErrUnavailable, 503, "store-unavailable", time.Second},
		{kakutei.ErrClosed, 503, "shutting-down", time.Second},
		{kakutei.ErrConflict, 503, "store-unavailable", time.Second},
		{context.Canceled, 503, "store-unavailable", time.Second},
		{errors.New("anything else"), 503, "store-unavailable", time.Second},
	} {
		for _, err := range []error{c.kind, fmt.Errorf("claim key: %w", c.kind), &kakutei.Error{Kind: c.kind, Cause: errors.New("driver")}} {
			p := problemOf(err)
			if p.Status != c.status || p.Type != TypeBase+c.name || p.RetryAfter != c.after || !errors.Is(p.Err, c.kind) {
				t.Errorf("%v: %d %s, retry after %v, caused by %v", err, p.Status, p.Type, p.RetryAfter, p.Err)
			}
		}
		if p := problemOf(&kakutei.Error{Kind: c.kind, RetryAfter: 7 * time.Second}); p.RetryAfter != 7*time.Second {
			t.Errorf("%v: retry after %v, want what the error says", c.kind, p.RetryAfter)
		}
	}
	// Two kinds in one error: what must not be run again, or is known to have
	// another request, decides.
	both := &kakutei.Error{Kind: kakutei.ErrUnavailable, Cause: kakutei.ErrCorrupt}
	if p := problemOf(both); p.Status != 500 {
		t.Errorf("%v: %d", both, p.Status)
	}
}

// FuzzPreferWait: whatever a client prefers, it waits neither less than nothing
// nor longer than the route allows; and a plain wish is granted.
func FuzzPreferWait(f *testing.F) {
	for _, s := range []string{
		"", "wait", "wait=", "wait=10", "wait=100", "WAIT=5", `wait="5"`, "wait = 5", "respond-async, wait=5", "wait=5;x=1, wait=6", "wait=-1", "wait=+1",
		"wait=1.5", "wait=1e3", "wait=0x10", "wait=99999999999999999999", "wait=2147483647", "wait=2147483648", "wait=soon, wait=7", "return=minimal; foo=\"wait=3\"", ",,wait=1", "wait=1wait=2", "wait=\u0661",
	} {
		f.Add(s, "", int64(30*time.Second), int64(0))
		f.Add("foo", s, int64(NoPreferWait), int64(time.Second))
	}
	f.Fuzz(func(t *testing.T, line1, line2 string, maxPrefer, def int64) {
		if maxPrefer < 0 {
			maxPrefer = int64(NoPreferWait)
		}
		opts := Options{MaxPreferWait: time.Duration(maxPrefer), Wait: max(0, time.Duration(def))}
		got := (&handler{opts: opts}).wait(http.Header{"Prefer": {line1, line2}})
		if opts.MaxPreferWait == NoPreferWait {
			if got != opts.Wait {
				t.Fatalf("a wish is to be ignored: waits %v, not %v", got, opts.Wait)
			}
			return
		}
		want, certain := waitByTheRules(line1+","+line2, opts)
		switch {
		case got != opts.Wait && (got < 0 || got > opts.MaxPreferWait):
			t.Fatalf("%q, %q: waits %v; allowed are %v", line1, line2, got, opts.MaxPreferWait)
		case certain && got != want:
			t.Fatalf("%q, %q: waits %v, want %v", line1, line2, got, want)
		}
	})
}

var (
	// A list of preferences without quoted strings, as in RFC 7240, section 2.
	preferList = regexp.MustCompile(`\A[^"]*\z`)
	preferWait = regexp.MustCompile(`(?i)\A[ \t]*wait[ \t]*=[ \t]*([0-9]+)[ \t]*(?:;.*)?\z`)
)

// waitByTheRules is the oracle, where it knows: the first preference "wait" that
// has a number of seconds is granted up to the bound.
func waitByTheRules(line string, opts Options) (wait time.Duration, certain bool) {
	if !preferList.MatchString(line) || strings.ContainsAny(line, "\r\n\x00\v\f\u0085\u00a0") || !isASCII(line) {
		return 0, false
	}
	for pref := range strings.SplitSeq(line, ",") {
		m := preferWait.FindStringSubmatch(pref)
		if m == nil {
			continue
		}
		n, _ := new(big.Int).SetString(m[1], 10)
		if n.BitLen() > 31 {
			continue // too large to mean anything
		}
		return min(time.Duration(n.Int64())*time.Second, opts.MaxPreferWait), true
	}
	return opts.Wait, true
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
