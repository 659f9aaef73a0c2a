package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei/internal/assert"
)

func TestHelp(t *testing.T) {
	t.Parallel()
	for file, args := range map[string][]string{"help.txt": {"--help"}, "help-proxy.txt": {"proxy", "--help"}} {
		code, stdout, stderr := invoke(t, args...)
		assert.Equal(t, code, exitDone, "exit code")
		assert.Equal(t, stderr, "", "standard error")
		golden(t, file, stdout)
		_, same, _ := invoke(t, append([]string{"help"}, args[:len(args)-1]...)...)
		assert.Equal(t, same, stdout, "kakutei help says the same")
	}
}

// files that the cases below are about; the names stand for the contents.
var usageFiles = map[string]string{
	"unknown.yaml":         "scope: single\nupstrem: http://127.0.0.1:9\n",
	"unknown-route.yaml":   "scope: single\nroutes:\n  - path: /x\n    recover: hold\n    retries: 5\n",
	"twice.yaml":           "scope: single\nlease: 1s\nlease: 2s\n",
	"syntax.yaml":          "scope: single\nroutes: [\n",
	"tab.yaml":             "scope: single\nroutes:\n\t- path: /x\n",
	"text.yaml":            "just text\n",
	"list.yaml":            "- scope: single\n",
	"two.yaml":             "scope: single\n---\nscope: single\n",
	"two-empty.yaml":       "scope: single\n---\n",
	"route-path.yaml":      "scope: single\nroutes:\n  - recovery: hold\n",
	"outside.yaml":         "scope: single\npath: /x\nmethod: POST\n",
	"no-unit.yaml":         "scope: single\nlease: 30\n",
	"no-unit-route.yaml":   "scope: single\nroutes:\n  - path: /x\n    timeout: 5\n",
	"duration.yaml":        "scope: single\nwait: soon\n",
	"duration-list.yaml":   "scope: single\nwait: [1s]\n",
	"number.yaml":          "scope: single\nmax_request_bytes: 4MiB\n",
	"bool.yaml":            "scope: single\nrequired: maybe\n",
	"routes-map.yaml":      "scope: single\nroutes:\n  path: /x\n",
	"many.yaml":            "scope: single\nlease: x\nwait: y\nfoo: z\n",
	"lease.yaml":           "scope: single\nlease: 1ms\n",
	"lease-route.yaml":     "scope: single\nroutes:\n  - path: /x\n    method: post\n    lease: 48h\n",
	"recovery-route.yaml":  "scope: single\nroutes:\n  - path: /x\n    recovery: transactional\n",
	"scope-route.yaml":     "scope: single\nroutes:\n  - path: /x\n    scope: tenant\n",
	"jwt-route.yaml":       "scope: single\nroutes:\n  - path: /x\n    scope: jwt:sub\n",
	"jwt-both.yaml":        "scope: jwt:sub\njwt_key: secret.txt\njwt_unverified: true\n",
	"pattern.yaml":         "scope: single\nroutes:\n  - path: /x/{id\n",
	"pattern-slash.yaml":   "scope: single\nroutes:\n  - path: x\n",
	"pattern-space.yaml":   "scope: single\nroutes:\n  - path: /a b\n",
	"conflict.yaml":        "scope: single\nroutes:\n  - path: /x/{a}\n  - path: /{b}/y\n",
	"same.yaml":            "scope: single\nroutes:\n  - path: /x\n  - path: /x\n",
	"root.yaml":            "scope: single\nroutes:\n  - path: /\n",
	"method.yaml":          "scope: single\nroutes:\n  - method: PUT\n    path: /x\n",
	"authorize.yaml":       "scope: single\nroutes:\n  - path: /x\n    authorize_replay: 127.0.0.1:9\n",
	"binary.yaml":          "scope: single\n\x00\x01\n",
	"secret.txt":           strings.Repeat("s", 32),
	"short.txt":            "too short",
	"damaged.pem":          "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n",
	"private.pem":          "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
	"jwks.json":            `{"keys":[{"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZpt","e":"AQAB"}]}`,
	"good.yaml":            "scope: single\nupstream: http://127.0.0.1:9\n",
	"negative.yaml":        "scope: single\nretention: -1ns\n",
	"drain.yaml":           "scope: single\ndrain: -1s\n",
	"jwt-unverified.yaml":  "scope: jwt:sub\njwt_unverified: true\n",
	"max.yaml":             "scope: single\nroutes:\n  - path: /x\n    max_response_bytes: 0\n",
	"unknown-in-jwt.yaml":  "scope: single\njwt: {key: x}\n",
	"alias-loop.yaml":      "scope: &a [*a]\n",
	"merge-unknown.yaml":   "scope: single\nroutes:\n  - &r\n    path: /x\n    bad: 1\n",
	"deep.yaml":            "scope: single\nroutes:\n  - path: /x\n    routes: []\n",
	"upper.yaml":           "Scope: single\n",
	"listen-in-route.yaml": "scope: single\nroutes:\n  - path: /x\n    listen: 127.0.0.1:0\n",
}

