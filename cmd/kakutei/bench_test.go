package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei/internal/assert"
)

func TestBenchCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := "sqlite:" + filepath.Join(dir, "x.db")
	short := []string{"bench", "--store", store, "--callers", "1,2", "--rounds", "1", "--seconds", "0.02"}
	bench := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		code = run(t.Context(), args, nil, &out, &errs, func(string) string { return "" })
		return code, out.String(), errs.String()
	}

	code, stdout, stderr := bench(short...)
	assert.Equal(t, code, exitDone, "exit code")
	for _, want := range []string{"First runs", "Replays", "Transactional mode", "kakutei, from memory", "plain, one connection", "p99"} {
		assert.True(t, strings.Contains(stdout, want), "%q is missing in:\n%s", want, stdout)
	}
	assert.True(t, strings.Contains(stderr, "first, 2 callers"), "no progress:\n%s", stderr)

	code, stdout, _ = bench(append(short, "--cases", "first", "--json")...)
	assert.Equal(t, code, exitDone, "exit code")
	var report struct {
		Measurements []struct {
			Case    string
			Callers int
			Sides   []struct {
				Name      string
				PerSecond float64 `json:"per_second"`
				Ratio     float64
			}
		}
	}
	assert.NoError(t, json.Unmarshal([]byte(stdout), &report))
	assert.Equal(t, len(report.Measurements), 2, "measurements")

	code, stdout, _ = bench("bench", "--store", store, "--distinct", "50", "--callers", "4", "--json")
	var distinct struct{ Samples []struct{ Keys int } }
	assert.True(t, code == exitDone || code == exitNo, "exit code %d", code) // other tests share the heap
	assert.NoError(t, json.Unmarshal([]byte(stdout), &distinct))
	assert.Equal(t, len(distinct.Samples), 11, "samples")

	for _, args := range [][]string{
		{"--callers", "0"},
		{"--callers", "many"},
		{"--rounds", "0"},
		{"--seconds", "0"},
		{"--cases", "second"},
		{"--distinct", "-1"},
		{"--store", "mongodb://x"},
		{"--store", "sqlite:" + filepath.Join(dir, "missing", "x.db")},
		{"--unknown"},
		{"argument"},
	} {
		code, stdout, stderr := bench(append([]string{"bench"}, args...)...)
		assert.Equal(t, code, exitUsage, "exit code of "+strings.Join(args, " "))
		assert.Equal(t, stdout, "", "output of "+strings.Join(args, " "))
		assert.True(t, strings.HasPrefix(stderr, "kakutei: "), "%v: %q", args, stderr)
	}

	left, err := os.ReadDir(dir)
	assert.NoError(t, err)
	assert.Equal(t, len(left), 0, "files that are left")
}
