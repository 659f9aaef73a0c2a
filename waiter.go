package kakutei

import (
	"context"
	"sync"
	"time"
)

const (
	// waitInterval is how often the records that somebody waits for are looked at.
	waitInterval = 50 * time.Millisecond
	// waitIntervalMax is how seldom, however long one look takes.
	waitIntervalMax = time.Second
)

// waiters lets duplicates wait for an attempt of another process. However many
// wait, one Look after another asks for all of them: nobody who waits holds a
// connection.
type waiters struct {
	look func(ids []ID) ([]Looked, error)

	mu      sync.Mutex
	waits   map[ID]*wait
	running bool
}

// wait is one operation that is waited for.
type wait struct {
	attempt int64
	callers int
	changed chan struct{}
}

// until returns when the operation is no longer in flight with a live lease
// under the given attempt, or when ctx ends.
func (w *waiters) until(ctx context.Context, id ID, attempt int64) {
	w.mu.Lock()
	if w.waits == nil {
		w.waits = make(map[ID]*wait)
	}
	x := w.waits[id]
	if x == nil {
		x = &wait{attempt: attempt, changed: make(chan struct{})}
		w.waits[id] = x
	}
	x.callers++
	if !w.running {
		w.running = true
		go w.loop()
	}
	w.mu.Unlock()

	select {
	case <-x.changed:
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.callers--; x.callers == 0 && w.waits[id] == x {
		delete(w.waits, id)
	}
}

// loop looks until nobody waits.
func (w *waiters) loop() {
	pause := waitInterval
	for {
		time.Sleep(pause)
		w.mu.Lock()
		if len(w.waits) == 0 {
			w.running = false
			w.waits = nil // a burst must not pin its memory
			w.mu.Unlock()
			return
		}
		ids := make([]ID, 0, len(w.waits))
		for id := range w.waits {
			ids = append(ids, id)
		}
		w.mu.Unlock()

		start := time.Now()
		looked, err := w.look(ids)
		// However many wait, looking takes a tenth of the time, or a second passes.
		pause = min(max(waitInterval, 9*time.Since(start)), waitIntervalMax)
		if err != nil {
			continue // the callers' own time bounds the wait
		}
		w.mu.Lock()
		for i, id := range ids {
			x := w.waits[id]
			rec := looked[i].Record
			if x == nil || looked[i].Err == nil && rec.Status == StatusProcessing && rec.Left > 0 && rec.Attempt == x.attempt {
				continue
			}
			close(x.changed)
			delete(w.waits, id)
		}
		w.mu.Unlock()
	}
}
