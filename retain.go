package kakutei

import (
	"math/rand/v2"
	"time"
)

// retainInterval is how often old results are looked for.
const retainInterval = time.Hour

// retain drops old results until the engine closes. Every process does it; the
// stores make sure that at most one at a time has anything to do.
func (e *Engine) retain(r Retainer) {
	for sleep(e.life, rand.N(time.Minute)) {
		done, err := r.Retain(e.life, e.opts.Retention)
		switch {
		case e.life.Err() != nil:
			return
		case err != nil:
			e.opts.Logger.Warn("kakutei: old results were not dropped; trying again later", "error", err)
		case len(done.Dropped) > 0:
			e.opts.Logger.Info("kakutei: old results dropped", "days", done.Dropped, "failed_removed", done.FailedRemoved)
		}
		if !sleep(e.life, retainInterval) {
			return
		}
	}
}
