package demo

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Report is what the demo saw, and the document that --json prints.
type Report struct {
	// OK: every fault happened, and Kakutei charged what is right in all of them.
	OK bool `json:"ok"`
	// Problems says why not.
	Problems  []string `json:"problems"`
	Seconds   float64  `json:"seconds"`
	Lease     string   `json:"lease"`
	Scenarios []Row    `json:"scenarios"`
}

// Row is one scenario.
type Row struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	// Right is how many charges are right.
	Right int    `json:"right_charges"`
	Cells []Cell `json:"layers"`
}

// Cell is one scenario behind one layer.
type Cell struct {
	Layer string `json:"layer"`
	// Charges is what the provider's ledger holds for the order at the end.
	Charges int  `json:"charges"`
	Double  bool `json:"double"`
	// Held: clients were told that the outcome is uncertain, and nothing runs
	// again before somebody has looked.
	Held bool `json:"held"`
	// FaultSeen and Fault: that the fault happened, and how it showed.
	FaultSeen bool   `json:"fault_seen"`
	Fault     string `json:"fault"`
	Told      story  `json:"told"`
	// Problem is what went wrong with the scenario itself.
	Problem string `json:"problem,omitempty"`

	layer layer
	order string
}

// newCell reports an act that ended with err. Its charges are counted later.
func newCell(a *act, err error) Cell {
	c := Cell{Layer: a.layer.name, layer: a.layer, order: a.order.id, FaultSeen: a.fault != "", Fault: a.fault, Told: a.story}
	for _, t := range a.story {
		c.Held = c.Held || strings.HasSuffix(t.Answer, "uncertain")
	}
	switch {
	case errors.Is(err, errNoFault):
		c.FaultSeen, c.Problem = false, err.Error()
	case err != nil:
		c.Problem = "the scenario broke: " + err.Error()
	case a.layer.name != layerNaive && len(a.told) > 1:
		c.Problem = "clients were told of different charges: " + strings.Join(a.told, ", ")
	}
	return c
}

// count notes what the ledger holds for the order.
func (c *Cell) count(charges int) {
	c.Charges, c.Double = charges, charges > rightCharges
}

// newReport judges the rows.
func newReport(rows []Row, lease, took time.Duration) Report {
	r := Report{Problems: []string{}, Seconds: took.Round(100 * time.Millisecond).Seconds(), Lease: lease.String(), Scenarios: rows}
	for _, row := range rows {
		for _, c := range row.Cells {
			if c.Problem != "" {
				r.Problems = append(r.Problems, fmt.Sprintf("%s (%s): %s", row.Title, c.layer.title, c.Problem))
			}
			if c.Layer != layerNaive && c.Charges != row.Right {
				r.Problems = append(r.Problems, fmt.Sprintf("%s (%s): the ledger has %d charges, and %d is right", row.Title, c.layer.title, c.Charges, row.Right))
			}
		}
	}
	r.OK = len(r.Problems) == 0
	return r
}