// Every wrong call is told in one line, with exit code 2, and leaves nothing behind.
func TestWrongUsage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range usageFiles {
		writeFile(t, dir, name, content)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	const ok = " --upstream http://127.0.0.1:9 --scope single"
	cases := []string{
		"nonsense", "prxy", "--nonsense", "proxy nonsense", "proxy --nonsense", "proxy -x", "proxy --lease",
		"proxy", "proxy --scope single", "proxy --upstream http://127.0.0.1:9",
		"proxy --upstream 127.0.0.1:9 --scope single", "proxy --upstream localhost:9 --scope single", "proxy --upstream ftp://host --scope single",
		"proxy --upstream http:// --scope single", "proxy --upstream http://host/?a=b --scope single", "proxy --upstream http://user:pw@host --scope single",
		"proxy --upstream http://127.0.0.1:9 --scope account", "proxy --upstream http://127.0.0.1:9 --scope header:",
		"proxy --upstream http://127.0.0.1:9 --scope header:X:Y", "proxy --upstream http://127.0.0.1:9 --scope jwt:sub",
		"proxy --upstream http://127.0.0.1:9 --scope jwt:sub --jwt-key DIR/nowhere.pem", "proxy --upstream http://127.0.0.1:9 --scope jwt:sub --jwt-key DIR/folder",
		"proxy --upstream http://127.0.0.1:9 --scope jwt:sub --jwt-key DIR/short.txt", "proxy --upstream http://127.0.0.1:9 --scope jwt:sub --jwt-key DIR/damaged.pem",
		"proxy --upstream http://127.0.0.1:9 --scope jwt:sub --jwt-key DIR/private.pem", "proxy --upstream http://127.0.0.1:9 --scope jwt:sub --jwt-key DIR/jwks.json",
		"proxy --upstream http://127.0.0.1:9 --scope jwt:sub --jwt-key DIR/secret.txt --jwt-unverified",
		"proxy --upstream http://127.0.0.1:9 --config DIR/jwt-unverified.yaml --jwt-key DIR/secret.txt",
		"proxy" + ok + " --recovery transactional", "proxy" + ok + " --recovery again", "proxy" + ok + " --recovery Hold",
		"proxy" + ok + " --lease soon", "proxy" + ok + " --lease 30", "proxy" + ok + " --lease 0s", "proxy" + ok + " --lease -1s", "proxy" + ok + " --lease 1ms",
		"proxy" + ok + " --lease 25h", "proxy" + ok + " --retention 5m", "proxy" + ok + " --retention 0s", "proxy" + ok + " --retention -1ns",
		"proxy" + ok + " --wait -1s", "proxy" + ok + " --timeout 0s", "proxy" + ok + " --timeout -1ns", "proxy" + ok + " --timeout -5s", "proxy" + ok + " --drain -1s",
		"proxy" + ok + " --max-request-bytes 0", "proxy" + ok + " --max-request-bytes -1", "proxy" + ok + " --max-request-bytes 4MiB",
		"proxy" + ok + " --max-response-bytes -1", "proxy" + ok + " --required=maybe", "proxy" + ok + " --authorize-replay 127.0.0.1:9",
		"proxy" + ok + " --store mysql://host/db", "proxy" + ok + " --store kakutei.db", "proxy" + ok + " --store sqlite:", "proxy" + ok + " --store sqlite::memory:",
		"proxy" + ok + " --listen nonsense", "proxy" + ok + " --listen 127.0.0.1:99999", "proxy" + ok + " --listen 127.0.0.1:0 --admin nonsense",
		"proxy" + ok + " --config DIR/nowhere.yaml", "proxy" + ok + " --config DIR/folder", "proxy" + ok + " --config=",
	}
	for name := range usageFiles {
		if strings.HasSuffix(name, ".yaml") && name != "good.yaml" && name != "jwt-unverified.yaml" {
			cases = append(cases, "proxy --upstream http://127.0.0.1:9 --config DIR/"+name)
		}
	}
	var transcript []string
	for _, line := range cases {
		store := t.TempDir()
		args := strings.Fields(strings.ReplaceAll(line, "DIR", dir))
		if args[0] == "proxy" && !strings.Contains(line, "--store") {
			args = append(args, "--store", "sqlite:"+filepath.Join(store, "k.db"))
		}
		if args[0] == "proxy" && !strings.Contains(line, "--listen") {
			args = append(args, "--listen", "127.0.0.1:0")
		}
		code, stdout, stderr := invoke(t, args...)
		assert.Equal(t, code, exitUsage, "exit code of "+line)
		assert.Equal(t, stdout, "", "standard output of "+line)
		assert.True(t, strings.Count(stderr, "\n") == 1 && strings.HasPrefix(stderr, "kakutei: ") && strings.HasSuffix(stderr, "\n"), "%s: not one line: %q", line, stderr)
		for _, inside := range []string{"main.", ".go:", "%!", "{", "*", "goroutine", "pw@"} {
			if inside == "{" && (strings.Contains(line, "pattern") || strings.Contains(line, "conflict")) {
				continue
			}
			assert.True(t, !strings.Contains(stderr, inside), "%s: the text tells of the program's inside: %s", line, stderr)
		}
		left, err := os.ReadDir(store)
		assert.NoError(t, err)
		assert.Equal(t, len(left), 0, "files left behind by "+line)
		transcript = append(transcript, fmt.Sprintf("$ kakutei %s\n%s", line, strings.ReplaceAll(stderr, dir, "DIR")))
	}
	if _, err := os.Stat("kakutei.db"); err == nil {
		t.Error("kakutei.db was left behind")
	}
	// The order of the files is that of a map.
	slices.Sort(transcript)
	golden(t, "errors.txt", strings.Join(transcript, "\n"))
}
