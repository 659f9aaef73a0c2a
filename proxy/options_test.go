package proxy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/memstore"
	"github.com/kakutei-go/kakutei/proxy"
)

// What can never work is refused when the proxy is made, in one line that says
// which route it is.
func TestNewRefuses(t *testing.T) {
	t.Parallel()
	engine, err := kakutei.New(memstore.New(), kakutei.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close(context.Background()) })
	good := func() proxy.Config {
		return proxy.Config{Upstream: &url.URL{Scheme: "http", Host: "127.0.0.1:9000"}, Default: complete(proxy.Route{})}
	}
	_, err = proxy.New(engine, good())
	assert.NoError(t, err)
	with := func(routes ...proxy.Route) func(*proxy.Config) {
		return func(c *proxy.Config) { c.Routes = completeAll(routes) }
	}
	upstream := func(s string) func(*proxy.Config) {
		return func(c *proxy.Config) {
			if c.Upstream, err = url.Parse(s); err != nil {
				t.Fatal(err)
			}
		}
	}
	for want, change := range map[string]func(*proxy.Config){
		"upstream":                       func(c *proxy.Config) { c.Upstream = nil },
		"http or https URL":              upstream("ftp://host/"),
		"an http or https":               upstream("http:///path"),
		"must be an http":                upstream("127.0.0.1"),
		"scheme, host and path":          upstream("http://host/?key=1"),
		"and path alone":                 upstream("http://user:password@host/"),
		"host and path alone":            upstream("http://host/#fragment"),
		"no ScopeFunc":                   func(c *proxy.Config) { c.Default.Scope = nil },
		"the recovery is not chosen":     func(c *proxy.Config) { c.Default.Recovery = 0 },
		"no part in the upstream's":      func(c *proxy.Config) { c.Default.Recovery = kakutei.Transactional },
		`route "/x"`:                     with(proxy.Route{Path: "/x", Recovery: kakutei.Transactional}),
		"must begin with /":              with(proxy.Route{Path: "x"}),
		`route ""`:                       with(proxy.Route{}),
		`route "POST example.com/x"`:     with(proxy.Route{Method: "POST", Path: "example.com/x"}),
		`at offset 3`:                    with(proxy.Route{Path: "/a/{id"}),
		`bad wildcard name`:              with(proxy.Route{Path: "/a/{i-d}"}),
		`written as %20`:                 with(proxy.Route{Path: "/a b"}),
		`route "POST /a b"`:              with(proxy.Route{Method: "POST", Path: "/a b"}),
		`duplicate wildcard`:             with(proxy.Route{Path: "/a/{id}/{id}"}),
		`{...} wildcard not at end`:      with(proxy.Route{Path: "/a/{x...}/b"}),
		`"/x" conflicts with`:            with(proxy.Route{Path: "/x"}, proxy.Route{Path: "/x"}),
		`"/{b}/c" conflicts with`:        with(proxy.Route{Path: "/a/{x}"}, proxy.Route{Path: "/{b}/c"}),
		`"/a/{y}" conflicts`:             with(proxy.Route{Path: "/a/{x}"}, proxy.Route{Path: "/a/{y}"}),
		`set it outside`:                 with(proxy.Route{Path: "/"}),
		`is what has no route of its`:    with(proxy.Route{Path: "/{any...}"}),
		`route "GET /x"`:                 with(proxy.Route{Method: "GET", Path: "/x"}),
		`only POST and PATCH are`:        with(proxy.Route{Method: "PUT", Path: "/x"}),
		`route "post /x"`:                with(proxy.Route{Method: "post", Path: "/x"}),
		`route "POST PATCH /x"`:          with(proxy.Route{Method: "POST PATCH", Path: "/x"}),
		"a lease of 1ms":                 with(proxy.Route{Path: "/x", Lease: time.Millisecond}),
		"a lease of 48h0m0s":             with(proxy.Route{Path: "/x", Lease: 48 * time.Hour}),
		"a deadline of -5s":              with(proxy.Route{Path: "/x", Timeout: -5 * time.Second}),
		"a wait of -1s":                  with(proxy.Route{Path: "/x", Wait: -time.Second}),
		"a limit of -1 bytes":            with(proxy.Route{Path: "/x", MaxRequestBytes: -1}),
		"a limit of -2 bytes":            with(proxy.Route{Path: "/x", MaxResponseBytes: -2}),
		"must be an http or https URL":   with(proxy.Route{Path: "/x", AuthorizeReplayURL: "127.0.0.1:9"}),
		"replays must be":                with(proxy.Route{Path: "/x", AuthorizeReplayURL: "file:///etc/passwd"}),
		"the URL to authorize replays":   with(proxy.Route{Path: "/x", AuthorizeReplayURL: "http://\x7f"}),
		`route "POST /x": `:              with(proxy.Route{Method: http.MethodPost, Path: "/x", Lease: 1}),
		`conflicts with pattern "/tree"`: with(proxy.Route{Path: "/tree"}, proxy.Route{Path: "/tree"}),
	} {
		cfg := good()
		change(&cfg)
		_, err := proxy.New(engine, cfg)
		if !assert.ErrorIs(t, err, kakutei.ErrInvalid) {
			t.Logf("wanted: %s", want)
			continue
		}
		text := err.Error()
		assert.True(t, contains(text, want), "the error has not %q: %s", want, text)
		assert.True(t, !contains(text, "\n") && !contains(text, ".go:"), "the error is not one line for its reader: %q", text)
		assert.True(t, !contains(text, "password"), "the error tells a password: %s", text)
	}
	_, err = proxy.New(nil, good())
	assert.ErrorIs(t, err, kakutei.ErrInvalid)
}

// What reaches the upstream about who asked, and from where.
func TestForwardedHeaders(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{})
	for i, tt := range []struct{ sent, want string }{
		{"", "127.0.0.1"}, {"192.0.2.1", "192.0.2.1, 127.0.0.1"}, {"192.0.2.1, 192.0.2.2", "192.0.2.1, 192.0.2.2, 127.0.0.1"},
	} {
		for _, c := range []call{{method: "GET"}, {}, {key: fmt.Sprintf("k%d", i)}} {
			c = c.with("X-Forwarded-Host", "spoofed.example").with("X-Forwarded-Proto", "spoofed")
			if tt.sent != "" {
				c = c.with("X-Forwarded-For", tt.sent)
			}
			r := c.request(t, f.url)
			r.Host = "api.example"
			a, err := do(plainClient, r)
			assert.NoError(t, err)
			assert.Equal(t, a.status, 201, "status")
			got := up.last(t)
			assert.Equal(t, got.host, "api.example", "Host")
			assert.Equal(t, got.header.Get("X-Forwarded-For"), tt.want, "X-Forwarded-For")
			assert.Equal(t, got.header.Get("X-Forwarded-Host"), "api.example", "X-Forwarded-Host")
			assert.Equal(t, got.header.Get("X-Forwarded-Proto"), "http", "X-Forwarded-Proto")
		}
	}
	// No header is made up, and none of the client's is lost.
	f.send(call{key: "k"}.with("User-Agent", "").with("X-Multi", "a").with("X-Multi", "b, c").with("X-Empty", ""))
	got := up.last(t)
	assert.Equal(t, fmt.Sprint(got.header["User-Agent"]), "[]", "User-Agent")
	assert.Equal(t, fmt.Sprintf("%q", got.header["X-Multi"]), `["a" "b, c"]`, "X-Multi")
	assert.Equal(t, fmt.Sprintf("%q", got.header["X-Empty"]), `[""]`, "X-Empty")
}
