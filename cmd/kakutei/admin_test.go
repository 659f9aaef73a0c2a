package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// counters reads the metrics of the program's own.
func counters(t testing.TB, admin string) map[string]float64 {
	t.Helper()
	r := get(t, admin+"/metrics")
	assert.Equal(t, r.status, 200, "/metrics")
	out := map[string]float64{}
	for lines := bufio.NewScanner(strings.NewReader(r.body)); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || !strings.HasPrefix(name, "kakutei_") {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		assert.NoError(t, err)
		out[name] = v
	}
	return out
}

// Every counter is there from the start, and counts what happens and nothing else.
func TestMetrics(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	s := serve(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "header:X-Account-Id", "--admin", "127.0.0.1:0", "--config",
		writeFile(t, t.TempDir(), "c.yaml", "routes:\n  - {path: /fail, recovery: hold}\n"))
	admin := s.adminURL()
	before := counters(t, admin)
	kinds := []string{"acquired", "takeover", "replay", "mismatch", "in_flight", "uncertain", "succeeded", "failed", "held", "lease_lost", "unrecorded", "unavailable", "corrupt", "conflict"}
	for _, kind := range kinds {
		v, ok := before[counter(kind)]
		assert.True(t, ok && v == 0, "%s at the start: %v, there: %v", kind, v, ok)
	}
	var slow = make(chan reply, 1)
	go func() { slow <- s.post("/slow", "slow", "B") }()
	up.awaitStart(t)
	for _, step := range []struct {
		do   func() reply
		want string // the kinds that grow by one
	}{
		{func() reply { return s.post("/charges", "k", "B") }, "acquired succeeded"},
		{func() reply { return s.post("/charges", "k", "B") }, "replay"},
		{func() reply { return s.post("/charges", "k", "other") }, "mismatch"},
		{func() reply { return s.post("/slow", "slow", "B") }, "in_flight"},
		{func() reply { return s.post("/fail", "f", "B") }, "acquired held"},
		{func() reply { return s.post("/fail", "f", "B") }, "uncertain"},
		{func() reply { return s.post("/charges", "", "B") }, ""},
		{func() reply { return s.post("/charges", "a, b", "B") }, ""},
		{func() reply { return get(t, s.url+"/charges") }, ""},
		{func() reply { up.open(); return <-slow }, "succeeded"},
	} {
		before := counters(t, admin)
		r := step.do()
		after := counters(t, admin)
		for _, kind := range kinds {
			want := 0.0
			if strings.Contains(" "+step.want+" ", " "+kind+" ") {
				want = 1
			}
			assert.Equal(t, after[counter(kind)]-before[counter(kind)], want, fmt.Sprintf("growth of %s after status %d", kind, r.status))
		}
	}
	end := counters(t, admin)
	assert.Equal(t, end[`kakutei_run_seconds_count{kind="succeeded"}`], 2, "runs that succeeded")
	assert.Equal(t, end[`kakutei_run_seconds_count{kind="held"}`], 1, "runs that were held")
	assert.True(t, end[`kakutei_run_seconds_sum{kind="succeeded"}`] > 0, "time of the runs")
	text := get(t, admin+"/metrics").body
	assert.True(t, strings.Contains(text, "go_goroutines ") && strings.Contains(text, "process_cpu_seconds_total "), "the process is not measured")
	assert.True(t, !strings.Contains(text, "acme"), "a tenant stands in the metrics")
}

func counter(kind string) string { return fmt.Sprintf("kakutei_events_total{kind=%q}", kind) }

// The admin listener answers reads alone, and what is behind it is not reachable
// through the proxy.
func TestAdmin(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	s := serve(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single", "--admin", "127.0.0.1:0")
	admin := s.adminURL()
	assert.Equal(t, get(t, admin+"/healthz").body, "ok\n", "/healthz")
	assert.Equal(t, get(t, admin+"/readyz").body, "ready\n", "/readyz")
	assert.Equal(t, get(t, admin+"/").status, 404, "another path")
	resp, err := http.Post(admin+"/metrics", "text/plain", nil)
	if assert.NoError(t, err) {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		assert.Equal(t, resp.StatusCode, 405, "POST")
	}
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		assert.True(t, strings.HasPrefix(get(t, s.url+path).body, "run "), "%s through the proxy is not the upstream's", path)
	}
}
