package demo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	// DefaultLease is short, so that nobody has to wait for long. A service
	// takes a longer one.
	DefaultLease = 2 * time.Second
	// limit ends a demo that hangs.
	limit = 3 * time.Minute
)

// Options configures [Run].
type Options struct {
	// Command runs [Child] in another process when the arguments of Child are
	// appended. Required.
	Command []string
	// Lease of the servers under Kakutei. Default [DefaultLease].
	Lease time.Duration
	// Only names the scenarios to play. Default all.
	Only []string
	// Sabotage runs Kakutei's columns with the naive layer.
	Sabotage bool
	// Progress is told what is going on. Default nobody.
	Progress Progress
}

// Run plays every scenario behind every layer. The error says that it could not;
// what it saw is in the report. When it returns, all its processes have ended and
// its files are gone.
func Run(ctx context.Context, opts Options) (report Report, err error) {
	if opts.Lease == 0 {
		opts.Lease = DefaultLease
	}
	if opts.Progress == nil {
		opts.Progress = silence{}
	}
	plays, err := selectScenarios(opts.Only)
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the demo was not done after %v", limit))
	defer cancel()
	defer func() {
		if ctx.Err() != nil { // whatever failed failed for this
			err = context.Cause(ctx)
		}
	}()
	start := time.Now()
	dir, err := os.MkdirTemp("", "kakutei-demo-")
	if err != nil {
		return Report{}, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the system clears its temporary files

	provider, err := startProcess(ctx, opts.Command, []string{"provider"})
	if err != nil {
		return Report{}, err
	}
	defer provider.stop()

	rows := make([]Row, len(plays))
	for i, sc := range plays {
		rows[i] = Row{Name: sc.name, Title: sc.title, Right: rightCharges}
	}
	for i, l := range layers() {
		s := &stage{
			layer: l, lease: opts.Lease, sabotage: opts.Sabotage, command: opts.Command, dir: dir,
			ledger: newLedger(provider.url), client: newClient(),
		}
		p := steps{opts.Progress, i * len(plays), len(layers()) * len(plays)}
		if err := s.playAll(ctx, plays, rows, p); err != nil {
			return Report{}, err
		}
	}
	return newReport(rows, opts.Lease, time.Since(start)), nil
}

func selectScenarios(only []string) ([]scenario, error) {
	all := scenarios()
	if len(only) == 0 {
		return all, nil
	}
	var names []string
	for _, sc := range all {
		names = append(names, sc.name)
	}
	for _, name := range only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is no scenario %q; choose from %s", name, strings.Join(names, ", "))
		}
	}
	return slices.DeleteFunc(all, func(sc scenario) bool { return !slices.Contains(only, sc.name) }), nil
}

// playAll plays the scenarios behind one layer, and adds a cell to each row.
func (s *stage) playAll(ctx context.Context, plays []scenario, rows []Row, p steps) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	defer func() { s.server.stop() }() // the one that runs then: a scenario may have started another
	for i, sc := range plays {
		p.begin(i+1, s.layer.title+": "+sc.title)
		a := s.newAct(sc)
		cell := newCell(a, sc.play(ctx, a))
		if err := s.count(ctx, &cell); err != nil {
			return err
		}
		p.Done(cell.text())
		rows[i].Cells = append(rows[i].Cells, cell)
	}
	// What was still under way is over when the server has ended: count again.
	s.server.stop()
	for i := range rows {
		if err := s.count(ctx, &rows[i].Cells[len(rows[i].Cells)-1]); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) count(ctx context.Context, c *Cell) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	charges, err := s.ledger.charges(ctx, c.order)
	c.count(len(charges))
	return err
}
