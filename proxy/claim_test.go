package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/memstore"
	"github.com/kakutei-go/kakutei/proxy"
)

// Case 1, within one process; the program's tests have two.
func TestOneRunForAllCallers(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	const keys, callers = 10, 20
	var wg sync.WaitGroup
	var firsts atomic.Int32
	for k := range keys {
		for range callers {
			wg.Go(func() {
				a := f.send(call{key: fmt.Sprintf("k%d", k), body: "{}"})
				switch {
				case a.status == 201 && a.header.Get("Idempotent-Replayed") == "":
					firsts.Add(1)
				case a.status == 201, a.status == 409:
				default:
					t.Errorf("status %d: %s", a.status, a.body)
				}
			})
		}
	}
	wg.Wait()
	assert.Equal(t, firsts.Load(), keys, "answers that are no replays")
	up.wantRuns(t, keys)
	seen := map[string]bool{}
	for _, r := range up.all() {
		key := r.header.Get("Idempotency-Key")
		assert.True(t, !seen[key], "%s ran twice", key)
		assert.Equal(t, r.header.Get(proxy.AttemptHeader), "1", "attempt number")
		seen[key] = true
	}
}

// Case 6: the same key with two bodies at once: one runs, the other is refused.
func TestTwoBodiesAtOnce(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(5 * time.Millisecond)
		io.Copy(w, r.Body)
	})
	f := newFront(t, up.URL, setup{})
	for i := range 20 {
		key := fmt.Sprintf("k%d", i)
		a, b := f.start(call{key: key, body: "one"}), f.start(call{key: key, body: "two"})
		got := []answer{await(t, a), await(t, b)}
		if got[0].status != 200 {
			got[0], got[1] = got[1], got[0]
		}
		assert.Equal(t, got[0].status, 200, "status of the winner")
		wantProblem(t, got[1], 422, "key-reused")
		assert.Equal(t, string(up.last(t).body), got[0].body, "the only body that the upstream got")
		up.wantRuns(t, i+1)
	}
}

// Case 7: while a request is in flight, a duplicate gets 409 each time and
// another request with its key 422; none of them changes the record.
func TestDuplicatesInFlight(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		g.pass()
		w.WriteHeader(201)
	})
	f := newFront(t, up.URL, setup{})
	first := f.start(call{key: "k", body: "B"})
	g.awaitStart(t)
	before := f.record("k")
	for range 3 {
		a := f.send(call{key: "k", body: "B"})
		wantProblem(t, a, 409, "in-flight")
		assert.True(t, a.header.Get("Retry-After") == "29" || a.header.Get("Retry-After") == "30", "Retry-After is %q, the lease 30 s", a.header.Get("Retry-After"))
		a = f.send(call{key: "k", body: "B'"})
		wantProblem(t, a, 422, "key-reused")
		assert.Equal(t, a.header.Get("Retry-After"), "", "Retry-After of a refusal for good")
	}
	after := f.record("k")
	assert.Equal(t, after.Owner, before.Owner, "owner")
	assert.Equal(t, after.Attempt, before.Attempt, "attempt")
	assert.Equal(t, after.Status, kakutei.StatusProcessing, "status")
	g.open()
	wantFirst(t, await(t, first), 201, "")
	wantReplay(t, f.send(call{key: "k", body: "B"}), 201, "")
	wantProblem(t, f.send(call{key: "k", body: "B'"}), 422, "key-reused")
	up.wantRuns(t, 1)
}

// A duplicate may wait for the answer: as long as the route says, or as the
// client prefers.
func TestDuplicateWaits(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		g.pass()
		w.WriteHeader(201)
	})
	f := newFront(t, up.URL, setup{})
	first := f.start(call{key: "k"})
	g.awaitStart(t)
	waiting := f.start(call{key: "k"}.with("Prefer", "respond-async, wait=20"))
	start := time.Now()
	wantProblem(t, f.send(call{key: "k"}.with("Prefer", "wait=1")), 409, "in-flight")
	assert.True(t, time.Since(start) >= time.Second, "it waited for %v", time.Since(start))
	g.open()
	wantReplay(t, await(t, waiting), 201, "")
	wantFirst(t, await(t, first), 201, "")
	up.wantRuns(t, 1)
}

