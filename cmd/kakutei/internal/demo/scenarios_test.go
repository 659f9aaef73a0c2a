package demo

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// newTestAct returns an act against servers in this process: the provider, and a
// shop without any layer.
func newTestAct(t *testing.T, name string, wrap func(http.Handler) http.Handler) *act {
	t.Helper()
	providerServer := httptest.NewServer(newProvider())
	t.Cleanup(providerServer.Close)
	shop := httptest.NewServer(wrap(http.HandlerFunc((&shop{provider: providerServer.URL}).charge)))
	t.Cleanup(shop.Close)
	s := &stage{
		layer: layers()[1], lease: time.Second, client: newClient(),
		ledger: newLedger(providerServer.URL), server: &process{url: shop.URL, stderr: &output{}},
	}
	return s.newAct(scenario{name: name})
}

func plain(next http.Handler) http.Handler { return next }

// hasty is a shop that answers before it has charged: whatever is to happen
// between the charge and its answer, with this one it cannot.
func hasty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r = r.Clone(context.WithoutCancel(r.Context()))
		r.Body = io.NopCloser(bytes.NewReader(body))
		go next.ServeHTTP(httptest.NewRecorder(), r)
		w.WriteHeader(http.StatusCreated)
	})
}

// TestNoFault: a scenario says so when what was to go wrong did not.
func TestNoFault(t *testing.T) {
	t.Parallel()
	for _, sc := range scenarios() {
		if sc.name == "retry" || sc.name == "kill" { // has no fault; needs a process, below
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			a := newTestAct(t, sc.name, hasty)
			err := sc.play(t.Context(), a)
			assert.ErrorIs(t, err, errNoFault)
			cell := newCell(a, err)
			cell.count(1)
			assert.True(t, !cell.FaultSeen, "the fault is reported as seen")
			assert.Equal(t, cell.text(), "1 NO FAULT", "text")
			report := newReport([]Row{{Right: 1, Cells: []Cell{cell}}}, time.Second, time.Second)
			assert.True(t, !report.OK, "the report is OK")
		})
	}
}

// TestKillThatMissed: a server that ended by itself was not killed.
func TestKillThatMissed(t *testing.T) {
	t.Parallel()
	a := newTestAct(t, "kill", plain)
	p, err := startProcess(t.Context(), childCommand(), []string{"provider"})
	if err != nil {
		t.Fatal(err)
	}
	p.stop()
	p.url = a.server.url
	a.server = p
	assert.True(t, !wasKilled(p.cmd.ProcessState), "a process that ended by itself counts as killed")
	assert.ErrorIs(t, kill(t.Context(), a), errNoFault)
}

// TestProviderThatDoesNotCharge: without a charge there is nothing to do twice.
func TestProviderThatDoesNotCharge(t *testing.T) {
	t.Parallel()
	refuses := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	}
	a := newTestAct(t, "disconnect", refuses)
	a.ledger.patience = 100 * time.Millisecond
	assert.ErrorIs(t, disconnect(t.Context(), a), errNoFault)
}

// TestFollowGivesUp: clients that are told a failure break the scenario.
func TestFollowGivesUp(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer answer
		want   string
	}{
		"server error": {answer{text: "503 store unavailable", status: http.StatusServiceUnavailable}, "503 store unavailable"},
		"no answer":    {answer{text: noAnswer}, noAnswer},
		"for ever":     {answer{text: "409 in flight", status: http.StatusConflict, retryAfter: time.Hour}, "still told to wait"},
	} {
		a := newTestAct(t, "retry", plain)
		err := a.follow(t.Context(), "retry", a.order, []answer{test.answer})
		assert.True(t, err != nil && strings.Contains(err.Error(), test.want), "%s: got error %v", name, err)
	}
}

// TestDifferentCharges: one order, two receipts, whatever the ledger says.
func TestDifferentCharges(t *testing.T) {
	t.Parallel()
	a := newTestAct(t, "retry", plain)
	a.tell("first", answer{text: "201", status: http.StatusCreated, charge: "ch_1"})
	a.tell("retry", answer{text: "201", status: http.StatusCreated, charge: "ch_2"})
	assert.Equal(t, newCell(a, nil).Problem, "clients were told of different charges: ch_1, ch_2", "problem")
}
