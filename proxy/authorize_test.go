package proxy_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/proxy"
)

// What the service that is asked answers decides about the replay, and about
// nothing else: the operation stays settled.
func TestAuthorizeReplay(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	guard := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		if s := int(status.Load()); s == 0 {
			panic(http.ErrAbortHandler)
		} else {
			w.Header().Set("Location", "/login")
			w.WriteHeader(s)
		}
	})
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{route: proxy.Route{AuthorizeReplayURL: guard.URL + "/may?tenant=1"}})
	// A first run is the upstream's to allow.
	wantFirst(t, f.send(call{key: "k", body: "{}"}), 201, "run 1")
	wantFirst(t, f.send(call{key: "unsettled", target: "/unsettled"}), 201, "run 2")
	guard.wantRuns(t, 0)
	for _, tt := range []struct {
		answer, status int
		problem        string
	}{
		{200, 201, ""}, {204, 201, ""}, {299, 201, ""},
		{401, 401, "unauthenticated"}, {403, 403, "replay-forbidden"}, {404, 403, "replay-forbidden"}, {400, 403, "replay-forbidden"},
		{302, 403, "replay-forbidden"}, {304, 403, "replay-forbidden"}, {429, 403, "replay-forbidden"},
		{500, 503, "store-unavailable"}, {502, 503, "store-unavailable"}, {0, 503, "store-unavailable"},
		{200, 201, ""},
	} {
		status.Store(int32(tt.answer))
		before := guard.count()
		a := f.send(call{key: "k", body: "{}"})
		if tt.problem == "" {
			wantReplay(t, a, 201, "run 1")
		} else {
			wantProblem(t, a, tt.status, tt.problem)
			assert.True(t, !contains(a.body, "run 1"), "the answer holds what was refused: %s", a.body)
		}
		if tt.answer != 0 { // net/http asks again when a connection breaks
			assert.Equal(t, guard.count(), before+1, fmt.Sprintf("questions when the answer is %d", tt.answer))
		}
		wantProblem(t, f.send(call{key: "k", body: "other"}), 422, "key-reused")
	}
	up.wantRuns(t, 2)
}

// The question has what the request had, and tells what it was for.
func TestAuthorizationQuestion(t *testing.T) {
	t.Parallel()
	guard := newUpstream(t, func(http.ResponseWriter, *http.Request) {})
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{routes: []proxy.Route{{Path: "/charges", AuthorizeReplayURL: guard.URL + "/may"}}})
	const raw = "POST /charges?a=%2F&b HTTP/1.1\r\nHost: api.example\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n" +
		"Authorization: Bearer abc\r\nCookie: session=1\r\nConnection: Authorization, keep-alive\r\nTE: trailers\r\n" +
		"X-Forwarded-For: 192.0.2.1\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /public\r\nX-Forwarded-Host: other.example\r\nKakutei-Attempt: 5\r\n\r\n{}"
	assert.Equal(t, sendRaw(t, f.addr, raw).status, 201, "status")
	wantReplay(t, sendRaw(t, f.addr, raw), 201, "run 1")
	got := guard.last(t)
	assert.Equal(t, got.method, http.MethodGet, "method")
	assert.Equal(t, got.target, "/may", "target")
	assert.Equal(t, string(got.body), "", "body")
	for name, want := range map[string]string{
		"Authorization": "[Bearer abc]", "Cookie": "[session=1]", "X-Account-Id": "[acme]", "X-Forwarded-Method": "[POST]",
		"X-Forwarded-Uri": "[/charges?a=%2F&b]", "X-Forwarded-Host": "[api.example]", "X-Forwarded-For": "[192.0.2.1, 127.0.0.1]",
		"Idempotency-Key": "[]", "Content-Type": "[]", "Te": "[]", "Kakutei-Attempt": "[]", "Content-Length": "[]",
	} {
		assert.Equal(t, fmt.Sprint(got.header[name]), want, name)
	}
	// Other routes ask nobody.
	wantFirst(t, f.send(call{key: "k2", target: "/other"}), 201, "run 2")
	wantReplay(t, f.send(call{key: "k2", target: "/other"}), 201, "run 2")
	guard.wantRuns(t, 1)
}

// Nobody answers, or not in time: the replay is refused for now.
func TestAuthorizationDown(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	slow := newUpstream(t, func(http.ResponseWriter, *http.Request) { g.pass() })
	up := newUpstream(t, nil)
	for _, target := range []string{"http://" + refusing(t), slow.URL} {
		f := newFront(t, up.URL, setup{route: proxy.Route{AuthorizeReplayURL: target}})
		assert.Equal(t, f.send(call{key: "k"}).status, 201, "status of the first run")
		start := time.Now()
		a := f.send(call{key: "k"})
		wantProblem(t, a, 503, "store-unavailable")
		assert.Equal(t, a.header.Get("Retry-After"), "1", "Retry-After")
		assert.True(t, time.Since(start) < 15*time.Second, "the client waited for %v", time.Since(start))
		assert.True(t, contains(f.log.String(), "authorization"), "the cause is not in the log: %s", f.log)
	}
}

// Who waited for the answer is asked about as well.
func TestAuthorizationOfAWaiter(t *testing.T) {
	t.Parallel()
	guard := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		g.pass()
		w.WriteHeader(201)
	})
	f := newFront(t, up.URL, setup{route: proxy.Route{AuthorizeReplayURL: guard.URL, Wait: patience}})
	first := f.start(call{key: "k"})
	g.awaitStart(t)
	second := f.start(call{key: "k"})
	time.Sleep(20 * time.Millisecond) // most likely it waits now; it is asked about in any case
	g.open()
	wantFirst(t, await(t, first), 201, "")
	wantProblem(t, await(t, second), 403, "replay-forbidden")
}
