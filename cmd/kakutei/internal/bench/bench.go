// Package bench measures Kakutei against the plain way on the same database,
// one after the other in turn, and verifies what both of them did.
//
// The plain way is what services write by hand: insert the key, run, update the
// row with the result. Each database has a file that says what this is on it.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

// ErrStore marks an address of a store that cannot be measured.
var ErrStore = errors.New("this store cannot be measured")

// Database makes both sides of a measurement, on the same disk or server. Every
// side that it opens begins empty and is gone after its Close.
type Database interface {
	// Describe names the database, its version and the settings that count.
	Describe(ctx context.Context) (string, error)
	// SyncTime is how long the disk takes to make a page durable; 0 if that
	// cannot be known from here.
	SyncTime() (time.Duration, error)
	// Protected opens a store of Kakutei's, with the business tables beside it.
	Protected(ctx context.Context) (Protected, error)
	// PlainWays returns the ways to do it by hand, the one to compare with first.
	PlainWays() []PlainWay
	// Close removes what is left.
	Close() error
}

// Protected is Kakutei's side.
type Protected interface {
	Store() kakutei.Store
	// Business does the business writes in the transaction of the attempt that
	// ctx belongs to.
	Business(ctx context.Context, ref string, account int) error
	Counts(ctx context.Context) (Counts, error)
	Close() error
}

// PlainWay is one way to do it by hand.
type PlainWay struct {
	Name string
	// Alone tells that the way is worth measuring with a single caller, where
	// ways that differ in how callers share are all the same.
	Alone bool
	Open  func(ctx context.Context, callers int) (Plain, error)
}

// Plain is the other side.
type Plain interface {
	// Once runs fn if key is new and records what it returned, in a commit
	// before and one after; else it returns what was recorded.
	Once(ctx context.Context, caller int, key string, hash []byte, fn func() ([]byte, error)) (result []byte, replayed bool, err error)
	// Business does the business writes in a transaction of their own, without
	// any key.
	Business(ctx context.Context, caller int, ref string, account int) error
	// Load records the result of keys that are then replayed. It is not measured.
	Load(ctx context.Context, keys []string, hash []byte, result func(key string) ([]byte, error)) error
	Counts(ctx context.Context) (Counts, error)
	Close() error
}

// accounts is how many accounts the business tables have.
const accounts = 1000

// Counts is what a database holds.
type Counts struct {
	// Live counts operations that have begun and not ended; Settled those with a result.
	Live, Settled int64
	// Transfers counts the rows of the business; Spent is what its accounts
	// lost, one for each transfer.
	Transfers, Spent int64
}

// Options says what to measure. There are no defaults here; the flags have them.
type Options struct {
	Callers []int
	// Rounds is how often the sides take turns.
	Rounds int
	// RunTime is how long each turn is. Its first tenth is not counted.
	RunTime time.Duration
	// Cases are names of [CaseNames].
	Cases []string
	// Progress is told what goes on.
	Progress io.Writer
}

// Validate reports what cannot be measured.
func (o Options) Validate() error {
	for _, n := range o.Callers {
		if n < 1 || n > maxCallers {
			return fmt.Errorf("%d callers; there must be between 1 and %d", n, maxCallers)
		}
	}
	for _, c := range o.Cases {
		if !slices.Contains(CaseNames(), c) {
			return fmt.Errorf("case %q is unknown; choose from %s", c, strings.Join(CaseNames(), ", "))
		}
	}
	switch {
	case len(o.Callers) == 0:
		return errors.New("the number of callers is missing")
	case len(o.Cases) == 0:
		return errors.New("the cases are missing")
	case o.Rounds < 1 || o.Rounds > 1000:
		return fmt.Errorf("%d rounds; there must be between 1 and 1000", o.Rounds)
	case o.RunTime < 10*time.Millisecond || o.RunTime > time.Hour:
		return fmt.Errorf("turns of %v; they must be between 10ms and 1h", o.RunTime)
	}
	return nil
}

// maxCallers bounds the connections of the plain way.
const maxCallers = 4096

// Open returns the database that a store's address names; empty means a SQLite
// file in the folder for temporary files.
func Open(url string) (Database, error) {
	kind, rest, _ := strings.Cut(url, ":")
	switch kind {
	case "":
		return openSQLite("")
	case "sqlite":
		if rest == "" {
			return nil, fmt.Errorf("%w: %q has no path", ErrStore, url)
		}
		return openSQLite(rest)
	}
	return nil, fmt.Errorf("%w: %q; write sqlite:PATH", ErrStore, url)
}

// Run measures every case at every number of callers. Errors of operations are
// in the report; the error means that the measurement itself came to nothing.
func Run(ctx context.Context, db Database, o Options) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	machine, err := describe(ctx, db)
	if err != nil {
		return nil, err
	}
	report := &Report{Machine: machine, Rounds: o.Rounds, Seconds: o.RunTime.Seconds()}
	type block struct {
		c       benchCase
		callers int
		sides   []side
	}
	var blocks []block
	total := 0
	for _, c := range casesOf(db) {
		if !slices.Contains(o.Cases, c.name) {
			continue
		}
		for _, n := range o.Callers {
			b := block{c, n, c.sidesFor(n)}
			blocks = append(blocks, b)
			total += o.Rounds * len(b.sides)
		}
	}
	p := newProgress(o.Progress, total)
	defer p.end()
	p.say("%s\nat least %v", machine, (time.Duration(total) * o.RunTime).Round(time.Second))
	for _, b := range blocks {
		results := make([][]turn, len(b.sides))
		for range o.Rounds {
			for i, s := range b.sides {
				p.step("%s, %s, %s", b.c.name, count(b.callers, "caller"), s.name)
				t, err := takeTurn(ctx, s, b.callers, o.RunTime)
				if ctx.Err() != nil {
					return nil, context.Cause(ctx) // whatever it was in the middle of
				}
				if err != nil {
					return nil, fmt.Errorf("%s, %s, %s: %w", b.c.name, count(b.callers, "caller"), s.name, err)
				}
				results[i] = append(results[i], t)
			}
		}
		m := summarize(b.c, b.callers, b.sides, results)
		report.Measurements = append(report.Measurements, m)
		p.say("%s", m.line())
	}
	return report, nil
}

// takeTurn opens a side, measures it and has it verified.
func takeTurn(ctx context.Context, s side, callers int, d time.Duration) (t turn, err error) {
	sess, err := s.open(ctx, callers)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, sess.close()) }()
	runtime.GC() // what the turn before left behind is not this one's
	t = measure(ctx, sess.do, callers, d)
	if ctx.Err() != nil {
		return t, context.Cause(ctx)
	}
	if err := sess.check(ctx, t.total, t.errors); err != nil {
		t.wrong = err.Error()
	}
	return t, nil
}

func describe(ctx context.Context, db Database) (Machine, error) {
	m := Machine{Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0)}
	var err error
	if m.Database, err = db.Describe(ctx); err != nil {
		return m, err
	}
	sync, err := db.SyncTime()
	if err != nil {
		return m, err
	}
	m.SyncMicros = micros(sync)
	return m, nil
}