// Case 20: the client has left before the upstream answers: the answer is
// recorded all the same, and the retry gets it.
func TestClientLeaves(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		g.pass()
		if r.Context().Err() != nil {
			t.Error("the upstream was cut off with the client")
		}
		w.WriteHeader(201)
		io.WriteString(w, "charged")
	})
	f := newFront(t, up.URL, setup{})
	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := do(plainClient, call{key: "k", body: "{}"}.request(t, f.url).WithContext(ctx))
		left <- err
	}()
	g.awaitStart(t)
	leave()
	assert.ErrorIs(t, <-left, context.Canceled)
	time.Sleep(20 * time.Millisecond) // for the proxy to notice
	wantProblem(t, f.send(call{key: "k", body: "{}"}), 409, "in-flight")
	g.open()
	eventually(t, "the answer is recorded", func() bool { return f.status("k") == kakutei.StatusSucceeded })
	wantReplay(t, f.send(call{key: "k", body: "{}"}), 201, "charged")
	up.wantRuns(t, 1)
}

// Case 37: keys belong to a tenant. Nothing of one is visible to another.
func TestTenants(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Account-Id") == "slow" {
			g.pass()
		}
		io.WriteString(w, "for "+r.Header.Get("X-Account-Id"))
	})
	f := newFront(t, up.URL, setup{})
	slow := f.start(call{key: "k", account: "slow"})
	g.awaitStart(t)
	for _, account := range []string{"acme", "Acme", "acme ", "other", "acme/k"} {
		r := call{key: "k", account: account, body: account}
		if account == "acme " { // trimmed on the way: the same as "acme"
			wantProblem(t, f.send(r), 422, "key-reused")
			continue
		}
		wantFirst(t, f.send(r), 200, "for "+account)
		wantReplay(t, f.send(r), 200, "for "+account)
	}
	g.open()
	wantFirst(t, await(t, slow), 200, "for slow")
}

// Case 38: what a client says under the names of the proxy's own headers is
// ignored: the attempt number that the upstream gets is the proxy's.
func TestInternalHeadersOfClientsAreIgnored(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	forged := func(c call) call {
		return c.with("Idempotent-Replayed", "true").with("Idempotent-Unrecorded", "true").with(proxy.AttemptHeader, "99").
			with(proxy.AttemptHeader, "100")
	}
	wantFirst(t, f.send(forged(call{key: "k"})), 201, "run 1")
	assert.Equal(t, fmt.Sprint(up.last(t).header[proxy.AttemptHeader]), "[1]", "attempt at the upstream")
	wantReplay(t, f.send(forged(call{key: "k"})), 201, "run 1")
	wantReplay(t, f.send(call{key: "k"}), 201, "run 1")
	for _, method := range []string{"POST", "GET", "PUT", "OPTIONS"} {
		f.send(forged(call{method: method}))
		assert.Equal(t, len(up.last(t).header[proxy.AttemptHeader]), 0, "attempt at the upstream of a "+method+" without a key")
	}
	a := sendRaw(t, f.addr, "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k2\r\nkakutei-ATTEMPT: 7\r\nConnection: Kakutei-Attempt\r\nContent-Length: 0\r\n\r\n")
	assert.Equal(t, a.status, 201, "status")
	assert.Equal(t, fmt.Sprint(up.last(t).header[proxy.AttemptHeader]), "[1]", "attempt at the upstream")
}

// A client may name headers in Connection to have them cut off on the way. Not
// the key: the upstream would take the request for one without.
func TestConnectionCannotCutTheKey(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	for i, line := range []string{"Idempotency-Key", "close, idempotency-key", "Idempotency-Key, Kakutei-Attempt"} {
		key := fmt.Sprintf("k%d", i)
		raw := "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: " + key + "\r\nConnection: " + line + "\r\nContent-Length: 0\r\n\r\n"
		wantFirst(t, sendRaw(t, f.addr, raw), 201, fmt.Sprintf("run %d", i+1))
		assert.Equal(t, fmt.Sprint(up.last(t).header["Idempotency-Key"]), "["+key+"]", "key at the upstream")
		assert.Equal(t, fmt.Sprint(up.last(t).header[proxy.AttemptHeader]), "[1]", "attempt at the upstream")
		wantReplay(t, f.send(call{key: key}), 201, fmt.Sprintf("run %d", i+1))
	}
	sendRaw(t, f.addr, "POST /charges HTTP/1.1\r\nHost: api\r\nX-Trace: 7\r\nConnection: X-Trace\r\nContent-Length: 0\r\n\r\n")
	assert.Equal(t, up.last(t).header.Get("X-Trace"), "", "another header named in Connection")
}

