package demo

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// testProgress hands every step to the test.
type testProgress struct {
	t    *testing.T
	text string
	done func(text string)
}

func (p *testProgress) Step(_, _ int, text string) { p.text = text }

func (p *testProgress) Done(text string) {
	p.t.Logf("%s: %s", p.text, text)
	if p.done != nil {
		p.done(p.text)
	}
}

// TestDemo plays everything, and reads the report as a program would.
func TestDemo(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), Options{Command: childCommand(), Lease: time.Second, Progress: &testProgress{t: t}})
	if err != nil {
		t.Fatal(err)
	}
	document, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		OK        bool     `json:"ok"`
		Problems  []string `json:"problems"`
		Scenarios []struct {
			Name   string `json:"name"`
			Right  int    `json:"right_charges"`
			Layers []struct {
				Layer     string `json:"layer"`
				Charges   int    `json:"charges"`
				Double    bool   `json:"double"`
				FaultSeen bool   `json:"fault_seen"`
				Held      bool   `json:"held"`
				Told      []Told `json:"told"`
			} `json:"layers"`
		} `json:"scenarios"`
	}
	if err := json.Unmarshal(document, &read); err != nil {
		t.Fatal(err)
	}
	assert.True(t, read.OK, "the demo has problems: %q", read.Problems)
	assert.Equal(t, len(read.Scenarios), len(scenarios()), "scenarios")
	for _, sc := range read.Scenarios {
		assert.Equal(t, len(sc.Layers), 3, sc.Name+": layers")
		assert.Equal(t, sc.Right, 1, sc.Name+": right")
		for _, l := range sc.Layers {
			what := sc.Name + " behind " + l.Layer
			assert.True(t, l.FaultSeen, "%s: the fault was not seen", what)
			assert.True(t, len(l.Told) > 0, "%s: nobody was told anything", what)
			assert.Equal(t, l.Double, l.Charges > 1, what+": double")
			switch {
			case l.Layer != layerNaive:
				assert.Equal(t, l.Charges, 1, what+": charges")
			case sc.Name == "retry":
				assert.Equal(t, l.Charges, 1, what+": charges")
			case sc.Name == "mismatch", sc.Name == "outlive": // a slow machine can be lucky
				assert.True(t, l.Charges >= 1, "%s: no charge", what)
			default: // how many depends on the machine
				assert.True(t, l.Charges > 1, "%s: the naive layer charged %d times", what, l.Charges)
			}
			if sc.Name == "kill" || sc.Name == "panic" {
				assert.Equal(t, l.Held, l.Layer == layerHold, what+": held")
			}
		}
	}
}

// TestSabotage shows that the demo would notice if Kakutei charged twice.
func TestSabotage(t *testing.T) {
	t.Parallel()
	report, err := Run(t.Context(), Options{
		Command: childCommand(), Lease: time.Second, Sabotage: true, Progress: &testProgress{t: t},
		Only: []string{"concurrent", "retry", "panic"},
	})
	if err != nil {
		t.Fatal(err)
	}
	assert.True(t, !report.OK, "the report is OK")
	for _, row := range report.Scenarios {
		for _, c := range row.Cells {
			assert.Equal(t, c.Double, row.Name != "retry", row.Name+" behind "+c.Layer+": double")
		}
	}
	for _, want := range []string{"50 requests at once (Kakutei, hold)", "panic after the charge (Kakutei, rerun+relay)"} {
		assert.True(t, slices.ContainsFunc(report.Problems, func(p string) bool { return strings.HasPrefix(p, want) }),
			"no problem begins with %q: %q", want, report.Problems)
	}
}

// TestInterrupted: nothing is left of a demo that is ended in the middle.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	errEnough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	seen := false
	_, err := Run(ctx, Options{Command: childCommand(), Progress: &testProgress{t: t, done: func(string) {
		entries, err := os.ReadDir(dir)
		assert.NoError(t, err)
		seen = seen || len(entries) > 0
		cancel(errEnough)
	}}})
	assert.ErrorIs(t, err, errEnough)
	assert.True(t, seen, "the demo had no files in %s while it ran: the check below shows nothing", dir)
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	assert.Equal(t, len(entries), 0, "files left behind")
}

func TestUnknownScenario(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Options{Command: childCommand(), Only: []string{"flood"}})
	assert.True(t, err != nil && strings.Contains(err.Error(), `no scenario "flood"`), "got error %v", err)
}

// TestProcessThatDoesNotStart: the error says why, in the process's own words.
func TestProcessThatDoesNotStart(t *testing.T) {
	t.Parallel()
	_, err := startProcess(t.Context(), childCommand(), serverConfig{layer: "none"}.args())
	assert.True(t, err != nil && strings.Contains(err.Error(), `layer "none" is unknown`), "got error %v", err)
}

// TestChildEndsWithParent: the pipe to its stdin is closed when the demo dies.
func TestChildEndsWithParent(t *testing.T) {
	t.Parallel()
	p, err := startProcess(t.Context(), childCommand(), []string{"provider"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	assert.NoError(t, p.stdin.Close())
	select {
	case <-p.ended:
		assert.Equal(t, p.cmd.ProcessState.ExitCode(), 0, "exit code")
	case <-time.After(30 * time.Second):
		t.Error("the child is still there")
	}
}
