package kakutei

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"
)

const (
	// NoRetention keeps results for ever.
	NoRetention time.Duration = -1
	// NoReplayMemory asks the store for every replay.
	NoReplayMemory int64 = -1
)

// Options configures an [Engine]. The zero value is what the comments call default.
type Options struct {
	// Lease is how long an attempt owns its operation between two renewals.
	// Default 30 s; between [MinLease] and [MaxLease].
	Lease time.Duration
	// Retention is how long results are kept at least; after it the days are
	// dropped whole, and a key used again runs again. Default 72 h, at least an
	// hour; [NoRetention] keeps all.
	Retention time.Duration
	// Deadline is how long a handler may run. Default 5 min; [NoDeadline] for none.
	Deadline time.Duration
	// StoreTimeout bounds one call of the store, and how long a claim is tried.
	// Default 5 s.
	StoreTimeout time.Duration
	// SettleTimeout is how long an answer is held back while the store does not
	// take it. Then it is given, marked as unrecorded. Default 10 s.
	SettleTimeout time.Duration
	// MaxBatch is how many operations go to the store in one call. Default 256.
	MaxBatch int
	// ReplayMemoryBytes bounds the results that are remembered in memory.
	// Default 32 MiB; [NoReplayMemory] for none.
	ReplayMemoryBytes int64
	// Node names this process in the records. Default: host name and process id.
	Node string
	// Logger gets what the background work has to say. Default slog.Default().
	Logger *slog.Logger
	// ObserveFunc is told of every event. It is called on the path of the
	// request and must not block.
	ObserveFunc func(ctx context.Context, ev Event)
}

func (o Options) withDefaults() (Options, error) {
	def(&o.Lease, 30*time.Second)
	def(&o.Retention, 72*time.Hour)
	def(&o.Deadline, 5*time.Minute)
	def(&o.StoreTimeout, 5*time.Second)
	def(&o.SettleTimeout, 10*time.Second)
	def(&o.MaxBatch, 256)
	def(&o.ReplayMemoryBytes, 32<<20)
	if o.Node == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Node = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case o.Lease < MinLease || o.Lease > MaxLease:
		return o, fmt.Errorf("%w: a lease of %v; it must be between %v and %v", ErrInvalid, o.Lease, MinLease, MaxLease)
	case o.Retention < time.Hour && o.Retention != NoRetention:
		return o, fmt.Errorf("%w: a retention of %v; use at least an hour, or NoRetention", ErrInvalid, o.Retention)
	case o.Deadline < 0 && o.Deadline != NoDeadline:
		return o, fmt.Errorf("%w: a deadline of %v; use NoDeadline for none", ErrInvalid, o.Deadline)
	case o.StoreTimeout < 0, o.SettleTimeout < 0, o.MaxBatch < 0:
		return o, fmt.Errorf("%w: StoreTimeout, SettleTimeout and MaxBatch cannot be negative", ErrInvalid)
	}
	return o, nil
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
