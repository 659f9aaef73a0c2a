package kakutei

import (
	"container/list"
	"sync"
)

// replays remembers recorded results, at most so many bytes of them, the least
// recently used first out. A recorded result never changes, so an answer from
// here is as good as one from the store. What is not settled is never in here.
type replays struct {
	maxBytes int64

	mu    sync.Mutex
	bytes int64
	byID  map[ID]*list.Element
	order *list.List // of *remembered, most recently used in front
}

type remembered struct {
	id          ID
	fingerprint Fingerprint
	attempt     int64
	result      Result
	bytes       int64
}

// perResultBytes is what remembering costs beside the texts themselves.
const perResultBytes = 512

func newReplays(maxBytes int64) *replays {
	return &replays{maxBytes: maxBytes, byID: make(map[ID]*list.Element), order: list.New()}
}

// find returns the record of id, if it is remembered.
func (r *replays) find(id ID) (Record, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	el, ok := r.byID[id]
	if !ok {
		return Record{}, false
	}
	r.order.MoveToFront(el)
	m := el.Value.(*remembered)
	return Record{Status: StatusSucceeded, Fingerprint: m.fingerprint, Attempt: m.attempt, Result: m.result}, true
}

// add remembers the result of op. One that is over a sixteenth of the budget is
// left to the store, so that no single answer drives all others out.
func (r *replays) add(op Operation, attempt int64, result Result) {
	m := &remembered{
		id: op.ID(), fingerprint: op.Fingerprint, attempt: attempt, result: result,
		bytes: perResultBytes + int64(len(op.Scope)+len(op.Key)) + result.sizeBytes(),
	}
	if m.bytes > r.maxBytes/16 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if el, ok := r.byID[m.id]; ok {
		r.remove(el)
	}
	r.byID[m.id] = r.order.PushFront(m)
	r.bytes += m.bytes
	for r.bytes > r.maxBytes {
		r.remove(r.order.Back())
	}
}

func (r *replays) remove(el *list.Element) {
	m := r.order.Remove(el).(*remembered)
	delete(r.byID, m.id)
	r.bytes -= m.bytes
}
