package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"modernc.org/sqlite"

	"github.com/kakutei-go/kakutei"
)

const (
	exitDone  = 0
	exitNo    = 1 // the answer is no, or the work failed
	exitUsage = 2
)

// errUsage marks errors of how the program was called.
var errUsage = errors.New("usage")

// usagef returns an error of usage.
func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...)
}

// errNo ends the program with exitNo when the output has said why already.
var errNo = errors.New("no")

// program is what the commands share.
type program struct {
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	getenv func(string) string
}

// run is the whole program, for main and for tests. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, getenv func(string) string) int {
	// SQLite as Linux distributions build it: the same durability, half the wait.
	_, _ = sqlite.Fdatasync(true) // where there is no fdatasync, fsync remains

	p := &program{stdin: stdin, stdout: stdout, stderr: stderr, getenv: getenv}
	root := &cobra.Command{
		Use:           "kakutei",
		Short:         "Idempotency keys for any HTTP API: an operation runs once, however often it is sent",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; see %q", err, cmd.CommandPath()+" --help")
	})
	root.AddCommand(p.proxyCommand(), p.migrateCommand(), p.demoCommand(), p.benchCommand())
	ran := false
	root.PersistentPreRun = func(*cobra.Command, []string) { ran = true }

	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errNo):
		return exitNo
	}
	fmt.Fprintln(stderr, "kakutei:", oneLine(err))
	if errors.Is(err, errUsage) || !ran { // cobra refuses unknown commands and arguments before anything runs
		return exitUsage
	}
	return exitNo
}

// oneLine returns the text of err in one line, without the marks that sort it.
func oneLine(err error) string {
	s := strings.TrimPrefix(err.Error(), errUsage.Error()+": ")
	s = strings.ReplaceAll(s, kakutei.ErrInvalid.Error()+": ", "")
	s = strings.ReplaceAll(s, "\n\nDid you mean this?\n\t", "; perhaps: ")
	return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ")
}
