package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

var update = flag.Bool("update", false, "write the golden files")

// asProgram in the environment makes the test binary the program: processes
// that are to be killed are copies of it.
const asProgram = "KAKUTEI_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// patience bounds everything that a test waits for.
const patience = 60 * time.Second

// soon waits until ok.
func soon(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not come about: %s", what)
		}
	}
}

// invoke runs the program to its end, in this process.
func invoke(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // for what serves although it should not
	defer cancel()
	var out, errs bytes.Buffer
	code = run(ctx, args, strings.NewReader(""), &out, &errs, func(string) string { return "" })
	return code, out.String(), errs.String()
}

// watched is an output that may be read while it is written.
type watched struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// served is a proxy that serves: in this process, or in one of its own.
type served struct {
	t              testing.TB
	url            string
	stdout, stderr *watched
	cmd            *exec.Cmd // nil in this process
	term           func()    // SIGTERM, or what it comes to
	code           chan int
}

func newServed(t testing.TB) *served {
	return &served{t: t, stdout: &watched{}, stderr: &watched{}, code: make(chan int, 1)}
}

// serve runs "kakutei proxy" in this process until the test ends.
func serve(t testing.TB, args ...string) *served {
	t.Helper()
	s := newServed(t)
	ctx, cancel := context.WithCancel(context.Background())
	s.term = cancel
	go func() {
		s.code <- run(ctx, proxyArgs(args), strings.NewReader(""), s.stdout, s.stderr, func(string) string { return "" })
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case s.code <- <-s.code:
		case <-time.After(patience):
			t.Error("the proxy does not end")
		}
	})
	return s.ready()
}

// launch runs "kakutei proxy" in a process of its own, which is killed when the
// test ends.
func launch(t testing.TB, args ...string) *served {
	t.Helper()
	return launchWith(t, nil, args...)
}

// launchWith has more in the environment.
func launchWith(t testing.TB, env []string, args ...string) *served {
	t.Helper()
	s := newServed(t)
	s.cmd = exec.Command(os.Args[0], proxyArgs(args)...)
	s.cmd.Env = append(append(os.Environ(), asProgram+"=1"), env...)
	s.cmd.Stdout, s.cmd.Stderr = s.stdout, s.stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.term = func() { s.signal(syscall.SIGTERM) }
	go func() {
		_ = s.cmd.Wait() // the state says it all
		s.code <- s.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		s.code <- <-s.code
		if strings.Contains(s.stderr.String(), "DATA RACE") {
			t.Errorf("a data race in the program:\n%s", s.stderr)
		}
	})
	return s.ready()
}

// proxyArgs adds what all proxies of the tests have.
func proxyArgs(args []string) []string {
	all := []string{"proxy"}
	if !strings.Contains(strings.Join(args, " "), "--listen") {
		all = append(all, "--listen", "127.0.0.1:0")
	}
	return append(all, args...)
}

// ready waits for the line that says where it listens.
func (s *served) ready() *served {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if line, _, ok := strings.Cut(s.stdout.String(), "\n"); ok {
			var found bool
			if s.url, found = strings.CutPrefix(line, "listening on "); !found {
				s.t.Fatalf("the first line is %q", line)
			}
			return s
		}
		select {
		case code := <-s.code:
			s.code <- code
			s.t.Fatalf("the proxy ended with %d:\n%s", code, s.stderr)
		default:
		}
		if time.Now().After(end) {
			s.t.Fatalf("the proxy does not come up:\n%s", s.stderr)
		}
	}
}

func (s *served) signal(sig syscall.Signal) {
	s.t.Helper()
	assert.NoError(s.t, s.cmd.Process.Signal(sig))
}

// kill ends the process as a power cut would.
func (s *served) kill() {
	s.t.Helper()
	s.signal(syscall.SIGKILL)
	s.exit()
}

// exit waits for the end and returns the exit code, -1 for a signal.
func (s *served) exit() int {
	s.t.Helper()
	select {
	case code := <-s.code:
		s.code <- code
		return code
	case <-time.After(patience):
		s.t.Fatalf("the proxy does not end:\n%s", s.stderr)
		return 0
	}
}

// adminURL is where the admin listener is, as the log says.
func (s *served) adminURL() string {
	s.t.Helper()
	var url string
	soon(s.t, "the admin listener is up", func() bool {
		r := bufio.NewScanner(strings.NewReader(s.stderr.String()))
		for r.Scan() {
			if _, rest, ok := strings.Cut(r.Text(), "admin listens\" url="); ok {
				url = strings.TrimSpace(rest)
			}
		}
		return url != ""
	})
	return url
}

// reply is an answer, read to its end.
type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) replayed() bool { return r.header.Get("Idempotent-Replayed") == "true" }

// problem is the name of the problem that the body is about.
func (r reply) problem() string {
	_, after, _ := strings.Cut(r.body, "protocol.md#")
	name, _, _ := strings.Cut(after, `"`)
	return name
}

// direct makes a connection for each request, which net/http then never sends twice.
var direct = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       patience,
}

// ask sends a POST of body to path, with a key unless that is empty. header is
// names and values by turns.
func (s *served) ask(path, key, body string, header ...string) (reply, error) {
	r, err := http.NewRequest(http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	r.Header.Set("X-Account-Id", "acme")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := direct.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b)}, err
}

// post is ask for what must be answered.
func (s *served) post(path, key, body string, header ...string) reply {
	s.t.Helper()
	r, err := s.ask(path, key, body, header...)
	if err != nil {
		s.t.Fatalf("no answer: %v\n%s", err, s.stderr)
	}
	return r
}

// get is a plain GET of any URL.
func get(t testing.TB, url string) reply {
	t.Helper()
	resp, err := direct.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	assert.NoError(t, err)
	return reply{resp.StatusCode, resp.Header, string(b)}
}

func wantReply(t testing.TB, r reply, status int, body string, replayed bool) {
	t.Helper()
	assert.Equal(t, r.status, status, "status")
	assert.Equal(t, r.body, body, "body")
	assert.Equal(t, r.replayed(), replayed, "mark of a replay")
}

func wantRefusal(t testing.TB, r reply, status int, problem string) {
	t.Helper()
	assert.Equal(t, r.status, status, "status")
	assert.Equal(t, r.problem(), problem, "problem")
}

// golden compares text with a file of testdata.
func golden(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (write it with -update)", err)
	}
	if text != string(want) {
		t.Errorf("%s (write it with -update)\n--- got\n%s\n--- want\n%s", path, text, want)
	}
}

// writeFile writes a file of the test's own and returns its path.
func writeFile(t testing.TB, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
