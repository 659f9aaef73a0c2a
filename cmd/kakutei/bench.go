package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kakutei-go/kakutei/cmd/kakutei/internal/bench"
)

const benchLong = `Measures Kakutei against the plain way (insert the key, run, update the row) on
this machine, in turn, and verifies what both did. The medians and ratios come
at the end; ratios within one run say more than rates from different ones.

Everything is measured in files of its own, beside PATH, that are removed at the
end; PATH itself is not touched, and need not exist. Without --store they are in
the folder for temporary files, which on some systems is memory: then a commit
costs nothing, and the figures say little. The time to make a page durable is
printed first.

--distinct runs so many keys once each instead, and tells what they leave in
memory.`

// benchFlags is what "kakutei bench" is asked to do.
type benchFlags struct {
	store    string
	callers  []int
	cases    []string
	rounds   int
	seconds  float64
	distinct int
	json     bool
}

// benchCommand is "kakutei bench".
func (p *program) benchCommand() *cobra.Command {
	var b benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure Kakutei against the plain way on this machine",
		Long:  benchLong,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return p.bench(cmd.Context(), b) },
	}
	f := cmd.Flags()
	f.StringVar(&b.store, "store", "", "what to measure on, and on which disk: sqlite:PATH (default a temporary SQLite file)")
	f.IntSliceVar(&b.callers, "callers", []int{1, 16, 64, 256}, "how many callers at once; several, one after the other")
	f.StringSliceVar(&b.cases, "cases", bench.CaseNames(), "what to measure")
	f.IntVar(&b.rounds, "rounds", 5, "how often the sides take turns")
	f.Float64Var(&b.seconds, "seconds", 2, "how long each turn is")
	f.IntVar(&b.distinct, "distinct", 0, "run this many distinct keys instead, and look at the memory")
	f.BoolVar(&b.json, "json", false, "write JSON")
	return cmd
}

func (p *program) bench(ctx context.Context, b benchFlags) (err error) {
	opts := bench.Options{
		Callers: b.callers, Rounds: b.rounds, RunTime: time.Duration(b.seconds * float64(time.Second)),
		Cases: b.cases, Progress: p.stderr,
	}
	if err := opts.Validate(); err != nil {
		return usagef("%v", err)
	}
	if b.distinct != 0 && b.distinct < 10 {
		return usagef("--distinct %d is too few; 10 at least", b.distinct)
	}
	db, err := bench.Open(b.store)
	if errors.Is(err, bench.ErrStore) {
		return usagef("--store: %v", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()

	if b.distinct != 0 {
		r, err := bench.Distinct(ctx, db, b.distinct, slices.Max(b.callers), p.stderr)
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		return p.benchResult(r, b.json, !r.Flat)
	}
	r, err := bench.Run(ctx, db, opts)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return p.benchResult(r, b.json, r.Failed())
}

// benchResult prints a report; it says itself what went wrong.
func (p *program) benchResult(r interface{ WriteText(io.Writer) error }, asJSON, failed bool) error {
	var text strings.Builder
	var err error
	if asJSON {
		err = bench.WriteJSON(&text, r)
	} else {
		err = r.WriteText(&text)
	}
	if err == nil {
		_, err = io.WriteString(p.stdout, text.String())
	}
	if err == nil && failed {
		err = errNo
	}
	return err
}
