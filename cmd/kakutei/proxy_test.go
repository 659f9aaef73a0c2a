package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"database/sql"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// api is an upstream that counts its runs, by key.
type api struct {
	*httptest.Server
	mu      sync.Mutex
	runs    map[string]int
	attempt map[string]string // the latest, by key
	total   atomic.Int32
	// gate holds up requests to /slow until open is called.
	gate    chan struct{}
	open    func()
	started chan struct{}
}

func newAPI(t testing.TB) *api {
	t.Helper()
	a := &api{runs: map[string]int{}, attempt: map[string]string{}, gate: make(chan struct{}), started: make(chan struct{}, 1000)}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		n := a.total.Add(1)
		key := r.Header.Get("Idempotency-Key")
		a.mu.Lock()
		a.runs[key]++
		a.attempt[key] = r.Header.Get("Kakutei-Attempt")
		a.mu.Unlock()
		switch r.URL.Path {
		case "/slow":
			a.started <- struct{}{}
			select {
			case <-a.gate:
			case <-time.After(patience):
			}
		case "/fail":
			w.WriteHeader(http.StatusInternalServerError)
		}
		fmt.Fprintf(w, "run %d of %s", n, body)
	}))
	a.open = sync.OnceFunc(func() { close(a.gate) })
	t.Cleanup(func() {
		a.open()
		a.Close()
	})
	return a
}

func (a *api) runsOf(key string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runs[key]
}

func (a *api) attemptOf(key string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.attempt[key]
}

func (a *api) awaitStart(t testing.TB) {
	t.Helper()
	select {
	case <-a.started:
	case <-time.After(patience):
		t.Fatal("the upstream was not asked")
	}
}

// sqlite is a --store in a directory of the test's own.
func sqliteIn(t testing.TB) string { return "sqlite:" + filepath.Join(t.TempDir(), "kakutei.db") }

// The command as the documentation has it: port 0, header scope, SQLite.
func TestProxy(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	store := sqliteIn(t)
	args := []string{"--listen", "127.0.0.1:0", "--upstream", up.URL, "--store", store, "--scope", "header:X-Account-Id"}
	s := serve(t, args...)
	assert.True(t, strings.HasPrefix(s.url, "http://127.0.0.1:") && !strings.HasSuffix(s.url, ":0"), "URL: %s", s.url)
	wantReply(t, s.post("/charges", "k", "B"), 200, "run 1 of B", false)
	wantReply(t, s.post("/charges", "k", "B"), 200, "run 1 of B", true)
	wantReply(t, s.post("/charges", `"k"`, "B"), 200, "run 1 of B", true)
	wantRefusal(t, s.post("/charges", "k", "other"), 422, "key-reused")
	wantReply(t, s.post("/charges", "", "B"), 200, "run 2 of B", false)
	wantReply(t, s.post("/charges", "k", "B", "X-Account-Id", "other"), 200, "run 3 of B", false)
	wantRefusal(t, s.post("/charges", "a, b", "B"), 400, "key-malformed")
	wantRefusal(t, s.post("/charges", "k", "B", "X-Account-Id", ""), 400, "scope-missing")
	assert.Equal(t, get(t, s.url+"/charges").body, "run 4 of ", "a GET")
	assert.Equal(t, up.attemptOf("k"), "1", "attempt that the upstream was told")
	// The default recovery is rerun.
	assert.Equal(t, s.post("/fail", "f", "B").status, 500, "status")
	assert.Equal(t, s.post("/fail", "f", "B").status, 500, "status")
	assert.Equal(t, up.runsOf("f"), 2, "runs of what fails")

	s.term()
	assert.Equal(t, s.exit(), exitDone, "exit code")
	assert.Equal(t, s.stdout.String(), "listening on "+s.url+"\n", "standard output")
	// Nothing is lost.
	s = serve(t, args...)
	wantReply(t, s.post("/charges", "k", "B"), 200, "run 1 of B", true)
	wantRefusal(t, s.post("/charges", "k", "other"), 422, "key-reused")
}

