package kakutei

import "sync"

// busy counts what must end before an engine has closed.
type busy struct {
	mu     sync.Mutex
	ended  sync.Cond // on mu
	n      int
	closed bool
}

func newBusy() *busy {
	b := &busy{}
	b.ended.L = &b.mu
	return b
}

// enter counts one more, unless the engine is closed.
func (b *busy) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.n++
	return true
}

// hold counts one more, for what follows from what was counted already.
func (b *busy) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
}

// leave counts one less.
func (b *busy) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n--; b.n == 0 {
		b.ended.Broadcast()
	}
}

// close makes enter refuse.
func (b *busy) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

func (b *busy) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// wait returns when nothing is counted.
func (b *busy) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.n > 0 {
		b.ended.Wait()
	}
}
