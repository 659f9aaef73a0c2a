package kakutei

import (
	"context"
	"errors"
	"sync"
	"time"
)

// leases renews what the process holds: one loop, one store call for all that
// is due. A lease that could not be renewed in time, or is found gone, cancels
// its handler's context with cause [ErrLeaseLost].
type leases struct {
	renew   func(ctx context.Context, renewals []Renewal) ([]error, error)
	timeout time.Duration

	mu   sync.Mutex
	held map[*held]struct{}
	wake chan struct{}
}

// held is one lease.
type held struct {
	leases *leases
	ref    Ref
	lease  time.Duration
	// until ends the renewals: the deadline of the run. Zero means never.
	until time.Time

	mu      sync.Mutex
	due     time.Time // when to renew next
	expires time.Time // when, at the latest, the database lets others in
	expiry  *time.Timer
	over    bool // lost or released: no renewal, no timer any more
	// settling tells that the handler has ended. Renewals go on, but what they
	// find decides nothing: the settlement under way may just have been made.
	settling bool
	onLost   func(cause error)
}

func newLeases(renew func(context.Context, []Renewal) ([]error, error), timeout time.Duration) *leases {
	return &leases{renew: renew, timeout: timeout, held: make(map[*held]struct{}), wake: make(chan struct{}, 1)}
}

// hold keeps ref renewed until release. granted is a moment before the store
// granted the lease, so that the local view of its end is never too late.
func (l *leases) hold(ref Ref, lease time.Duration, granted, until time.Time, onLost func(cause error)) *held {
	h := &held{leases: l, ref: ref, lease: lease, until: until, onLost: onLost}
	h.due = granted.Add(lease / 3)
	h.expires = granted.Add(lease)
	h.expiry = time.AfterFunc(time.Until(h.expires), h.lose)
	l.mu.Lock()
	l.held[h] = struct{}{}
	l.mu.Unlock()
	l.poke()
	return h
}

// release ends the renewals of h.
func (l *leases) release(h *held) {
	l.mu.Lock()
	delete(l.held, h)
	l.mu.Unlock()
	h.mu.Lock()
	h.over = true
	h.expiry.Stop()
	h.mu.Unlock()
}

func (l *leases) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// lose cancels the handler. The store alone decides whether the attempt may
// still settle.
func (h *held) lose() {
	h.mu.Lock()
	if h.over || h.settling {
		h.mu.Unlock()
		return
	}
	h.over = true
	h.mu.Unlock()
	h.onLost(ErrLeaseLost)
}

// settle tells that the handler has ended and its settlement is under way: the
// lease is renewed until it is made, past the deadline, too. With false the
// handler runs again.
func (h *held) settle(settling bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settling = settling
	if settling {
		h.expiry.Stop()
		if !h.until.IsZero() && !time.Now().Before(h.until) {
			h.leases.poke() // past the deadline nobody was looking
		}
	} else if !h.over {
		h.expiry.Reset(time.Until(h.expires))
	}
}

// left returns what is left of the lease as far as this process knows.
func (h *held) left(now time.Time) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return max(h.expires.Sub(now), 0)
}

// loop renews until ctx ends.
func (l *leases) loop(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		due, next := l.collect(time.Now())
		if len(due) > 0 {
			l.renewAll(ctx, due)
			continue
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// collect returns the leases to renew now and, if there are none, how long it
// is until the next.
func (l *leases) collect(now time.Time) (due []*held, next time.Duration) {
	next = time.Hour
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.held {
		h.mu.Lock()
		switch {
		case h.over, !h.settling && !h.until.IsZero() && !now.Before(h.until): // not renewed any more
		case !h.due.After(now):
			due = append(due, h)
		default:
			next = min(next, h.due.Sub(now))
		}
		h.mu.Unlock()
	}
	return due, next
}

func (l *leases) renewAll(ctx context.Context, due []*held) {
	renewals := make([]Renewal, len(due))
	// One call that hangs must leave time for another before a lease is over.
	timeout := l.timeout
	for i, h := range due {
		renewals[i] = Renewal{Ref: h.ref, Lease: h.lease}
		timeout = min(timeout, max(h.lease/4, MinLease/2))
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	sent := time.Now()
	errs, err := l.renew(ctx, renewals)
	now := time.Now()
	for i, h := range due {
		itemErr := err
		if err == nil {
			itemErr = errs[i]
		}
		if itemErr == nil {
			h.mu.Lock()
			h.expires = sent.Add(h.lease)
			h.due = sent.Add(h.lease / 3)
			if !h.over && !h.settling {
				h.expiry.Reset(time.Until(h.expires))
			}
			h.mu.Unlock()
			continue
		}
		// The store is away: soon again, until the expiry timer fires.
		h.mu.Lock()
		h.due = now.Add(h.lease / 10)
		h.mu.Unlock()
		if errors.Is(itemErr, ErrLeaseLost) {
			h.lose()
		}
	}
}

// stop ends all expiry timers, for a process that goes away.
func (l *leases) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for h := range l.held {
		h.expiry.Stop()
	}
}
