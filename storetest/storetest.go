package storetest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// Factory makes the databases that [Run] works on. Only Open is required; a
// case that needs one of the others is skipped where it is nil. The functions
// are called while other cases use the same database.
type Factory struct {
	// Open returns a store on a fresh, empty database, and has it closed by
	// t.Cleanup. It is called about once for each number of the contract; the
	// cases of one number share the store, and run at the same time.
	Open func(t *testing.T) kakutei.Store
	// Reopen returns a second handle on the database of s that shares nothing
	// with s but the database: what another process would have. It is closed by
	// t.Cleanup, before s.
	Reopen func(t *testing.T, s kakutei.Store) kakutei.Store
	// Corrupt writes a live record of id behind the back of s, with exactly this
	// status and this stored fingerprint, attempt 1, an owner that no case uses
	// and a lease that has run out. A CHECK in the schema that would refuse it
	// is to be dropped first: the record stands for one of a newer version.
	Corrupt func(t *testing.T, s kakutei.Store, id kakutei.ID, status string, fingerprint []byte)
	// Dump returns everything that the database holds about id, as text. The
	// cases that say "nothing changes" compare it; without it they compare what
	// Look tells, which is less.
	Dump func(t *testing.T, s kakutei.Store, id kakutei.ID) string
	// ClaimUncommitted writes the record of the claim in a database transaction
	// of its own, leaves that open, and returns what rolls it back.
	ClaimUncommitted func(t *testing.T, s kakutei.Store, c kakutei.Claim) (rollback func())
	// Backdate makes the record and the result of id, all their times but the
	// end of a lease, older by age. For a store that is a [kakutei.Retainer].
	Backdate func(t *testing.T, s kakutei.Store, id kakutei.ID, age time.Duration)
	// Business prepares the database of s for business writes. For a store that
	// is a [kakutei.Transactor].
	Business func(t *testing.T, s kakutei.Store) Business

	// Soak is how long each of the random and racing cases goes on. Zero means
	// 300 ms: enough to find every fault that the suite was tried with in memory.
	Soak time.Duration
	// Pending names cases that the store is known not to pass yet, as in
	// "C8/takeover_one_winner(case_16)", each with the reason. They are skipped,
	// and say so. In a release it is empty.
	Pending map[string]string

	// only, if it is not nil, names the cases to run. It is for the suite's own
	// tests; everybody else has go test -run.
	only map[string]bool
}

// Business stands for the tables of the service that a handler writes to.
type Business struct {
	// Write makes a row of the given name in the transaction that ctx carries.
	Write func(ctx context.Context, name string) error
	// Exists reports, from outside of every transaction, whether the row is there.
	Exists func(ctx context.Context, name string) (bool, error)
	// Refuse makes the database refuse the transaction that ctx carries, for the
	// sake of another one. It may be nil.
	Refuse func(ctx context.Context) error
}

// Case is one test of the suite.
type Case struct {
	// Number is the number of the contract that the case tests, as in "C8".
	Number string
	// Title says what is so if it passes.
	Title string
	// Production lists the production cases, by their numbers in cases.md, whose
	// part that a store can show it shows.
	Production []int
}

// Name returns the name of the subtest below [Run].
func (c Case) Name() string { return c.Number + "/" + c.local() }

// local is the name within the subtest of the number.
func (c Case) local() string {
	if len(c.Production) == 0 {
		return c.Title
	}
	numbers := strings.Trim(strings.ReplaceAll(fmt.Sprint(c.Production), " ", "_"), "[]")
	return c.Title + "(case_" + numbers + ")"
}

// Cases lists the suite in the order in which it runs.
func Cases() []Case {
	var out []Case
	for _, ch := range contract() {
		for _, x := range ch.cases {
			out = append(out, Case{Number: ch.number, Title: x.title, Production: x.production})
		}
	}
	return out
}

// Run checks the store of f against the whole contract.
func Run(t *testing.T, f Factory) {
	t.Helper()
	if f.Open == nil {
		t.Fatal("storetest: the factory has no Open")
	}
	if f.Soak == 0 {
		f.Soak = 300 * time.Millisecond
	}
	pending := make(map[string]string, len(f.Pending))
	for name, why := range f.Pending {
		pending[name] = why
	}
	for _, c := range Cases() {
		delete(pending, c.Name())
	}
	for name := range pending {
		t.Errorf("storetest: %q is pending, but there is no such case", name)
	}
	for _, ch := range contract() {
		t.Run(ch.number, func(t *testing.T) { ch.run(t, f) })
	}
}

// chapter holds the cases of one number of the contract.
type chapter struct {
	number string
	// serial is for cases that reach beyond their own scope.
	serial bool
	cases  []testCase
}

type testCase struct {
	title      string
	production []int
	needs      need
	run        func(h *harness)
}

// cases is a list of production cases, by number.
func cases(numbers ...int) []int { return numbers }

// contract is the whole suite.
func contract() []chapter {
	return []chapter{
		{number: "C1", cases: orderCases()},
		{number: "C2", cases: decisionCases()},
		{number: "C3", cases: append(identityCases(), raceCases()...)},
		{number: "C4", cases: completionCases()},
		{number: "C5", cases: resendCases()},
		{number: "C6", cases: batchCases()},
		{number: "C7", cases: clockCases()},
		{number: "C8", cases: takeoverCases()},
		{number: "C9", cases: holdCases()},
		{number: "C10", cases: fenceCases()},
		{number: "C11", cases: settleAgainCases()},
		{number: "C12", cases: atomicCases()},
		{number: "C13", cases: resultCases()},
		{number: "C14", cases: corruptCases()},
		{number: "C15", cases: lookCases()},
		{number: "C16", cases: retryCases()},
		{number: "C17", serial: true, cases: retainCases()},
		{number: "C18", cases: transactionCases()},
	}
}

func (ch chapter) run(t *testing.T, f Factory) {
	shared := openHarness(t, f)
	for _, c := range ch.cases {
		name := Case{Number: ch.number, Title: c.title, Production: c.production}
		if f.only != nil && !f.only[name.Name()] {
			continue
		}
		t.Run(name.local(), func(t *testing.T) {
			if !ch.serial {
				t.Parallel()
			}
			if why, ok := f.Pending[name.Name()]; ok {
				t.Skip("PENDING, a known fault of this store: " + why)
			}
			if missing := shared.missing(c.needs); missing != "" {
				t.Skip("not applicable: " + missing)
			}
			h := *shared
			h.T = t
			h.scope = ch.number + "/" + c.title
			c.run(&h)
		})
	}
}
