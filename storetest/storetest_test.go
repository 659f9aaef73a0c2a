package storetest

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSound shows that the suite has nothing against a store that keeps the
// contract, with every means that a factory can have: no case may be skipped.
func TestSound(t *testing.T) {
	t.Parallel()
	f := trialFactory(fault{})
	h := openHarness(t, f)
	for _, ch := range contract() {
		for _, c := range ch.cases {
			if missing := h.missing(c.needs); missing != "" {
				t.Errorf("%s/%s would be skipped: %s", ch.number, c.title, missing)
			}
		}
	}
	Run(t, f)
}

// asChild is set for the process that TestMutants starts.
const asChild = "STORETEST_CHILD"

// TestMutants takes one protection at a time from the sound store, and shows
// that each of the cases named for it fails. A test that fails cannot be run in
// this process, so all of them run in a child.
func TestMutants(t *testing.T) {
	t.Parallel()
	if os.Getenv(asChild) != "" {
		for _, m := range mutants() {
			t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
				t.Parallel()
				f := trialFactory(m.fault)
				// A case ends at its first failure: what chance has not brought
				// about yet gets more time, and the others need none.
				f.Soak = 10 * time.Second
				f.only = make(map[string]bool)
				for _, name := range m.caughtBy {
					f.only[name] = true
				}
				Run(t, f)
			})
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// They mostly wait for leases.
	child := exec.CommandContext(t.Context(), self, "-test.run=^TestMutants$", "-test.v", "-test.parallel=8", "-test.timeout=2m")
	child.Env = append(os.Environ(), asChild+"=1")
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	start := time.Now()
	err = child.Run()
	t.Logf("%d mutants in %v: %v", len(mutants()), time.Since(start), err)
	for _, wrong := range []string{"DATA RACE", "panic:", "fatal error:", "test timed out"} {
		if strings.Contains(out.String(), wrong) {
			t.Fatalf("the child ended for another reason (%s):\n%s", wrong, &out)
		}
	}
	failed := make(map[string]bool)
	for _, line := range regexp.MustCompile(`(?m)^\s*--- FAIL: TestMutants/(\S+) `).FindAllStringSubmatch(out.String(), -1) {
		failed[line[1]] = true
	}
	for _, m := range mutants() {
		for _, name := range m.caughtBy {
			if !failed[strings.ReplaceAll(m.name, " ", "_")+"/"+name] {
				t.Errorf("%q passes %s", m.name, name)
			}
		}
	}
}

// TestMutantsNameCases: a name that is no case would select nothing.
func TestMutantsNameCases(t *testing.T) {
	t.Parallel()
	var names []string
	for _, c := range Cases() {
		names = append(names, c.Name())
	}
	caught := make(map[string]bool)
	for _, m := range mutants() {
		if len(m.caughtBy) == 0 {
			t.Errorf("nothing is said to catch %q", m.name)
		}
		for _, name := range m.caughtBy {
			caught[name] = true
			if !slices.Contains(names, name) {
				t.Errorf("%q is said to be caught by %s, which is no case", m.name, name)
			}
		}
	}
	exempt := []string{
		"C15/claims_pass_lookers(case_49)", // its failure is a call that hangs
		"C17/failed_may_go",                // nearly everything is right there
	}
	for _, name := range names {
		if !caught[name] && !slices.Contains(exempt, name) {
			t.Errorf("no mutant shows that %s can fail", name)
		}
	}
}

// TestEveryNumberIsCovered reads the contract itself: a number that is added to
// it needs a case.
func TestEveryNumberIsCovered(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../store.go")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^//\t(C\d+) `).FindAllStringSubmatch(string(source), -1) {
		want = append(want, m[1])
	}
	if len(want) < 18 {
		t.Fatalf("the contract has the numbers %v; the test reads it wrongly", want)
	}
	covered := make(map[string]int)
	titles := make(map[string]bool)
	for _, c := range Cases() {
		covered[c.Number]++
		if titles[c.Name()] {
			t.Errorf("%s is there twice", c.Name())
		}
		titles[c.Name()] = true
		if !slices.Contains(want, c.Number) {
			t.Errorf("%s: the contract has no such number", c.Name())
		}
	}
	for _, number := range want {
		if covered[number] == 0 {
			t.Errorf("%s has no case", number)
		}
	}
}

// TestProductionCases: the cases that a store alone can show are shown.
func TestProductionCases(t *testing.T) {
	t.Parallel()
	by := make(map[int][]string)
	for _, c := range Cases() {
		for _, n := range c.Production {
			by[n] = append(by[n], c.Name())
		}
	}
	for _, n := range []int{1, 2, 3, 4, 6, 7, 9, 10, 11, 15, 16, 17, 23, 24, 25, 29, 35, 37, 47} {
		if len(by[n]) == 0 {
			t.Errorf("case %d of cases.md is not shown", n)
		}
	}
}
