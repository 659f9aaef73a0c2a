package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// describe writes every setting down as what is in force.
func (c proxyConfig) describe() string {
	var b strings.Builder
	fmt.Fprintf(&b, "listen=%s upstream=%s store=%s admin=%s retention=%v drain=%v jwt_key=%s jwt_unverified=%v",
		c.Listen, c.Upstream, c.Store, c.Admin, time.Duration(*c.Retention), time.Duration(*c.Drain), c.JWTKey, c.JWTUnverified)
	for _, r := range append([]routeConfig{c.routeConfig}, c.Routes...) {
		fmt.Fprintf(&b, "\n%s %s: scope=%s recovery=%s required=%v strict=%v wait=%v lease=%v timeout=%v request=%d response=%d authorize=%s",
			r.Method, r.Path, *r.Scope, *r.Recovery, *r.Required, *r.Strict, time.Duration(*r.Wait), time.Duration(*r.Lease), time.Duration(*r.Timeout),
			*r.MaxRequestBytes, *r.MaxResponseBytes, *r.AuthorizeReplay)
	}
	return b.String()
}

// settings returns what a command line comes to.
func settings(t testing.TB, args ...string) string {
	t.Helper()
	var got string
	p := &program{}
	cmd := p.proxyCommandWith(func(_ context.Context, c proxyConfig) error {
		got = c.describe()
		return nil
	})
	cmd.SetArgs(args)
	assert.NoError(t, cmd.ExecuteContext(t.Context()))
	return got
}

// A flag goes before the file, the file before the default; a route's own
// setting goes before all of them.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const all = `
listen: 127.0.0.1:1
upstream: http://file
store: sqlite:file.db
admin: 127.0.0.1:2
retention: 2h
drain: 2s
jwt_key: file.pem
jwt_unverified: true
scope: single
recovery: hold
required: true
strict: true
wait: 2s
lease: 3s
timeout: 4s
max_request_bytes: 5
max_response_bytes: 6
authorize_replay: http://file/may
routes:
  - path: /inherits
  - method: post
    path: /own
    scope: header:X-Own
    recovery: rerun
    required: false
    strict: false
    wait: 0s
    lease: 7s
    timeout: 1m30s
    max_request_bytes: 9
    max_response_bytes: 10
    authorize_replay: ""
