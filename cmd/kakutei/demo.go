package main

import (
	"encoding/json"
	"io"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/kakutei-go/kakutei/cmd/kakutei/internal/demo"
)

const demoLong = `Plays the same trouble for a shop behind the usual idempotency layer, a cache of
responses, and for the shop behind Kakutei on SQLite: requests at the same time,
kill -9 between the charge and its answer, a panic, a client that hangs up. The
charges are counted in the ledger of a payment provider in another process.

Nothing needs to be set up and nothing is left behind. It takes about half a
minute. The exit status is 1 if Kakutei charged anything twice, or if a fault
that was to happen did not.`

// demoCommand is "kakutei demo".
func (p *program) demoCommand() *cobra.Command {
	var opts demo.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See the usual layer charge twice and Kakutei charge once, in half a minute",
		Long:  demoLong,
		Args:  cobra.NoArgs,
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print one JSON document instead")
	f.DurationVar(&opts.Lease, "lease", demo.DefaultLease, "lease of the servers")
	f.StringSliceVar(&opts.Only, "only", nil, "scenarios to play")
	f.BoolVar(&opts.Sabotage, "sabotage", false, "run the naive layer in Kakutei's place")
	for _, name := range []string{"lease", "only", "sabotage"} { // for tests of the demo
		_ = f.MarkHidden(name) // the flag is there
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		executable, err := os.Executable()
		if err != nil {
			return err
		}
		opts.Command = []string{executable, "demo", "child"}
		stop := func() {}
		switch {
		case asJSON:
		case isTerminal(p.stderr) && p.getenv("TERM") != "dumb":
			live := demo.NewLive(p.stderr)
			opts.Progress, stop = live, live.Close
		default:
			opts.Progress = &demo.Lines{W: p.stderr}
		}
		report, err := demo.Run(cmd.Context(), opts)
		stop()
		if err == nil {
			err = p.printDemo(report, asJSON)
		}
		if err == nil && !report.OK {
			err = errNo
		}
		return err
	}
	cmd.AddCommand(&cobra.Command{
		Use: "child", Hidden: true, DisableFlagParsing: true,
		Short: "One of the processes of the demo",
		RunE: func(cmd *cobra.Command, args []string) error {
			return demo.Child(cmd.Context(), args, p.stdin, p.stdout, p.stderr)
		},
	})
	return cmd
}

func (p *program) printDemo(report demo.Report, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(p.stdout)
		enc.SetIndent("", "  ")
		return enc.Encode(report)
	}
	return report.Print(p.stdout, isTerminal(p.stdout) && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb")
}

// isTerminal tells whether a person reads w as it is written.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}