// faulty is a store that is away while it is told to.
type faulty struct {
	kakutei.Store
	mu             sync.Mutex
	claims, settle bool
	fired          atomic.Int32
}

var errAway = errors.New("the disk is on fire")

func (s *faulty) set(claims, settle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims, s.settle = claims, settle
}

func (s *faulty) fails(what *bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if *what {
		s.fired.Add(1)
	}
	return *what
}

func (s *faulty) Claim(ctx context.Context, c []kakutei.Claim) ([]kakutei.Decision, error) {
	if s.fails(&s.claims) {
		return nil, errAway
	}
	return s.Store.Claim(ctx, c)
}

func (s *faulty) Settle(ctx context.Context, c []kakutei.Settlement) ([]error, error) {
	if s.fails(&s.settle) {
		return nil, errAway
	}
	return s.Store.Settle(ctx, c)
}

// Case 42: the store is away before the claim: 503, and the upstream is not asked.
func TestStoreAwayBeforeTheClaim(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	store := &faulty{Store: memstore.New()}
	f := newFront(t, up.URL, setup{store: store, engine: kakutei.Options{StoreTimeout: 100 * time.Millisecond}})
	store.set(true, false)
	a := f.send(call{key: "k"})
	wantProblem(t, a, 503, "store-unavailable")
	assert.Equal(t, a.header.Get("Retry-After"), "1", "Retry-After")
	assert.True(t, store.fired.Load() > 0, "the fault did not fire")
	up.wantRuns(t, 0)
	assert.True(t, !contains(a.body, "fire") && contains(f.log.String(), "fire"), "the cause belongs into the log alone")
	// What needs no store goes on.
	assert.Equal(t, f.send(call{method: "GET"}).status, 201, "GET while the store is away")
	assert.Equal(t, f.send(call{}).status, 201, "POST without a key while the store is away")
	store.set(false, false)
	wantFirst(t, f.send(call{key: "k"}), 201, "run 3")
}

// Case 27: the store is away when the answer is to be recorded: the client gets
// the answer, marked, and the record follows when the store is back.
func TestStoreAwayAfterTheAnswer(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	store := &faulty{Store: memstore.New()}
	f := newFront(t, up.URL, setup{store: store, engine: kakutei.Options{SettleTimeout: 50 * time.Millisecond}})
	store.set(false, true)
	a := f.send(call{key: "k"})
	wantFirst(t, a, 201, "run 1")
	assert.Equal(t, a.header.Get("Idempotent-Unrecorded"), "true", "mark")
	assert.True(t, store.fired.Load() > 0, "the fault did not fire")
	wantProblem(t, f.send(call{key: "k"}), 409, "in-flight")
	store.set(false, false)
	eventually(t, "the answer is recorded", func() bool { return f.status("k") == kakutei.StatusSucceeded })
	wantReplay(t, f.send(call{key: "k"}), 201, "run 1")
	up.wantRuns(t, 1)
}

// Two proxies on one store: each replays what the other ran, and refuses what
// the other runs.
func TestTwoProxiesOnOneStore(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			g.pass()
		}
		w.WriteHeader(201)
	})
	store := memstore.New()
	a, b := newFront(t, up.URL, setup{store: store}), newFront(t, up.URL, setup{store: store})
	wantFirst(t, a.send(call{key: "k"}), 201, "")
	wantReplay(t, b.send(call{key: "k"}), 201, "")
	wantProblem(t, b.send(call{key: "k", body: "other"}), 422, "key-reused")

	first := a.start(call{key: "slow", target: "/slow"})
	g.awaitStart(t)
	wantProblem(t, b.send(call{key: "slow", target: "/slow"}), 409, "in-flight")
	waiting := b.start(call{key: "slow", target: "/slow"}.with("Prefer", "wait=20"))
	g.open()
	wantFirst(t, await(t, first), 201, "")
	wantReplay(t, await(t, waiting), 201, "")
	up.wantRuns(t, 2)
}

// A handler that is called without a server, as adapters for other servers do,
// protects as well.
func TestWithoutServer(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	for i, replayed := range []string{"", "true"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/charges", nil)
		r.Header.Set("X-Account-Id", "acme")
		r.Header.Set("Idempotency-Key", "k")
		f.server.Config.Handler.ServeHTTP(w, r)
		assert.Equal(t, w.Code, 201, fmt.Sprintf("status %d", i))
		assert.Equal(t, w.Header().Get("Idempotent-Replayed"), replayed, "mark of a replay")
	}
	up.wantRuns(t, 1)
}
