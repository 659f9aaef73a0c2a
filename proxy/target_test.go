package proxy_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/memstore"
	"github.com/kakutei-go/kakutei/proxy"
)

// targets are request targets that something on the way likes to tidy up.
var targets = []string{
	"/", "//", "///a", "//a//b/", "/a//b", "/a/", "/a//", "/a/./b", "/a/../b", "/../a", "/a/..", "/./",
	"/a%2Fb", "/a%2fb", "/%2F%2E%2E%2Fetc", "/%2e%2e/a", "/a%20b", "/a+b", "/%E2%82%AC", "/%ff", "/a%00b", "/a:b@c", "/a;b=c", "/~a", "/%7Ea",
	"/a|b", "/a{b}", `/a"b`, "/a<b>", "/a^b`c", `/a\b`, "/a#b", "/a%23b", "/a[b]", "/caf\u00e9", "/!$&'()*,=",
	"/a?", "/a??", "/a?&&", "/a?b", "/a?b=", "/a?=c", "/a?b=c;d=e", "/a?b=%zz", "/a?b=%", "/a?b=c&b=d&a", "/a?b+c=%20",
	`/a?{"q":[1,2]}`, "/a?x=/../y", "/a?b#c", "/a?caf\u00e9=|^", "/?", "/?/", "/?x=http://other/",
}

// The upstream gets the target of a request byte for byte, protected or not,
// with and without a path of its own.
func TestTargetReachesTheUpstreamAsItWasSent(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "/", "/v1", "/v1/", "/v%201"} {
		t.Run("base="+base, func(t *testing.T) {
			t.Parallel()
			up := newUpstream(t, nil)
			f := newFront(t, up.URL+base, setup{})
			for i, target := range targets {
				if t.Failed() {
					break
				}
				for _, head := range []string{
					"GET %s HTTP/1.1\r\nHost: api\r\n\r\n",
					"POST %s HTTP/1.1\r\nHost: api\r\nContent-Length: 0\r\n\r\n",
					fmt.Sprintf("POST %%s HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k%d\r\nContent-Length: 0\r\n\r\n", i),
				} {
					a := sendRaw(t, f.addr, fmt.Sprintf(head, target))
					assert.Equal(t, a.status, 201, "status of "+target)
					want := strings.TrimSuffix(base, "/") + target
					if strings.HasPrefix(want, "//") { // the absolute form may be used, and means the same
						got := strings.TrimPrefix(up.last(t).target, up.URL)
						assert.Equal(t, got, want, "target at the upstream")
						continue
					}
					assert.Equal(t, up.last(t).target, want, "target at the upstream")
				}
			}
		})
	}
}

// A target in absolute form is one of this proxy, whatever host stands in it.
func TestAbsoluteTargetGoesToTheUpstream(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"", "/", "/v1", "/v1/"} {
		up := newUpstream(t, nil)
		f := newFront(t, up.URL+base, setup{})
		a := sendRaw(t, f.addr, "POST http://elsewhere.example/charges?a=b HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
		wantFirst(t, a, 201, "run 1")
		assert.Equal(t, up.last(t).target, strings.TrimSuffix(base, "/")+"/charges?a=b", "target at the upstream")
		assert.Equal(t, up.last(t).host, "elsewhere.example", "host at the upstream")
		// It is the same request as in the usual form.
		wantReplay(t, f.send(call{key: "k", target: "/charges?a=b"}), 201, "run 1")
	}
}

// Under a handler that cuts the path, as http.StripPrefix does, what is left
// goes to the upstream.
func TestStrippedPath(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	inner := newFront(t, up.URL, setup{})
	outer := httptest.NewServer(http.StripPrefix("/api", inner.server.Config.Handler))
	defer outer.Close()
	for _, target := range []string{"/charges", "/a|b", "/a%2Fb", "/a?b|c"} {
		a, err := do(plainClient, call{target: "/api" + target}.request(t, outer.URL))
		assert.NoError(t, err)
		assert.Equal(t, a.status, 201, "status")
		got, err := url.PathUnescape(up.last(t).target)
		assert.NoError(t, err)
		want, err := url.PathUnescape(target)
		assert.NoError(t, err)
		assert.Equal(t, got, want, "target at the upstream")
	}
}

