// Package coalesce batches naturally: while one batch is on its way, what
// arrives is collected, and the next batch takes all of it. Alone, an item goes
// out at once; nothing ever waits for company.
package coalesce

import (
	"context"
	"sync"
)

// Group runs items in batches. The zero value is not usable; see [New].
type Group[In, Out any] struct {
	run      func([]In) ([]Out, error)
	maxBatch int

	mu      sync.Mutex
	queue   []*call[In, Out]
	running bool
	idle    sync.Cond // on mu; running has become false
}

type call[In, Out any] struct {
	in   In
	out  Out
	err  error
	done chan struct{}
	// gone is called, from the batch's goroutine, with the answer of a caller
	// that has left. Guarded by the group's mutex.
	gone func(Out, error)
}

// New returns a group that gives at most maxBatch items to run at a time. run
// must answer each item in order; its error stands for the whole batch. It is
// given no context: a batch belongs to nobody, so nobody's cancellation ends it,
// and run itself must bound its time.
func New[In, Out any](maxBatch int, run func([]In) ([]Out, error)) *Group[In, Out] {
	g := &Group[In, Out]{run: run, maxBatch: maxBatch}
	g.idle.L = &g.mu
	return g
}

// Do hands in to the next batch and waits for its answer. If ctx ends first, Do
// returns its cause at once, the batch goes on undisturbed, and gone (unless nil)
// gets the answer when it arrives.
func (g *Group[In, Out]) Do(ctx context.Context, in In, gone func(Out, error)) (Out, error) {
	c := &call[In, Out]{in: in, done: make(chan struct{})}
	g.mu.Lock()
	g.queue = append(g.queue, c)
	if !g.running {
		g.running = true
		go g.loop()
	}
	g.mu.Unlock()

	select {
	case <-c.done:
		return c.out, c.err
	case <-ctx.Done():
	}
	var zero Out
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-c.done:
		return c.out, c.err
	default:
	}
	for i, q := range g.queue {
		if q == c { // not yet sent: nothing to undo
			g.queue = append(g.queue[:i:i], g.queue[i+1:]...)
			return zero, context.Cause(ctx)
		}
	}
	c.gone = gone
	return zero, context.Cause(ctx)
}

// Wait returns when nothing is on its way and everybody has been told.
func (g *Group[In, Out]) Wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.running {
		g.idle.Wait()
	}
}

// loop sends batches until nothing is left.
func (g *Group[In, Out]) loop() {
	for {
		g.mu.Lock()
		if len(g.queue) == 0 {
			g.running = false
			g.queue = nil // a burst must not pin its memory
			g.idle.Broadcast()
			g.mu.Unlock()
			return
		}
		n := min(len(g.queue), g.maxBatch)
		batch := g.queue[:n:n]
		g.queue = g.queue[n:]
		g.mu.Unlock()
		g.send(batch)
	}
}

func (g *Group[In, Out]) send(batch []*call[In, Out]) {
	ins := make([]In, len(batch))
	for i, c := range batch {
		ins[i] = c.in
	}
	outs, err := g.run(ins)

	var left []*call[In, Out]
	g.mu.Lock()
	for i, c := range batch {
		if err != nil {
			c.err = err
		} else {
			c.out = outs[i]
		}
		if c.gone != nil {
			left = append(left, c)
		}
		close(c.done)
	}
	g.mu.Unlock()
	for _, c := range left {
		c.gone(c.out, c.err)
	}
}