// Each flag does what it says.
func TestFlags(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	with := func(flags ...string) *served {
		return serve(t, append([]string{"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "header:X-Account-Id"}, flags...)...)
	}
	s := with("--required", "--strict", "--recovery", "hold", "--max-request-bytes", "10", "--max-response-bytes", "20")
	wantRefusal(t, s.post("/charges", "", "B"), 400, "key-missing")
	wantRefusal(t, s.post("/charges", "bare", "B"), 400, "key-malformed")
	wantRefusal(t, s.post("/charges", `"k1"`, "12345678901"), 413, "request-too-large")
	assert.Equal(t, s.post("/fail", `"k2"`, "B").status, 500, "status")
	wantRefusal(t, s.post("/fail", `"k2"`, "B"), 409, "uncertain")
	assert.Equal(t, s.post("/"+strings.Repeat("x", 30), `"k3"`, "1234567890").status, 200, "status")
	wantReply(t, s.post("/"+strings.Repeat("x", 30), `"k3"`, "1234567890"), 200, "run 2 of 1234567890", true)

	small := with("--max-response-bytes", "5")
	assert.Equal(t, small.post("/charges", "k", "B").status, 200, "status of what is too large to be kept")
	wantRefusal(t, small.post("/charges", "k", "B"), 409, "result-not-retained")

	single := serve(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single")
	first := single.post("/charges", "k", "B", "X-Account-Id", "a")
	wantReply(t, single.post("/charges", "k", "B", "X-Account-Id", "b"), 200, first.body, true)

	shared := sqliteIn(t)
	waits := with("--wait", "30s", "--lease", "20s", "--store", shared)
	answers := make(chan reply, 2)
	for range 2 {
		go func() {
			r, err := waits.ask("/slow", "w", "B")
			assert.NoError(t, err)
			answers <- r
		}()
	}
	up.awaitStart(t)
	time.Sleep(50 * time.Millisecond) // for the other one to come to wait
	r := with("--store", shared, "--lease", "20s").post("/slow", "w", "B")
	wantRefusal(t, r, 409, "in-flight")
	left, err := strconv.Atoi(r.header.Get("Retry-After"))
	assert.True(t, err == nil && left > 10 && left <= 20, "Retry-After is %q, the lease 20 s", r.header.Get("Retry-After"))
	up.open()
	a, b := <-answers, <-answers
	assert.Equal(t, a.body, b.body, "both answers")
	assert.True(t, a.replayed() != b.replayed(), "one of the two is a replay")
	assert.Equal(t, up.runsOf("w"), 1, "runs")
}

// A slow upstream is given up after --timeout.
func TestTimeoutFlag(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	s := serve(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single", "--timeout", "200ms", "--recovery", "hold")
	wantRefusal(t, s.post("/slow", "k", "B"), 504, "upstream-timeout")
	wantRefusal(t, s.post("/slow", "k", "B"), 409, "uncertain")
	assert.Equal(t, up.runsOf("k"), 1, "runs")
}

// --config has routes of their own.
func TestConfigFile(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	var may atomic.Int32
	guard := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Forwarded-Uri") != "/guarded" || r.Header.Get("X-Forwarded-Method") != "POST" {
			t.Errorf("asked about %q", r.Header)
		}
		w.WriteHeader(int(may.Load()))
	}))
	defer guard.Close()
	file := writeFile(t, t.TempDir(), "proxy.yaml", fmt.Sprintf(`
upstream: %s
scope: header:X-Account-Id
store: %s
listen: 127.0.0.1:0
routes:
  - {method: post, path: /fail, recovery: hold, required: true}
  - {path: /guarded, authorize_replay: "%s/may", scope: single}
  - {path: "/tenants/{id}/charges", strict: true}
`, up.URL, sqliteIn(t), guard.URL))
	s := serve(t, "--listen", "127.0.0.1:0", "--config", file)
	wantRefusal(t, s.post("/fail", "", "B"), 400, "key-missing")
	assert.Equal(t, s.post("/fail", "k1", "B").status, 500, "status")
	wantRefusal(t, s.post("/fail", "k1", "B"), 409, "uncertain")
	wantRefusal(t, s.post("/tenants/7/charges", "bare", "B"), 400, "key-malformed")
	assert.Equal(t, s.post("/tenants", "bare", "B").status, 200, "status on another path")
	first := s.post("/guarded", "k2", "B", "X-Account-Id", "a")
	for status, problem := range map[int32]string{401: "unauthenticated", 403: "replay-forbidden", 500: "store-unavailable"} {
		may.Store(status)
		assert.Equal(t, s.post("/guarded", "k2", "B").problem(), problem, "problem")
	}
	may.Store(200)
	wantReply(t, s.post("/guarded", "k2", "B", "X-Account-Id", "b"), 200, first.body, true)
}

// --scope jwt:CLAIM with --jwt-key, as a command.
func TestTokenScope(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	dir := t.TempDir()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	file := writeFile(t, dir, "issuer.pem", string(public))
	sign := func(method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
		s, err := jwt.NewWithClaims(method, claims).SignedString(key)
		assert.NoError(t, err)
		return "Bearer " + s
	}
	s := serve(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "jwt:sub", "--jwt-key", file)
	acme := jwt.MapClaims{"sub": "acme", "iat": time.Now().Unix()}
	wantReply(t, s.post("/charges", "k", "B", "Authorization", sign(jwt.SigningMethodRS256, key, acme)), 200, "run 1 of B", false)
	acme["iat"] = time.Now().Unix() + 1 // case 38: a new token of the same principal
	wantReply(t, s.post("/charges", "k", "B", "Authorization", sign(jwt.SigningMethodRS256, key, acme)), 200, "run 1 of B", true)
	wantReply(t, s.post("/charges", "k", "B", "Authorization", sign(jwt.SigningMethodRS256, key, jwt.MapClaims{"sub": 42})), 200, "run 2 of B", false)
	for _, bad := range []string{
		"", sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, acme), sign(jwt.SigningMethodHS256, public, acme),
		sign(jwt.SigningMethodRS256, key, jwt.MapClaims{"sub": "acme", "exp": time.Now().Add(-time.Minute).Unix()}),
	} {
		wantRefusal(t, s.post("/charges", "k", "B", "Authorization", bad), 401, "unauthenticated")
	}
	wantRefusal(t, s.post("/charges", "k", "B", "Authorization", sign(jwt.SigningMethodRS256, key, jwt.MapClaims{"aud": "x"})), 400, "scope-missing")
	assert.Equal(t, up.runsOf("k"), 2, "runs")

	trusting := serve(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "jwt:sub", "--jwt-unverified")
	wantReply(t, trusting.post("/charges", "k", "B", "Authorization", sign(jwt.SigningMethodHS256, []byte("anybody"), acme)), 200, "run 3 of B", false)
}