// marked returns a route that can be told by its scope.
func marked(method, path string) proxy.Route {
	return proxy.Route{
		Method: method, Path: path,
		Scope: func(*http.Request) (string, error) { return strings.TrimSpace(method + " " + path), nil },
	}
}

// Each request is protected by the route that its author meant, however the
// path is written.
func TestRouteOfARequest(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	store := memstore.New()
	f := newFront(t, up.URL, setup{
		store: store,
		route: marked("", ""),
		routes: []proxy.Route{
			marked("", "/charges"), marked("POST", "/charges"), marked("PATCH", "/charges/{id}"), marked("", "/charges/{id}"),
			marked("POST", "/charges/{id}/capture"), marked("POST", "/charges/all"),
			marked("POST", "/files/"), marked("", "/files/{path...}"), marked("PATCH", "/files/public/"),
			marked("POST", "/tree/{id}/"), marked("", "/exact/{$}"), marked("", "/tree"),
		},
	})
	n := 0
	for _, tt := range []struct{ method, target, want string }{
		{"POST", "/charges", "POST /charges"},
		{"PATCH", "/charges", "/charges"},
		{"POST", "/charges?x=/charges/7", "POST /charges"},
		{"POST", "/charges/", ""}, // another resource; no pattern has it
		{"POST", "//charges", "POST /charges"},
		{"POST", "/./charges", "POST /charges"},
		{"POST", "/x/../charges", "POST /charges"},
		{"POST", "/../charges", "POST /charges"},
		{"POST", "/x/%2e%2e/charges", "POST /charges"},
		{"POST", "/x/%2E%2e/charges", "POST /charges"},
		{"POST", "/%63harges", "POST /charges"},
		{"POST", "/Charges", ""},
		{"POST", "/charges/7", "/charges/{id}"},
		{"PATCH", "/charges/7", "PATCH /charges/{id}"},
		{"PATCH", "/charges/all", "PATCH /charges/{id}"},
		{"POST", "/charges/all", "POST /charges/all"},
		{"POST", "/charges/7/capture", "POST /charges/{id}/capture"},
		{"POST", "/charges//7/capture", "POST /charges/{id}/capture"},
		{"PATCH", "/charges/7/capture", ""},
		{"POST", "/charges/7/capture/", ""},
		{"POST", "/charges/7%2Fcapture", "/charges/{id}"}, // one segment, as ServeMux has it
		{"POST", "/charges/7%2fcapture", "/charges/{id}"},
		{"POST", "/charges/7%2F..%2Fx", "/charges/{id}"},
		{"POST", "/charges/%2F", ""}, // ServeMux takes no wildcard for a slash alone
		{"POST", "/charges/%E2%82%AC|x", "/charges/{id}"},
		{"POST", "/files/a/b", "POST /files/"},
		{"PATCH", "/files/a/b", "/files/{path...}"},
		{"PATCH", "/files/public/x", "PATCH /files/public/"},
		{"PATCH", "/files/public/", "PATCH /files/public/"},
		{"POST", "/files", "POST /files/"}, // the root of the tree belongs to it, with or without its slash
		{"PATCH", "/files/public", "PATCH /files/public/"},
		{"POST", "/tree/7", "POST /tree/{id}/"},
		{"POST", "/tree/7/x", "POST /tree/{id}/"},
		{"POST", "/tree/%7Bid%7D", "POST /tree/{id}/"},
		{"PATCH", "/tree/7", ""},
		{"POST", "/tree", "/tree"},
		{"POST", "/exact/", "/exact/{$}"},
		{"POST", "/exact/x", ""},
		{"POST", "/", ""},
		{"POST", "/%7B$%7D", ""},
	} {
		n++
		key := fmt.Sprintf("k%d", n)
		a := sendRaw(t, f.addr, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: api\r\nIdempotency-Key: %s\r\nContent-Length: 0\r\n\r\n", tt.method, tt.target, key))
		if tt.want == "" { // the scope of all that has no route is empty here, and so refused
			wantProblem(t, a, 400, "scope-missing")
			continue
		}
		assert.Equal(t, a.status, 201, "status of "+tt.method+" "+tt.target)
		looked, err := store.Look(t.Context(), []kakutei.ID{{Scope: tt.want, Key: key}})
		assert.NoError(t, err)
		if looked[0].Record.Status != kakutei.StatusSucceeded {
			t.Errorf("%s %s was not protected by %q", tt.method, tt.target, tt.want)
		}
		assert.Equal(t, up.last(t).target, tt.target, "target at the upstream")
	}
}

// Every setting of a route is its own.
func TestRoutesHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	gates := map[string]*gate{"/wait": newGate(t), "/lease": newGate(t), "/timeout": newGate(t)}
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if g := gates[r.URL.Path]; g != nil {
			g.pass()
		}
		if r.URL.Path == "/hold" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		io.Copy(w, r.Body)
	})
	f := newFront(t, up.URL, setup{
		routes: []proxy.Route{
			{Path: "/required", Required: true}, {Path: "/strict", Strict: true}, {Path: "/hold", Recovery: kakutei.Hold},
			{Path: "/wait", Wait: patience}, {Path: "/lease", Lease: 3 * patience}, {Path: "/timeout", Timeout: 50e6},
			{Path: "/small-request", MaxRequestBytes: 4}, {Path: "/small-response", MaxResponseBytes: 4},
		},
	})
	wantProblem(t, f.send(call{target: "/required"}), 400, "key-missing")
	wantProblem(t, f.send(call{target: "/strict", key: "k"}), 400, "key-malformed")
	wantFirst(t, f.send(call{target: "/strict", key: `"k-strict"`}), 200, "")
	assert.Equal(t, f.send(call{target: "/hold", key: "k-hold"}).status, 500, "status of the failure")
	wantProblem(t, f.send(call{target: "/hold", key: "k-hold"}), 409, "uncertain")
	wantProblem(t, f.send(call{target: "/timeout", key: "k-timeout"}), 504, "upstream-timeout")
	wantProblem(t, f.send(call{target: "/small-request", key: "k-small", body: "12345"}), 413, "request-too-large")
	wantFirst(t, f.send(call{target: "/small-response", key: "k-resp", body: "12345"}), 200, "12345")
	wantProblem(t, f.send(call{target: "/small-response", key: "k-resp", body: "12345"}), 409, "result-not-retained")

	first := f.start(call{target: "/wait", key: "k-wait", body: "w"})
	gates["/wait"].awaitStart(t)
	second := f.start(call{target: "/wait", key: "k-wait", body: "w"})
	gates["/wait"].open()
	wantFirst(t, await(t, first), 200, "w")
	wantReplay(t, await(t, second), 200, "w")

	first = f.start(call{target: "/lease", key: "k-lease", body: "l"})
	gates["/lease"].awaitStart(t)
	a := f.send(call{target: "/lease", key: "k-lease", body: "l"})
	wantProblem(t, a, 409, "in-flight")
	assert.True(t, a.header.Get("Retry-After") == "89" || a.header.Get("Retry-After") == "90", "Retry-After is %q, the lease 90 s", a.header.Get("Retry-After"))
	gates["/lease"].open()
	wantFirst(t, await(t, first), 200, "l")

	// All of this is not set for other paths.
	wantFirst(t, f.send(call{target: "/other"}), 200, "")
	wantFirst(t, f.send(call{target: "/other", key: "k", body: "12345"}), 200, "12345")
	wantReplay(t, f.send(call{target: "/other", key: "k", body: "12345"}), 200, "12345")
}
