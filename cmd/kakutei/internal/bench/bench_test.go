package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

func options(progress *bytes.Buffer, cases ...string) Options {
	return Options{Callers: []int{1, 4}, Rounds: 2, RunTime: 30 * time.Millisecond, Cases: cases, Progress: progress}
}

// sqliteIn returns a database in a folder of the test's, which must be empty
// again when it is closed.
func sqliteIn(t *testing.T) Database {
	t.Helper()
	dir := t.TempDir()
	db, err := Open("sqlite:" + dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		assert.NoError(t, db.Close())
		left, err := os.ReadDir(dir)
		assert.NoError(t, err)
		assert.Equal(t, len(left), 0, "files that are left")
	})
	return db
}

// Every case runs on SQLite, does its work right, and leaves nothing.
func TestRun(t *testing.T) {
	t.Parallel()
	db := sqliteIn(t)
	var progress bytes.Buffer
	r, err := Run(t.Context(), db, options(&progress, CaseNames()...))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	assert.NoError(t, r.WriteText(&text))
	t.Logf("%s%s", progress.String(), text.String())
	assert.True(t, !r.Failed(), "it failed")
	want := map[string][]string{
		caseFirst:         {"plain", "plain, one connection", "kakutei"},
		caseReplay:        {"plain", "kakutei, from the store", "kakutei, from memory"},
		caseTransactional: {"plain", "plain, one connection", "kakutei"},
	}
	assert.Equal(t, len(r.Measurements), 6, "measurements")
	for _, m := range r.Measurements {
		var names []string
		for _, s := range m.Sides {
			names = append(names, s.Name)
			assert.Equal(t, len(s.Rounds), 2, "rounds")
			assert.True(t, s.Operations > 0, "%s, %s did nothing", m.Case, s.Name)
			assert.True(t, s.P50Micros <= s.P99Micros && s.P99Micros <= s.MaxMicros, "%s, %s: the latencies are out of order: %+v", m.Case, s.Name, s)
		}
		expected := want[m.Case]
		if m.Callers == 1 {
			expected = slices.DeleteFunc(slices.Clone(expected), func(s string) bool { return s == "plain, one connection" })
		}
		assert.True(t, slices.Equal(names, expected), "%s, %d callers: the sides are %q", m.Case, m.Callers, names)
	}
	assert.True(t, strings.Contains(text.String(), "no errors; the databases held what was done"), "the text does not say that all is well")
	assert.True(t, !strings.ContainsAny(progress.String(), "\r\x1b"), "the progress moves the cursor, and this is no terminal")
	assert.Equal(t, strings.Count(progress.String(), "\n"), 2+6, "lines of progress")

	var js bytes.Buffer
	assert.NoError(t, WriteJSON(&js, r))
	var back Report
	assert.NoError(t, json.Unmarshal(js.Bytes(), &back))
	assert.Equal(t, len(back.Measurements), 6, "measurements in the JSON")
}

// brokenPlain is the plain way with a fault.
type brokenPlain struct {
	Plain
	forget bool // says it did, and did not
	again  bool // runs a key again that has a result
	every  int64
	calls  atomic.Int64
	fired  *atomic.Int64
}

var errBroken = errors.New("out of order")

func (p *brokenPlain) Once(ctx context.Context, caller int, key string, hash []byte, fn func() ([]byte, error)) ([]byte, bool, error) {
	n := p.calls.Add(1)
	switch {
	case p.forget:
		p.fired.Add(1)
		result, err := fn()
		return result, false, err
	case p.again:
		p.fired.Add(1)
		result, err := fn()
		return result, false, err
	case p.every > 0 && n%p.every == 0:
		p.fired.Add(1)
		return nil, false, errBroken
	}
	return p.Plain.Once(ctx, caller, key, hash, fn)
}

func (p *brokenPlain) Business(ctx context.Context, caller int, ref string, account int) error {
	if p.forget {
		p.fired.Add(1)
		return nil
	}
	return p.Plain.Business(ctx, caller, ref, account)
}

// brokenProtected is Kakutei's side with a database that lost something.
type brokenProtected struct {
	Protected
	fired *atomic.Int64
}

func (p *brokenProtected) Counts(ctx context.Context) (Counts, error) {
	c, err := p.Protected.Counts(ctx)
	p.fired.Add(1)
	c.Settled--
	return c, err
}

type brokenDatabase struct {
	Database
	plain     func(Plain) Plain
	protected func(Protected) Protected
}

func (d brokenDatabase) PlainWays() []PlainWay {
	ways := d.Database.PlainWays()[:1]
	open := ways[0].Open
	ways[0].Open = func(ctx context.Context, callers int) (Plain, error) {
		p, err := open(ctx, callers)
		if err == nil && d.plain != nil {
			p = d.plain(p)
		}
		return p, err
	}
	return ways
}

func (d brokenDatabase) Protected(ctx context.Context) (Protected, error) {
	p, err := d.Database.Protected(ctx)
	if err == nil && d.protected != nil {
		p = d.protected(p)
	}
	return p, err
}

