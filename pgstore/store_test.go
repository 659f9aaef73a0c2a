package pgstore_test

import (
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/dbtest"
	"github.com/kakutei-go/kakutei/storetest"
)

// pending are cases that hold only while a commit takes less than lock_timeout:
// on a disk that is slower than that, the store answers InFlight, acquires
// nothing, and the cases want to know more.
var pending = func() map[string]string {
	const slow = "InFlight is answered while the row is locked for longer than lock_timeout"
	return map[string]string{
		"C2/mismatch_at_once(case_6)":             slow,
		"C4/completion_against_takeover(case_16)": slow,
		"C9/completion_against_hold(case_16_17)":  slow,
		"C9/hold_against_takeover(case_16_17)":    slow,
	}
}()

// TestConformance runs the suite through each door.
func TestConformance(t *testing.T) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			f := factory(d, func(t *testing.T) (string, string) {
				dsn := dbtest.Shared(t).Database().DSN()
				return dsn, dsn
			})
			f.Pending, f.Soak = pending, 100*time.Millisecond
			storetest.Run(t, f)
		})
	}
}