`
	file := writeFile(t, dir, "all.yaml", all)
	empty := writeFile(t, dir, "empty.yaml", "# nothing\n")
	flags := []string{
		"--listen", "127.0.0.1:3", "--upstream", "http://flag", "--store", "sqlite:flag.db", "--admin", "127.0.0.1:4", "--retention", "3h", "--drain", "0s",
		"--jwt-key", "flag.pem", "--scope", "header:X-Flag", "--recovery", "rerun", "--required=false", "--strict=false", "--wait", "0s", "--lease", "11s",
		"--timeout", "12s", "--max-request-bytes", "13", "--max-response-bytes", "14", "--authorize-replay", "",
	}
	const own = "\npost /own: scope=header:X-Own recovery=rerun required=false strict=false wait=0s lease=7s timeout=1m30s request=9 response=10 authorize="
	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{
			"defaults", "listen=127.0.0.1:8080 upstream=http://u store=sqlite:kakutei.db admin= retention=72h0m0s drain=30s jwt_key= jwt_unverified=false" +
				"\n : scope=single recovery=rerun required=false strict=false wait=0s lease=30s timeout=1m0s request=4194304 response=4194304 authorize=",
			[]string{"--upstream", "http://u", "--scope", "single"},
		},
		{
			"defaults under an empty file", "listen=127.0.0.1:8080 upstream=http://u store=sqlite:kakutei.db admin= retention=72h0m0s drain=30s jwt_key= jwt_unverified=false" +
				"\n : scope=single recovery=rerun required=false strict=false wait=0s lease=30s timeout=1m0s request=4194304 response=4194304 authorize=",
			[]string{"--config", empty, "--upstream", "http://u", "--scope", "single"},
		},
		{
			"file", "listen=127.0.0.1:1 upstream=http://file store=sqlite:file.db admin=127.0.0.1:2 retention=2h0m0s drain=2s jwt_key=file.pem jwt_unverified=true" +
				"\n : scope=single recovery=hold required=true strict=true wait=2s lease=3s timeout=4s request=5 response=6 authorize=http://file/may" +
				"\n /inherits: scope=single recovery=hold required=true strict=true wait=2s lease=3s timeout=4s request=5 response=6 authorize=http://file/may" + own,
			[]string{"--config", file},
		},
		{
			"flags over the file", "listen=127.0.0.1:3 upstream=http://flag store=sqlite:flag.db admin=127.0.0.1:4 retention=3h0m0s drain=0s jwt_key=flag.pem jwt_unverified=true" +
				"\n : scope=header:X-Flag recovery=rerun required=false strict=false wait=0s lease=11s timeout=12s request=13 response=14 authorize=" +
				"\n /inherits: scope=header:X-Flag recovery=rerun required=false strict=false wait=0s lease=11s timeout=12s request=13 response=14 authorize=" + own,
			append([]string{"--config", file}, flags...),
		},
		{
			"one flag over the file", "listen=127.0.0.1:1 upstream=http://file store=sqlite:file.db admin=127.0.0.1:2 retention=2h0m0s drain=2s jwt_key=file.pem jwt_unverified=true" +
				"\n : scope=single recovery=hold required=true strict=true wait=2s lease=1m0s timeout=4s request=5 response=6 authorize=http://file/may" +
				"\n /inherits: scope=single recovery=hold required=true strict=true wait=2s lease=1m0s timeout=4s request=5 response=6 authorize=http://file/may" + own,
			[]string{"--config", file, "--lease=1m"},
		},
	} {
		assert.Equal(t, settings(t, tt.args...), tt.want, tt.name)
	}
}

// Every flag has a field of its name in the file, and the other way round.
func TestFlagsAndFieldsAgree(t *testing.T) {
	t.Parallel()
	var fields, flags []string
	for line := range strings.SplitSeq(configFields(t), "\n") {
		if name, _, ok := strings.Cut(line, ":"); ok && name != "method" && name != "path" && name != "routes" {
			fields = append(fields, strings.ReplaceAll(name, "_", "-"))
		}
	}
	_, help, _ := invoke(t, "proxy", "--help")
	for line := range strings.SplitSeq(help, "\n") {
		if _, after, ok := strings.Cut(line, "  --"); ok {
			if name := strings.Fields(after)[0]; name != "config" && name != "help" {
				flags = append(flags, name)
			}
		}
	}
	slices.Sort(fields)
	slices.Sort(flags)
	assert.True(t, slices.Equal(fields, flags), "fields %q\nflags  %q", fields, flags)
}

func configFields(t testing.TB) string {
	t.Helper()
	text, err := yaml.Marshal(proxyConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The example in the help text is a file that works.
func TestExampleInHelp(t *testing.T) {
	t.Parallel()
	_, example, ok := strings.Cut(proxyLong, "routes apart:\n\n")
	if !ok {
		t.Fatal("the help has no example")
	}
	file := writeFile(t, t.TempDir(), "example.yaml", strings.ReplaceAll(example, "\n  ", "\n")[2:])
	got := settings(t, "--config", file, "--upstream", "http://u")
	assert.True(t, strings.Contains(got, "\nPOST /payments/{id}/capture: scope=header:X-Account-Id recovery=hold "), "settings: %s", got)
}

// FuzzConfig decodes anything. It never panics; what is taken has no field that
// is unknown, and what is refused is refused in one line.
func FuzzConfig(f *testing.F) {
	for _, content := range usageFiles {
		f.Add(content)
	}
	f.Add("scope: &s single\nroutes:\n  - &r {path: /x, scope: *s}\n  - {<<: *r, path: /y}\n")
	f.Add("{}")
	f.Add("~")
	f.Add("%YAML 1.1\n---\nscope: !!str single\n...\n")
	f.Add("\xef\xbb\xbfscope: single\n")
	f.Add("lease: !!int 5\nwait: 0\ndrain: ~\nroutes: [~]\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content string) {
		path := filepath.Join(dir, "fuzz.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readConfig(path)
		if err != nil {
			assert.ErrorIs(t, err, errUsage)
			assert.True(t, !strings.Contains(oneLine(err), "\n"), "several lines: %q", err)
			assert.True(t, !strings.Contains(oneLine(err), "main."), "a type of the program in the text: %q", err)
			return
		}
		wantKnown(t, content)
		// It may be built or refused, but not panic.
		base := proxyConfig{Upstream: "http://127.0.0.1:9", routeConfig: routeConfig{Scope: ptr("single")}}
		if base, err = base.complete(path); err == nil {
			_, err = base.build(nil)
		}
		assert.True(t, err == nil || !strings.Contains(oneLine(err), "\n"), "several lines: %v", err)
	})
}

// wantKnown reads the file without types, and fails if it has a field that the
// program does not know.
func wantKnown(t testing.TB, content string) {
	t.Helper()
	var top map[string]any
	if err := yaml.Unmarshal([]byte(content), &top); err != nil {
		return // keys that are no text; the typed reading has judged them
	}
	known := []string{"routes"}
	for line := range strings.SplitSeq(configFields(t), "\n") {
		if name, _, ok := strings.Cut(line, ":"); ok {
			known = append(known, name)
		}
	}
	check := func(m map[string]any) {
		for name := range m {
			if !slices.Contains(known, name) && name != "<<" {
				t.Errorf("the unknown field %q was taken", name)
			}
		}
	}
	check(top)
	routes, _ := top["routes"].([]any)
	for _, r := range routes {
		if m, ok := r.(map[string]any); ok {
			check(m)
		}
	}
}
