package kakutei_test

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// situation is everything that a decision may depend on.
type situation struct {
	status   kakutei.Status
	request  string // how the claim's request relates to the recorded one
	left     time.Duration
	recovery kakutei.Recovery
	owner    string // how the claim's owner relates to the recorded one
}

const recordedAttempt = 7

// row is a line of the table in design section 4. The first that matches holds.
type row struct {
	name   string
	when   func(s situation) bool
	want   kakutei.Decision // Attempt counts from the record's; Err is the kind
	change kakutei.Change
}

func status(want kakutei.Status) func(situation) bool {
	return func(s situation) bool { return s.status == want }
}

var table = []row{
	{"none", status(kakutei.StatusNone), kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1 - recordedAttempt}, kakutei.ChangeInsert},
	{"unknown fingerprint version", func(s situation) bool { return s.request == "unknown" }, kakutei.Decision{Err: kakutei.ErrCorrupt}, kakutei.ChangeNone},
	{"other request", func(s situation) bool { return s.request == "other" || s.request == "older, other" }, kakutei.Decision{Outcome: kakutei.Mismatch}, kakutei.ChangeNone},
	{"succeeded", status(kakutei.StatusSucceeded), kakutei.Decision{Outcome: kakutei.Replay, Result: kakutei.Result{Code: 201, Body: []byte("recorded")}}, kakutei.ChangeNone},
	{"uncertain", status(kakutei.StatusUncertain), kakutei.Decision{Outcome: kakutei.Uncertain}, kakutei.ChangeNone},
	{"failed", status(kakutei.StatusFailed), kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1}, kakutei.ChangeTake},
	{"unknown status", func(s situation) bool { return s.status != kakutei.StatusProcessing }, kakutei.Decision{Err: kakutei.ErrCorrupt}, kakutei.ChangeNone},
	{"claim sent again", func(s situation) bool { return s.owner == "own" }, kakutei.Decision{Outcome: kakutei.Acquired}, kakutei.ChangeNone},
	{"live", func(s situation) bool { return s.left > 0 }, kakutei.Decision{Outcome: kakutei.InFlight, Left: time.Second}, kakutei.ChangeNone},
	{"expired, hold", func(s situation) bool { return s.recovery == kakutei.Hold }, kakutei.Decision{Outcome: kakutei.Uncertain}, kakutei.ChangeHold},
	{"expired, no recovery", func(s situation) bool { return s.recovery == 0 }, kakutei.Decision{Err: kakutei.ErrInvalid}, kakutei.ChangeNone},
	{"expired, takeover", func(situation) bool { return true }, kakutei.Decision{Outcome: kakutei.Acquired, Attempt: 1, Takeover: true}, kakutei.ChangeTake},
}

// inputs builds the record and the claim of a situation.
func (s situation) inputs() (kakutei.Record, kakutei.Claim) {
	sum := func(version uint8, text string) kakutei.Fingerprint {
		fp := kakutei.FingerprintOf([]byte(text))
		fp.Version = version
		return fp
	}
	rec := kakutei.Record{
		Status: s.status, Fingerprint: sum(3, "request"), Attempt: recordedAttempt, Owner: "theirs",
		Left: s.left, Result: kakutei.Result{Code: 201, Body: []byte("recorded")},
	}
	c := kakutei.Claim{Recovery: s.recovery, Lease: time.Minute, Owner: "ours"}
	c.Scope, c.Key, c.Fingerprint = "acme", "k", sum(3, "request")
	older := func(text string) func(uint8) (kakutei.Fingerprint, bool) {
		return func(version uint8) (kakutei.Fingerprint, bool) { return sum(version, text), version == 2 }
	}
	switch s.request {
	case "other":
		c.Fingerprint = sum(3, "another")
	case "older, same":
		rec.Fingerprint, c.FingerprintFunc = sum(2, "request"), older("request")
	case "older, other":
		rec.Fingerprint, c.FingerprintFunc = sum(2, "request"), older("another")
	case "unknown":
		rec.Fingerprint, c.FingerprintFunc = sum(9, "request"), older("request")
	}
	switch s.owner {
	case "own":
		c.Owner = rec.Owner
	case "empty": // a look that claims nothing; two empty owners are not the same owner
		c.Owner, rec.Owner = "", ""
	}
	return rec, c
}

func TestDecideEveryRow(t *testing.T) {
	t.Parallel()
	hit := map[string]int{}
	statuses := []kakutei.Status{
		kakutei.StatusNone, kakutei.StatusProcessing, kakutei.StatusFailed, kakutei.StatusUncertain, kakutei.StatusSucceeded, kakutei.StatusSucceeded + 1, 255,
	}
	for _, st := range statuses {
		for _, request := range []string{"same", "other", "older, same", "older, other", "unknown"} {
			for _, left := range []time.Duration{-time.Hour, 0, time.Second} {
				for _, recovery := range []kakutei.Recovery{0, kakutei.Transactional, kakutei.Rerun, kakutei.Hold} {
					for _, owner := range []string{"own", "other", "empty"} {
						s := situation{st, request, left, recovery, owner}
						hit[check(t, s)]++
					}
				}
			}
		}
	}
	for _, r := range table {
		assert.True(t, hit[r.name] > 0, "no situation reaches the row %q", r.name)
	}
}

