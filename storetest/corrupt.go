package storetest

import (
	"errors"
	"fmt"

	"github.com/kakutei-go/kakutei"
)

// C14: a record with a status, fingerprint or format that is not known answers
// ErrCorrupt and is left as it is: it may be of a newer version, which knows
// what it means.
func corruptCases() []testCase {
	return []testCase{
		{title: "unknown_fingerprint_version", production: cases(24, 35), run: unknownFingerprintVersion},
		{title: "unknown_record", production: cases(24), needs: needCorrupt, run: unknownRecord},
	}
}

// wantCorrupt claims the damaged key in every way, between two neighbours that
// must be unaffected, and checks that nothing has come of it.
func (h *harness) wantCorrupt(what, key string, lookable bool) {
	h.Helper()
	h.keeps("claiming a record with "+what, h.id(key), func() {
		for i, s := range h.handles() {
			for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold, kakutei.Transactional} {
				near := fmt.Sprintf("%s-%d-%v", key, i, recovery)
				c := h.claimOf(key, "b", long)
				c.Recovery = recovery
				ds := h.claims(s, []kakutei.Claim{h.claimOf(near+"-before", "b", long), c, h.claimOf(near+"-after", "b", long)})
				h.wantDecision("before "+what, ds[0], kakutei.Acquired, 1)
				h.wantDecision("after "+what, ds[2], kakutei.Acquired, 1)
				if !errors.Is(ds[1].Err, kakutei.ErrCorrupt) || ds[1].Outcome != 0 {
					h.Errorf("%s: %v, error %v; want ErrCorrupt and nothing else", what, ds[1].Outcome, ds[1].Err)
				}
				if _, err := h.tryClaim(s, c); !errors.Is(err, kakutei.ErrCorrupt) {
					h.Errorf("%s, alone: error %v; want ErrCorrupt", what, err)
				}
			}
			live := h.acquire(s, h.claimOf(fmt.Sprintf("%s-%d-live", key, i), "b", long))
			looked, err := h.tryLooks(s, []kakutei.ID{live.ID, h.id(key), live.ID})
			if err != nil {
				h.Fatal(err)
			}
			for _, j := range []int{0, 2} {
				if looked[j].Err != nil || looked[j].Record.Status != kakutei.StatusProcessing {
					h.Errorf("looking at the neighbour of %s: %v (%v)", what, looked[j].Record.Status, looked[j].Err)
				}
			}
			if !lookable && !errors.Is(looked[1].Err, kakutei.ErrCorrupt) {
				h.Errorf("looking at %s: error %v, want ErrCorrupt", what, looked[1].Err)
			}
			// Who does not hold it has nothing to write to it either.
			stranger := kakutei.Ref{ID: h.id(key), Owner: "b", Attempt: 1}
			if err := h.tryRenew(s, stranger, long); err == nil {
				h.Errorf("a stranger has renewed a record with %s", what)
			}
			for _, status := range endings() {
				if err := h.trySettle(s, stranger, status, answer("b")); err == nil {
					h.Errorf("a stranger has settled a record with %s as %v", what, status)
				}
			}
		}
	})
}

// unknownFingerprintVersion: the rule that the record was written by is not
// known, so whether the request is the same one cannot be told. That goes for
// records in flight and for recorded results. They can be looked at.
func unknownFingerprintVersion(h *harness) {
	newer := func(key string) kakutei.Claim {
		c := h.claimOf(key, "a", long)
		c.Fingerprint.Version = 200
		return c
	}
	for _, status := range append(endings(), kakutei.StatusProcessing) {
		key := status.String()
		ref := h.acquire(h.store, newer(key))
		if status != kakutei.StatusProcessing {
			h.settle(h.store, ref, status, answer("newer"))
		}
		h.wantCorrupt("a fingerprint of a newer version, "+key+",", key, true)
		h.wantRecord("as the newer version left it", ref, status)
	}
	h.wantReplay("the newer version itself", h.claim(h.store, newer("SUCCEEDED")), answer("newer"))

	expired := newer("expired")
	expired.Lease = short
	ref := h.acquire(h.store, expired)
	h.expire(ref.ID)
	h.wantCorrupt("a fingerprint of a newer version, expired,", "expired", true)
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("newer"))
}

// unknownRecord: what no version of this program writes.
func unknownRecord(h *harness) {
	known := h.op("known").Fingerprint.Bytes()
	for i, x := range []struct {
		what, status string
		fingerprint  []byte
	}{
		{"an unknown status", "PAUSED", known},
		{"a status in small letters", "processing", known},
		{"an empty status", "", known},
		{"success and no result", "SUCCEEDED", known},
		{"an empty fingerprint", "PROCESSING", []byte{}},
		{"a fingerprint of one byte", "PROCESSING", []byte{1}},
		{"a fingerprint that is too short", "FAILED", known[:len(known)-1]},
		{"a fingerprint that is too long", "UNCERTAIN", append(known[:len(known):len(known)], 0)},
		{"a fingerprint of version 0", "PROCESSING", append([]byte{0}, known[1:]...)},
	} {
		key := fmt.Sprintf("damaged-%d", i)
		h.factory.Corrupt(h.T, h.store, h.id(key), x.status, x.fingerprint)
		h.wantCorrupt(x.what, key, false)
	}
}
