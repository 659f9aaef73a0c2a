package kakutei

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kakutei-go/kakutei/internal/assert"
)

func rememberedOp(key string) Operation {
	return Operation{Scope: "acme", Key: key, Fingerprint: FingerprintOf([]byte(key))}
}

// check compares the bookkeeping with what is really held.
func (r *replays) check(t *testing.T) {
	t.Helper()
	var bytes int64
	for el := r.order.Front(); el != nil; el = el.Next() {
		m := el.Value.(*remembered)
		bytes += m.bytes
		assert.True(t, r.byID[m.id] == el, "%v is in the order and not in the index", m.id)
	}
	assert.Equal(t, r.order.Len(), len(r.byID), "entries in order and index")
	assert.Equal(t, r.bytes, bytes, "bytes")
	assert.True(t, r.bytes <= r.maxBytes, "%d bytes are remembered, at most %d are allowed", r.bytes, r.maxBytes)
}

// Case 48: the memory is bounded, and the least recently used goes first.
func TestCase48ReplaysAreBounded(t *testing.T) {
	t.Parallel()
	const size = 1000
	r := newReplays(20 * (size + perResultBytes + 8))
	for i := range 1000 {
		r.add(rememberedOp(fmt.Sprintf("%04d", i)), 1, Result{Body: make([]byte, size)})
		_, ok := r.find(rememberedOp("0000").ID()) // kept by being used
		assert.True(t, ok, "the one in use was driven out at %d", i)
		r.check(t)
	}
	assert.Equal(t, len(r.byID), 20, "results remembered")
	for i := 981; i < 1000; i++ {
		_, ok := r.find(rememberedOp(fmt.Sprintf("%04d", i)).ID())
		assert.True(t, ok, "%d is not remembered", i)
	}
	_, ok := r.find(rememberedOp("0500").ID())
	assert.True(t, !ok, "an old one is still remembered")
}

// One big answer must not drive all others out; adding again must not count twice.
func TestReplaysBigAndRepeated(t *testing.T) {
	t.Parallel()
	r := newReplays(16 * 2000)
	big := rememberedOp("big")
	r.add(big, 1, Result{Body: make([]byte, 2000)})
	assert.Equal(t, len(r.byID), 0, "results remembered after one that is too big")
	fits := Result{Body: make([]byte, 2000-perResultBytes-len("acme")-len("big"))}
	r.add(big, 1, fits)
	assert.Equal(t, len(r.byID), 1, "results remembered after one that just fits")
	r.check(t)
	for range 100 {
		r.add(big, 1, fits)
		r.check(t)
	}
	assert.Equal(t, r.bytes, 2000, "bytes after a hundred times the same")
	r.add(big, 2, Result{Header: []byte("h"), Body: []byte("b"), Omitted: "o"})
	rec, ok := r.find(big.ID())
	assert.True(t, ok && rec.Attempt == 2 && string(rec.Result.Body) == "b" && rec.Status == StatusSucceeded, "found %+v", rec)
	assert.Equal(t, r.bytes, perResultBytes+int64(len("acme")+len("big")+3), "bytes")
}

func TestReplaysRace(t *testing.T) {
	t.Parallel()
	r := newReplays(50 * 1000)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				op := rememberedOp(fmt.Sprint((i * (g + 1)) % 300))
				if rec, ok := r.find(op.ID()); ok {
					assert.Equal(t, rec.Fingerprint, op.Fingerprint, "fingerprint")
					assert.Equal(t, string(rec.Result.Body), op.Key, "body")
				} else {
					r.add(op, 1, Result{Body: []byte(op.Key)})
				}
			}
		})
	}
	wg.Wait()
	r.check(t)
}