// A side that does not do what it says is found out, whichever it is.
func TestWrongIsFound(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		name, of  string
		plain     func(*atomic.Int64) func(Plain) Plain
		protected func(*atomic.Int64) func(Protected) Protected
	}{
		{name: "plain forgets first runs", of: caseFirst, plain: func(fired *atomic.Int64) func(Plain) Plain {
			return func(p Plain) Plain { return &brokenPlain{Plain: p, forget: true, fired: fired} }
		}},
		{name: "plain forgets the business", of: caseTransactional, plain: func(fired *atomic.Int64) func(Plain) Plain {
			return func(p Plain) Plain { return &brokenPlain{Plain: p, forget: true, fired: fired} }
		}},
		{name: "kakutei's database lost a result", of: caseFirst, protected: lossy},
		{name: "kakutei's database lost a replay", of: caseReplay, protected: lossy},
		{name: "kakutei's database lost a transfer's result", of: caseTransactional, protected: lossy},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var fired atomic.Int64
			db := brokenDatabase{Database: sqliteIn(t)}
			if x.plain != nil {
				db.plain = x.plain(&fired)
			}
			if x.protected != nil {
				db.protected = x.protected(&fired)
			}
			r, err := Run(t.Context(), db, options(new(bytes.Buffer), x.of))
			if err != nil {
				t.Fatal(err)
			}
			assert.True(t, fired.Load() > 0, "the fault did not fire")
			assert.True(t, r.Failed(), "it was not found")
			var text bytes.Buffer
			assert.NoError(t, r.WriteText(&text))
			assert.True(t, strings.Contains(text.String(), "WRONG: "), "the text does not say so:\n%s", text.String())
		})
	}
}

func lossy(fired *atomic.Int64) func(Protected) Protected {
	return func(p Protected) Protected { return &brokenProtected{p, fired} }
}

// Errors are counted and told. The plain way's do not fail the run.
func TestErrorsAreCounted(t *testing.T) {
	t.Parallel()
	var fired atomic.Int64
	db := brokenDatabase{Database: sqliteIn(t), plain: func(p Plain) Plain {
		return &brokenPlain{Plain: p, every: 3, fired: &fired}
	}}
	r, err := Run(t.Context(), db, options(new(bytes.Buffer), caseFirst))
	if err != nil {
		t.Fatal(err)
	}
	assert.True(t, fired.Load() > 0, "the fault did not fire")
	var counted int64
	for _, m := range r.Measurements {
		counted += m.Sides[0].Errors
		assert.Equal(t, m.Sides[0].FirstError, errBroken.Error(), "first error")
		assert.Equal(t, m.Sides[0].Wrong, "", "verification")
	}
	assert.Equal(t, counted, fired.Load(), "errors")
	assert.True(t, !r.Failed(), "errors of the plain way fail the run")
	var text bytes.Buffer
	assert.NoError(t, r.WriteText(&text))
	assert.True(t, strings.Contains(text.String(), errBroken.Error()), "the text does not name the error:\n%s", text.String())
}

// A replay that runs is an error of its operation.
func TestReplayThatRuns(t *testing.T) {
	t.Parallel()
	var fired atomic.Int64
	db := brokenDatabase{Database: sqliteIn(t), plain: func(p Plain) Plain {
		return &brokenPlain{Plain: p, again: true, fired: &fired}
	}}
	r, err := Run(t.Context(), db, options(new(bytes.Buffer), caseReplay))
	if err != nil {
		t.Fatal(err)
	}
	s := r.Measurements[0].Sides[0]
	assert.True(t, fired.Load() > 0, "the fault did not fire")
	assert.Equal(t, s.Operations, 0, "replays")
	assert.Equal(t, s.FirstError, errNotReplayed.Error(), "first error")
}

// Kakutei's errors fail the run.
func TestKakuteiErrorsFail(t *testing.T) {
	t.Parallel()
	r := &Report{Measurements: []Measurement{{Sides: []Side{{Errors: 5}, {Errors: 0, kakutei: true}}}}}
	assert.True(t, !r.Failed(), "errors of the plain way alone")
	r.Measurements[0].Sides[1].Errors = 1
	assert.True(t, r.Failed(), "an error of Kakutei's")
}

// An interrupted run ends soon, says so, and leaves nothing.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	db := sqliteIn(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	o := options(new(bytes.Buffer), caseFirst)
	o.RunTime = time.Hour
	time.AfterFunc(50*time.Millisecond, func() { cancel(cause) })
	_, err := Run(ctx, db, o)
	assert.ErrorIs(t, err, cause)
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, url := range []string{"postgres://localhost/x", "sqlite:", "sqlite", "sqlite:" + filepath.Join(dir, "missing", "x.db")} {
		_, err := Open(url)
		assert.ErrorIs(t, err, ErrStore)
	}
	// The named file is left alone, whether it exists or not.
	path := filepath.Join(dir, "x.db")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, filepath.Join(dir, "new.db")} {
		db, err := Open("sqlite:" + path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Run(t.Context(), db, options(new(bytes.Buffer), caseFirst))
		assert.NoError(t, err)
		assert.NoError(t, db.Close())
	}
	left, err := os.ReadDir(dir)
	assert.NoError(t, err)
	assert.Equal(t, len(left), 1, "files")
	content, err := os.ReadFile(path)
	assert.NoError(t, err)
	assert.Equal(t, string(content), "mine", "the file")
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := options(nil, caseFirst)
	assert.NoError(t, good.Validate())
	for name, spoil := range map[string]func(*Options){
		"no callers":       func(o *Options) { o.Callers = nil },
		"zero callers":     func(o *Options) { o.Callers = []int{1, 0} },
		"too many callers": func(o *Options) { o.Callers = []int{maxCallers + 1} },
		"no rounds":        func(o *Options) { o.Rounds = 0 },
		"no time":          func(o *Options) { o.RunTime = 0 },
		"no case":          func(o *Options) { o.Cases = nil },
		"unknown case":     func(o *Options) { o.Cases = []string{"second"} },
	} {
		o := good
		spoil(&o)
		assert.True(t, o.Validate() != nil, "%s is accepted", name)
	}
}
