package sqlitestore

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// Case 49: while a handler has its transaction open, for as long as it likes,
// everybody else is answered who need not write: replays, conflicts, mismatches,
// looks, on this store and on others.
func TestReadersBesideTx_case_49(t *testing.T) {
	t.Parallel()
	b := newBusiness(t, kakutei.Options{})
	other := open(t, b.path)
	ctx := within(t)
	done(t, b.Store, "settled")
	claims(t, b.Store, claimOf("running", "me", long), kakutei.Acquired, 1)
	claims(t, b.Store, claimOf("held", "me", long), kakutei.Acquired, 1)
	settle(t, b.Store, kakutei.Settlement{Ref: refOf("held", "me", 1), Status: kakutei.StatusUncertain})
	claims(t, b.Store, claimOf("transactional", "me", long), kakutei.Acquired, 1)
	tx, err := b.Begin(ctx, refOf("transactional", "me", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := charge(tx.Context(ctx), "transactional"); err != nil {
		t.Fatal(err)
	}
	mismatch := claimOf("running", "other", long)
	mismatch.Fingerprint = kakutei.FingerprintOf([]byte("another request"))
	start := time.Now()
	together(50, func(i int) {
		s := []*Store{b.Store, other}[i%2]
		for _, x := range []struct {
			claim kakutei.Claim
			want  kakutei.Outcome
		}{
			{claimOf("settled", "other", long), kakutei.Replay}, {claimOf("running", "other", long), kakutei.InFlight}, {mismatch, kakutei.Mismatch},
			{claimOf("held", "other", long), kakutei.Uncertain}, {claimOf("transactional", "other", long), kakutei.InFlight},
			{claimOf("running", "me", long), kakutei.Acquired}, // sent again
		} {
			if d, err := tryClaim(ctx, s, x.claim); err != nil || d.Outcome != x.want {
				t.Errorf("%s came to %v, %v; want %v", x.claim.Key, d.Outcome, err, x.want)
			}
		}
		if out, err := s.Look(ctx, []kakutei.ID{idOf("settled"), idOf("transactional"), idOf("none")}); err != nil ||
			out[0].Record.Status != kakutei.StatusSucceeded || out[1].Record.Status != kakutei.StatusProcessing || out[2].Record.Status != kakutei.StatusNone {
			t.Errorf("%v, %v", out, err)
		}
	})
	t.Logf("450 answers beside an open transaction took %v", time.Since(start).Round(time.Millisecond))
	// One batch that needs the writer for a single item waits for it as a whole.
	// Those that need none were answered above.
	waits, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if _, err := b.Claim(waits, []kakutei.Claim{claimOf("settled", "other", long), claimOf("new", "other", long)}); err == nil {
		t.Error("a new claim was written beside an open transaction")
	}
	if err := tx.Commit(ctx, success(refOf("transactional", "me", 1))); err != nil {
		t.Fatal(err)
	}
	claims(t, other, claimOf("transactional", "other", long), kakutei.Replay, 1)
	claims(t, other, claimOf("new", "other", long), kakutei.Acquired, 1)
}

// Case 49: 50 requests that run and 50 that wait for them, in another process,
// hold no connection: the file can be checkpointed, written and read meanwhile.
func TestWaitersHoldNothing_case_49(t *testing.T) {
	t.Parallel()
	a := newBusiness(t, kakutei.Options{})
	b := businessOn(t, open(t, a.path), kakutei.Options{})
	const n = 50
	release := make(chan struct{})
	var running, waiting, replays, runs atomic.Int64
	go func() {
		for running.Load() < n {
			time.Sleep(time.Millisecond)
		}
		for waiting.Load() < n {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(120 * time.Millisecond) // some rounds of looking
		defer close(release)
		for name, s := range map[string]*Store{"runs": a.Store, "waits": b.Store} {
			if inUse := s.write.Stats().InUse; inUse != 0 {
				t.Errorf("the store that %s holds the writer", name)
			}
			most := 0
			for range 20 {
				most = max(most, s.read.Stats().InUse)
				time.Sleep(time.Millisecond)
			}
			if most > 1 { // the one look for all
				t.Errorf("the store that %s holds %d readers", name, most)
			}
		}
		var busy, frames, moved int
		if err := raw(t, a.path).QueryRow("PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &moved); err != nil || busy != 0 {
			t.Errorf("the file cannot be checkpointed: busy %d, %v", busy, err)
		}
		done(t, b.Store, "meanwhile")
	}()
	p := kakutei.Policy{Recovery: kakutei.Rerun, Wait: patience}
	together(2*n, func(i int) {
		key := fmt.Sprint("k", i/2)
		if i%2 == 0 {
			if _, err := a.runWith(context.Background(), key, p, func(context.Context) kakutei.Ending {
				runs.Add(1)
				running.Add(1)
				<-release
				return final(key)
			}); err != nil {
				t.Error(err)
			}
			return
		}
		for look := time.Now(); running.Load() < n && time.Since(look) < patience; {
			time.Sleep(time.Millisecond)
		}
		waiting.Add(1)
		answer, err := b.runWith(context.Background(), key, p, func(context.Context) kakutei.Ending {
			runs.Add(1)
			return final("twice")
		})
		if err != nil || !answer.Replayed || string(answer.Result.Body) != key {
			t.Errorf("%s: %+v, %v", key, answer, err)
		}
		replays.Add(1)
	})
	if runs.Load() != n || replays.Load() != n {
		t.Errorf("%d runs and %d replays", runs.Load(), replays.Load())
	}
}

// A look that is given up in mid-query costs its connection, and nothing else:
// the next one has the same settings.
func TestCancelledLooks(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	done(t, s, "k")
	for i := range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*time.Millisecond)
		var n int
		err := s.read.QueryRowContext(ctx, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n").Scan(&n)
		cancel()
		if err == nil {
			t.Fatal("an endless query has ended")
		}
	}
	together(2*readers, func(int) { claims(t, s, claimOf("k", "other", long), kakutei.Replay, 1) })
	if got := value(t, s.read, "PRAGMA query_only"); got != "1" {
		t.Error("a reader may write")
	}
}

// Connections come and go while others look, as they do when looks are given
// up. One that closes hopes to be the last, and for a moment lets no other in:
// who looks waits for that, and is not told that the store is unavailable.
func TestReadersComeAndGo(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	s := open(t, path)
	done(t, s, "k")
	s.read.SetMaxIdleConns(0) // every look opens a connection, and closes it
	rounds := 200
	if raceDetector {
		rounds = 30
	}
	ctx := within(t)
	together(16, func(i int) {
		for n := range rounds {
			if n%2 == 0 {
				if d, err := tryClaim(ctx, s, claimOf("k", "other", long)); err != nil || d.Outcome != kakutei.Replay {
					t.Errorf("the claim came to %v, %v", d.Outcome, err)
					return
				}
			} else if out, err := s.Look(ctx, []kakutei.ID{idOf("k"), idOf("none")}); err != nil || out[0].Record.Status != kakutei.StatusSucceeded {
				t.Errorf("the look: %v, %v", out, err)
				return
			}
		}
	})
}
