package main

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// SIGTERM: what runs ends and is answered, new connections are refused, /readyz
// says no meanwhile, and the exit code is 0. An interrupt is the same.
func TestDrain(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		up := newAPI(t)
		args := []string{"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single", "--admin", "127.0.0.1:0"}
		s := launch(t, args...)
		admin := s.adminURL()
		assert.Equal(t, get(t, admin+"/readyz").status, 200, "/readyz")
		running := make(chan reply, 2)
		for _, key := range []string{"k", ""} { // with a key and without
			go func() { running <- s.post("/slow", key, "B") }()
			up.awaitStart(t)
		}
		s.signal(sig)
		soon(t, "/readyz says no", func() bool { return get(t, admin+"/readyz").status == http.StatusServiceUnavailable })
		assert.Equal(t, get(t, admin+"/healthz").status, 200, "/healthz during the drain")
		soon(t, "new connections are refused", func() bool {
			conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
			if err == nil {
				conn.Close()
			}
			return err != nil
		})
		up.open()
		for range 2 {
			r := <-running
			assert.Equal(t, r.status, 200, "status of what ran")
			assert.True(t, strings.HasPrefix(r.body, "run "), "body: %s", r.body)
		}
		assert.Equal(t, s.exit(), exitDone, "exit code")
		s = launch(t, args...)
		assert.True(t, s.post("/slow", "k", "B").replayed(), "what ended in the drain is not replayed")
		assert.Equal(t, up.runsOf("k"), 1, "runs")
	}
}

// Case 20 on shutdown: the client has left, and what it asked for is finished
// before the process ends.
func TestDrainWithoutClient(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	args := []string{"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single"}
	s := launch(t, args...)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /slow HTTP/1.1\r\nHost: api\r\nIdempotency-Key: k\r\nContent-Length: 1\r\n\r\nB")
	up.awaitStart(t)
	conn.Close()
	s.term()
	time.Sleep(100 * time.Millisecond) // the process would be gone by now
	up.open()
	assert.Equal(t, s.exit(), exitDone, "exit code")
	s = launch(t, args...)
	wantReply(t, s.post("/slow", "k", "B"), 200, "run 1 of B", true)
}

// The time for the drain is over: exit code 1 and a message, not much later than
// that; and the key is not lost with it.
func TestDrainTimeOver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		recovery, drain string
		atMost          time.Duration
	}{{"rerun", "3s", 5500 * time.Millisecond}, {"hold", "1s", 5 * time.Second}, {"rerun", "0s", 5 * time.Second}} {
		t.Run(tt.recovery+tt.drain, func(t *testing.T) {
			t.Parallel()
			up := newAPI(t)
			args := []string{"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single", "--recovery", tt.recovery, "--drain", tt.drain, "--lease", "1s"}
			s := launch(t, args...)
			running := make(chan error, 1)
			go func() {
				r, err := s.ask("/slow", "k", "B")
				if err == nil && r.status < 500 {
					err = fmt.Errorf("an answer with status %d", r.status)
					t.Error(err)
				}
				running <- err
			}()
			up.awaitStart(t)
			start := time.Now()
			s.term()
			assert.Equal(t, s.exit(), exitNo, "exit code")
			assert.True(t, time.Since(start) < tt.atMost, "it took %v to end", time.Since(start))
			last := lastLine(s.stderr.String())
			assert.True(t, strings.HasPrefix(last, "kakutei: requests were still running after "+tt.drain), "the last line of standard error: %q", last)
			<-running
			s = launch(t, args...)
			up.open()
			var r reply
			soon(t, "the key recovers", func() bool {
				r = s.post("/slow", "k", "B")
				return r.problem() != "in-flight"
			})
			if tt.recovery == "hold" {
				wantRefusal(t, r, 409, "uncertain")
				assert.Equal(t, up.runsOf("k"), 1, "runs")
				return
			}
			wantReply(t, r, 200, "run 2 of B", false)
			assert.Equal(t, up.attemptOf("k"), "2", "attempt that the upstream was told")
		})
	}
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// Idle connections do not hold up the end, whether they have been used or not.
func TestDrainWithIdleConnections(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	s := launch(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single")
	kept := &http.Client{Transport: &http.Transport{}}
	resp, err := kept.Get(s.url)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	start := time.Now()
	s.term()
	assert.Equal(t, s.exit(), exitDone, "exit code")
	assert.True(t, time.Since(start) < 10*time.Second, "it took %v", time.Since(start))
}