// A failure at start is told in one line, with exit code 1.
func TestFailuresAtStart(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	writeFile(t, dir, "text.db", strings.Repeat("this is no database. ", 100))
	damaged := path("damaged.db")
	serveAndStop(t, damaged)
	content, err := os.ReadFile(damaged)
	assert.NoError(t, err)
	copy(content[100:], strings.Repeat("\xff", 3000))
	writeFile(t, dir, "damaged.db", string(content))
	newer := path("newer.db")
	serveAndStop(t, newer)
	db, err := sql.Open("sqlite", newer)
	assert.NoError(t, err)
	_, err = db.Exec(`INSERT INTO idempotency_schema (version_id, is_applied) VALUES (9999, 1)`)
	assert.NoError(t, err)
	assert.NoError(t, db.Close())
	fresh := path("fresh.db")
	for _, tt := range []struct{ store, listen, admin, want string }{
		{fresh, taken.Addr().String(), "", "address already in use"},
		{fresh, "127.0.0.1:0", taken.Addr().String(), "--admin: listen tcp"},
		{path("no/such/folder/k.db"), "127.0.0.1:0", "", "the folder must exist and be writable"},
		{dir, "127.0.0.1:0", "", "the path must not be a folder"},
		{path("text.db"), "127.0.0.1:0", "", "is not a SQLite database"},
		{damaged, "127.0.0.1:0", "", "damaged"},
		{newer, "127.0.0.1:0", "", "written by a newer version"},
	} {
		args := []string{"proxy", "--upstream", "http://127.0.0.1:9", "--scope", "single", "--store", "sqlite:" + tt.store, "--listen", tt.listen, "--admin", tt.admin}
		code, stdout, stderr := invoke(t, args...)
		assert.Equal(t, code, exitNo, "exit code: "+tt.want)
		assert.Equal(t, stdout, "", "standard output")
		assert.True(t, strings.Contains(stderr, tt.want), "%q is not in: %s", tt.want, stderr)
		assert.Equal(t, strings.Count(stderr, "\n"), 1, "lines of "+stderr)
	}
	if _, err := os.Stat(fresh); err == nil {
		t.Error("a database was made although nobody could listen")
	}
	if os.Geteuid() == 0 {
		t.Log("as root everything can be written: not tested")
		return
	}
	assert.NoError(t, os.Chmod(dir, 0o500))
	defer os.Chmod(dir, 0o700)
	code, _, stderr := invoke(t, "proxy", "--upstream", "http://127.0.0.1:9", "--scope", "single", "--listen", "127.0.0.1:0", "--store", "sqlite:"+fresh)
	assert.Equal(t, code, exitNo, "exit code")
	assert.True(t, strings.Contains(stderr, "writ"), "%s", stderr)
}