// check compares one decision with its row and returns the name of the row.
func check(t *testing.T, s situation) string {
	for _, r := range table {
		if !r.when(s) {
			continue
		}
		rec, c := s.inputs()
		got, change := kakutei.Decide(rec, c)
		assert.Equal(t, change, r.change, fmt.Sprintf("%+v: change", s))
		want := r.want
		if want.Err != nil {
			assert.ErrorIs(t, got.Err, want.Err)
			got.Err, want.Err = nil, nil
		} else {
			want.Attempt += recordedAttempt
		}
		assert.True(t, reflect.DeepEqual(got, want), "%+v: got %+v, want %+v (row %q)", s, got, want, r.name)
		return r.name
	}
	return ""
}

// Without a function for older versions the request cannot be compared: the
// record is left alone.
func TestCase35DecideWithoutFingerprintFunc(t *testing.T) {
	t.Parallel()
	for _, st := range []kakutei.Status{kakutei.StatusProcessing, kakutei.StatusFailed, kakutei.StatusUncertain, kakutei.StatusSucceeded} {
		rec, c := situation{status: st, request: "older, same"}.inputs()
		c.FingerprintFunc = nil
		d, change := kakutei.Decide(rec, c)
		assert.ErrorIs(t, d.Err, kakutei.ErrCorrupt)
		assert.Equal(t, change, kakutei.ChangeNone, "change")
	}
}

func TestStatusNames(t *testing.T) {
	t.Parallel()
	for _, s := range []kakutei.Status{kakutei.StatusProcessing, kakutei.StatusFailed, kakutei.StatusUncertain, kakutei.StatusSucceeded} {
		got, err := kakutei.ParseStatus(s.String())
		assert.NoError(t, err)
		assert.Equal(t, got, s, "round trip of "+s.String())
	}
	// NONE is the absence of a record: a stored one is damage.
	for _, name := range []string{"", "NONE", "processing", "SUCCEEDED ", "CANCELLED", "STATUS(9)"} {
		_, err := kakutei.ParseStatus(name)
		assert.ErrorIs(t, err, kakutei.ErrCorrupt)
	}
	assert.Equal(t, kakutei.Status(9).String(), "STATUS(9)", "an unknown status")
}

func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, o := range []kakutei.Outcome{kakutei.Acquired, kakutei.Replay, kakutei.Mismatch, kakutei.InFlight, kakutei.Uncertain, 99} {
		assert.True(t, !seen[o.String()], "two outcomes have the name %q", o)
		seen[o.String()] = true
	}
	seen = map[string]bool{}
	for _, f := range []kakutei.Finality{kakutei.FinalityUnknown, kakutei.FinalityFinal, kakutei.FinalityNoEffect} {
		assert.True(t, !seen[f.String()], "two finalities have the name %q", f)
		seen[f.String()] = true
	}
	seen = map[string]bool{kakutei.EventKind(200).String(): true} // what an unknown kind is called
	for _, k := range kakutei.EventKinds() {
		assert.True(t, !seen[k.String()], "two events have the name %q", k)
		seen[k.String()] = true
	}
	assert.True(t, seen[kakutei.EventAcquired.String()] && seen[kakutei.EventConflict.String()], "EventKinds lacks one at an end: %v", seen)
}

// The text of an error is for logs, where keys must not be.
func TestErrorText(t *testing.T) {
	t.Parallel()
	cause := errors.New("driver text")
	err := error(&kakutei.Error{Kind: kakutei.ErrUnavailable, ID: kakutei.ID{Scope: "acme", Key: "secret-key"}, Cause: cause})
	assert.ErrorIs(t, err, kakutei.ErrUnavailable)
	assert.ErrorIs(t, err, cause)
	assert.Equal(t, err.Error(), `kakutei: the store is unavailable (scope "acme"): driver text`, "text")
	err = &kakutei.Error{Kind: kakutei.ErrMismatch, Cause: kakutei.ErrMismatch}
	assert.Equal(t, err.Error(), kakutei.ErrMismatch.Error(), "the kind as its own cause is not repeated")
	assert.Equal(t, kakutei.ID{Scope: "acme", Key: "secret-key"}.String(), "acme/(key of 10 bytes)", "ID")
	assert.True(t, kakutei.NoEffect(nil) == nil, "NoEffect(nil) is an error")
	assert.ErrorIs(t, kakutei.NoEffect(cause), cause)
	assert.Equal(t, kakutei.NoEffect(cause).Error(), "driver text", "NoEffect keeps the text")
}
