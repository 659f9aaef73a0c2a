package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

const (
	// long is a lease that never runs out during a test, however slow the machine.
	long = time.Hour
	// short is a lease that is meant to run out. No case relies on it still
	// being live: a machine may stand still for longer than that.
	short = 20 * time.Millisecond
	// patience ends a call that hangs. No case passes by waiting for it.
	patience = 20 * time.Second
)

// need is what a case cannot do without.
type need uint

const (
	needReopen need = 1 << iota
	needCorrupt
	needUncommitted
	needRetainer
	needBackdate
	needBusiness
	needRefuse
)

// harness is what a case works with: the test, the store under test, and a
// scope that no other case uses.
type harness struct {
	*testing.T
	factory Factory
	store   kakutei.Store
	// other is the second handle, or store itself where there is none.
	other    kakutei.Store
	business Business
	scope    string
}

func openHarness(t *testing.T, f Factory) *harness {
	h := &harness{T: t, factory: f, store: f.Open(t)}
	h.other = h.store
	if f.Reopen != nil {
		h.other = f.Reopen(t, h.store)
	} else {
		t.Log("not applicable: no Reopen: what concerns two handles runs on one")
	}
	if _, ok := h.store.(kakutei.Transactor); ok && f.Business != nil {
		h.business = f.Business(t, h.store)
	}
	return h
}

// missing says what of n the factory or the store does not have.
func (h *harness) missing(n need) string {
	_, retainer := h.store.(kakutei.Retainer)
	for _, x := range []struct {
		need need
		have bool
		text string
	}{
		{needReopen, h.factory.Reopen != nil, "the factory has no Reopen"},
		{needCorrupt, h.factory.Corrupt != nil, "the factory has no Corrupt"},
		{needUncommitted, h.factory.ClaimUncommitted != nil, "the factory has no ClaimUncommitted"},
		{needRetainer, retainer, "the store is not a Retainer"},
		{needBackdate, h.factory.Backdate != nil, "the factory has no Backdate"},
		{needBusiness, h.business.Write != nil, "the store is not a Transactor, or the factory has no Business"},
		{needRefuse, h.business.Refuse != nil, "the factory's Business has no Refuse"},
	} {
		if n&x.need != 0 && !x.have {
			return x.text
		}
	}
	return ""
}

// handles are the different handles on the database: one or two.
func (h *harness) handles() []kakutei.Store {
	if h.factory.Reopen == nil {
		return []kakutei.Store{h.store}
	}
	return []kakutei.Store{h.store, h.other}
}

// handle spreads callers over the handles.
func (h *harness) handle(i int) kakutei.Store {
	all := h.handles()
	return all[i%len(all)]
}

func (h *harness) id(key string) kakutei.ID { return kakutei.ID{Scope: h.scope, Key: key} }

// op is the operation of a key. Its fingerprint is that of the key, so that a
// store which mixes up two records is found out by a mismatch as well.
func (h *harness) op(key string) kakutei.Operation {
	return kakutei.Operation{
		Scope: h.scope, Key: key, Fingerprint: kakutei.FingerprintOf([]byte(key)),
		Method: "POST", Path: "/charges", Actor: "storetest", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736",
	}
}

// claimOf is a claim that takes over what has expired.
func (h *harness) claimOf(key, owner string, lease time.Duration) kakutei.Claim {
	return kakutei.Claim{Operation: h.op(key), Owner: owner, Lease: lease, Recovery: kakutei.Rerun, Node: "storetest"}
}

// claimsOf are claims of several keys by one owner.
func (h *harness) claimsOf(keys []string, owner string, lease time.Duration) []kakutei.Claim {
	out := make([]kakutei.Claim, len(keys))
	for i, key := range keys {
		out[i] = h.claimOf(key, owner, lease)
	}
	return out
}

// otherRequest is the claim under the same key with another request.
func otherRequest(c kakutei.Claim) kakutei.Claim {
	c.Fingerprint = kakutei.FingerprintOf([]byte("another request"), []byte(c.Key))
	return c
}

// holding is the claim that does not run again what has expired.
func holding(c kakutei.Claim) kakutei.Claim {
	c.Recovery = kakutei.Hold
	return c
}

// keysOf returns n different keys.
func keysOf(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s-%d", prefix, i)
	}
	return out
}

// answer is a result that is told from every other by its text.
func answer(text string) kakutei.Result {
	return kakutei.Result{Code: 201, Header: []byte("header of " + text), Body: []byte(text)}
}

// together runs f n times at once, and returns when all have. f is not to end
// the test, only to mark it as failed.
func together(n int, f func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			ready.Done()
			<-start
			f(i)
		}()
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// repeat runs f for the soak time, and at least atLeast times; it stops at the
// first failure, so that one fault does not fill the log.
func (h *harness) repeat(atLeast int, f func(round int)) {
	h.Helper()
	rounds := 0
	for start := time.Now(); (rounds < atLeast || time.Since(start) < h.factory.Soak) && !h.Failed(); rounds++ {
		f(rounds)
	}
	h.Logf("%d rounds", rounds)
}

// random returns a source of randomness whose seed is in the log. A source
// belongs to one goroutine.
func (h *harness) random() *rand.Rand {
	h.Helper()
	seed := rand.Uint64()
	h.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// shuffled returns the items in another order.
func shuffled[E any](r *rand.Rand, items []E) []E {
	out := append([]E(nil), items...)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}