// serveAndStop leaves a database file at path.
func serveAndStop(t testing.TB, path string) {
	t.Helper()
	s := serve(t, "--upstream", "http://127.0.0.1:9", "--scope", "single", "--store", "sqlite:"+path)
	s.term()
	assert.Equal(t, s.exit(), exitDone, "exit code")
}

// Case 42: another process keeps the database locked: 503, and nothing runs.
func TestStoreLocked(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	store := sqliteIn(t)
	s := serve(t, "--upstream", up.URL, "--store", store, "--scope", "single")
	db, err := sql.Open("sqlite", strings.TrimPrefix(store, "sqlite:"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	assert.NoError(t, err)
	r := s.post("/charges", "k", "B")
	wantRefusal(t, r, 503, "store-unavailable")
	assert.Equal(t, r.header.Get("Retry-After"), "1", "Retry-After")
	assert.Equal(t, int(up.total.Load()), 0, "runs")
	assert.True(t, !strings.Contains(r.body, "SQLITE") && !strings.Contains(r.body, "locked"), "a driver's text reached the client: %s", r.body)
	_, err = conn.ExecContext(t.Context(), "ROLLBACK")
	assert.NoError(t, err)
	wantReply(t, s.post("/charges", "k", "B"), 200, "run 1 of B", false)
}

// Nothing goes through a proxy of the environment, which would see credentials.
func TestEnvironmentProxyIsNotUsed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	up := newAPI(t)
	s := launchWith(t, []string{"HTTP_PROXY=" + other.URL, "http_proxy=" + other.URL},
		"--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single", "--authorize-replay", "http://nowhere.invalid/may")
	assert.Equal(t, s.post("/charges", "k", "B").status, 200, "status")
	wantRefusal(t, s.post("/charges", "k", "B"), 503, "store-unavailable")
	away := launchWith(t, []string{"HTTP_PROXY=" + other.URL, "http_proxy=" + other.URL},
		"--upstream", "http://nowhere.invalid", "--store", sqliteIn(t), "--scope", "single")
	wantRefusal(t, away.post("/charges", "k", "B"), 503, "upstream-unreachable")
	assert.Equal(t, int(asked.Load()), 0, "requests that went through the proxy of the environment")
}

// The listener takes HTTP/2 without TLS, by prior knowledge, and drains it.
func TestHTTP2(t *testing.T) {
	t.Parallel()
	up := newAPI(t)
	s := launch(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single")
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: patience}
	ask := func(path, key string) (reply, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path, strings.NewReader("B"))
		if err != nil {
			return reply{}, err
		}
		r.Header.Set("Idempotency-Key", key)
		resp, err := client.Do(r)
		if err != nil {
			return reply{}, err
		}
		defer resp.Body.Close()
		assert.Equal(t, resp.Proto, "HTTP/2.0", "protocol")
		body, err := io.ReadAll(resp.Body)
		return reply{resp.StatusCode, resp.Header, string(body)}, err
	}
	for _, replayed := range []bool{false, true} {
		r, err := ask("/charges", "k")
		assert.NoError(t, err)
		wantReply(t, r, 200, "run 1 of B", replayed)
	}
	wantReply(t, s.post("/charges", "k", "B"), 200, "run 1 of B", true)
	running := make(chan reply, 1)
	go func() {
		r, err := ask("/slow", "slow")
		assert.NoError(t, err)
		running <- r
	}()
	up.awaitStart(t)
	s.term()
	time.Sleep(100 * time.Millisecond) // the process would be gone by now
	up.open()
	wantReply(t, <-running, 200, "run 2 of B", false)
	assert.Equal(t, s.exit(), exitDone, "exit code")
}

// A WebSocket goes through the program, and does not hold up its end.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		io.Copy(conn, rw)
	}))
	defer up.Close()
	s := launch(t, "--upstream", up.URL, "--store", sqliteIn(t), "--scope", "single", "--required")
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	assert.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: api\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	assert.Equal(t, resp.StatusCode, 101, "status")
	for _, frame := range []string{"\x81\x05hello", "\x00\xff"} {
		fmt.Fprint(conn, frame)
		got := make([]byte, len(frame))
		_, err := io.ReadFull(r, got)
		assert.NoError(t, err)
		assert.Equal(t, string(got), frame, "through the tunnel")
	}
	s.term()
	assert.Equal(t, s.exit(), exitDone, "exit code")
}
