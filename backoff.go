package kakutei

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	backoffBase = 10 * time.Millisecond
	backoffMax  = time.Second
)

// backoff returns a random pause before try number try+1 ("full jitter"), for
// the engine's own calls of the store. It stands here and not in a library
// because this package imports the standard library alone.
func backoff(try int) time.Duration {
	limit := backoffMax
	if try < 7 {
		limit = min(backoffBase<<try, backoffMax)
	}
	return time.Millisecond + rand.N(limit)
}

// sleep pauses for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
