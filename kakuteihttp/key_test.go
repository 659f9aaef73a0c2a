package kakuteihttp_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// form is one way to send a key, or not to.
type form struct {
	name string
	// lines are header lines as they are sent.
	lines string
	// key is what is claimed; empty means that the request is refused.
	key string
	// strict tells that a strict route takes the form, too.
	strict bool
	// absent tells that there is no key: refused only where one is required.
	absent bool
}

func forms() []form {
	one := func(value string) string { return "Idempotency-Key: " + value + "\r\n" }
	k254, k255 := strings.Repeat("k", 254), strings.Repeat("k", 255)
	return []form{
		{name: "absent", absent: true},
		{name: "another header", lines: "X-Idempotency-Key: k\r\n", absent: true},
		{name: "empty", lines: one("")},
		{name: "blank", lines: one("   ")},
		{name: "blank with tab", lines: one("\t")},
		{name: "empty string", lines: one(`""`)},
		{name: "string of a blank", lines: one(`" "`), key: " ", strict: true},
		{name: "bare", lines: one("k"), key: "k"},
		{name: "string", lines: one(`"k"`), key: "k", strict: true},
		{name: "small letters", lines: "idempotency-key: \"k\"\r\n", key: "k", strict: true},
		{name: "blanks around", lines: one("  \"k\" \t"), key: "k", strict: true},
		{name: "UUID", lines: one("8e03978e-40d5-43dd-bc93-6894a57f9324"), key: "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{name: "base64", lines: one("YWJj/+=="), key: "YWJj/+=="},
		{name: "255 bytes", lines: one(k255), key: k255},
		{name: "256 bytes", lines: one(k255 + "k")},
		{name: "string of 255 bytes", lines: one(`"` + k255 + `"`), key: k255, strict: true},
		{name: "string of 256 bytes", lines: one(`"` + k255 + `k"`)},
		{name: "escapes do not count", lines: one(`"` + k254 + `\\"`), key: k254 + `\`, strict: true},
		{name: "control", lines: one("a\x01b")},
		{name: "DEL", lines: one("a\x7fb")},
		{name: "tab inside", lines: one("a\tb")},
		{name: "tab in string", lines: one("\"a\tb\"")},
		{name: "blank inside", lines: one("a b")},
		{name: "blank in string", lines: one(`"a b"`), key: "a b", strict: true},
		{name: "UTF-8", lines: one("schl\u00fcssel")},
		{name: "UTF-8 in string", lines: one("\"schl\u00fcssel\"")},
		{name: "Latin-1", lines: one("a\xe9")},
		{name: "two lines", lines: one(`"k"`) + one(`"l"`)},
		{name: "two lines alike", lines: one("k") + one("k")},
		{name: "two lines, one empty", lines: one("k") + one("")},
		{name: "two lines, other letters", lines: one("k") + "idempotency-key: k\r\n"},
		{name: "list", lines: one("k,l")},
		{name: "list with blank", lines: one("k, l")},
		{name: "list of strings", lines: one(`"k", "l"`)},
		{name: "comma in string", lines: one(`"k,l"`), key: "k,l", strict: true},
		{name: "escaped quote", lines: one(`"a\"b"`), key: `a"b`, strict: true},
		{name: "escaped backslash", lines: one(`"a\\b"`), key: `a\b`, strict: true},
		{name: "other escape", lines: one(`"a\nb"`)},
		{name: "unterminated", lines: one(`"k`)},
		{name: "unterminated by escape", lines: one(`"k\"`)},
		{name: "only a quote", lines: one(`"`)},
		{name: "quote at the end", lines: one(`k"`)},
		{name: "quote inside", lines: one(`k"l`)},
		{name: "something after", lines: one(`"k"l`)},
		{name: "parameter", lines: one(`"k";v=1`), key: "k", strict: true},
		{name: "parameters", lines: one(`"k";v=1;w="x,y"; z`), key: "k", strict: true},
		{name: "wrong parameter", lines: one(`"k";V=1`)},
		{name: "empty parameter", lines: one(`"k";`)},
		{name: "bare with parameter", lines: one(`k;v=1`)},
		{name: "byte sequence", lines: one(":YWJj:"), key: ":YWJj:"},
		{name: "inner list", lines: one(`("k")`)},
	}
}

// TestKeyForms is case 36 on the wire: each form on a required, an optional and
// a strict route. What is refused claims nothing and runs nothing.
func TestKeyForms(t *testing.T) {
	t.Parallel()
	for _, route := range []struct {
		name string
		opts kakuteihttp.Options
	}{
		{"required", kakuteihttp.Options{Required: true}},
		{"optional", kakuteihttp.Options{}},
		{"strict", kakuteihttp.Options{Required: true, Strict: true}},
		{"strict, optional", kakuteihttp.Options{Strict: true}},
	} {
		t.Run(route.name, func(t *testing.T) {
			t.Parallel()
			s := (&site{opts: route.opts, handler: func(w http.ResponseWriter, r *http.Request) {
				if a := kakutei.FromContext(r.Context()); a != nil {
					fmt.Fprintf(w, "%q", a.ID().Key)
				}
			}}).start(t)
			for i, f := range forms() {
				s.checkForm(t, f, fmt.Sprintf("form-%d", i))
			}
		})
	}
}

func (s *site) checkForm(t *testing.T, f form, scope string) {
	t.Helper()
	s.runs.Store(0)
	conn := s.dial()
	defer conn.Close()
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nAccount: " + scope + "\r\n" + f.lines + "Content-Length: 2\r\nConnection: close\r\n\r\n{}")
	r := conn.hear()
	_, results := s.store.Len()
	switch {
	case f.absent && s.opts.Required:
		wantProblem(t, r, 400, "key-missing")
	case f.absent:
		wantAnswer(t, r, 200, "")
	case f.key != "" && (f.strict || !s.opts.Strict):
		wantAnswer(t, r, 200, fmt.Sprintf("%q", f.key))
	case strings.ContainsAny(f.lines, "\x01\x7f"): // net/http refuses these itself
		if r.status != 400 {
			t.Errorf("%s: %d", f.name, r.status)
		}
	default:
		wantProblem(t, r, 400, "key-malformed")
	}
	runs := int32(0)
	if r.status == 200 {
		runs = 1
	}
	live, after := s.store.Len()
	if s.runs.Load() != runs || live != 0 || after != results {
		t.Errorf("%s: the handler ran %d times, want %d; %d live records", f.name, s.runs.Load(), runs, live)
	}
	if t.Failed() {
		t.Fatalf("form %q (%q): %d %s", f.name, f.lines, r.status, r.body)
	}
}

// TestSameKey is case 36: the string and the bare form are one key.
func TestSameKey(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) }}).start(t)
		wantAnswer(t, s.post("k-1", ""), 201, "")
		wantReplay(t, s.post(`"k-1"`, ""), 201, "")
		wantReplay(t, s.post(`"k-1";v=2`, ""), 201, "")
		wantAnswer(t, s.post("K-1", ""), 201, "") // case 10
		wantAnswer(t, s.post(`"k-1 "`, ""), 201, "")
		s.want(3, "k-1", kakutei.StatusSucceeded)
	})
}

// TestParseKeyErrors: the cause says what is wrong, and not what was sent.
func TestParseKeyErrors(t *testing.T) {
	t.Parallel()
	for _, f := range forms() {
		h := http.Header{}
		for line := range strings.Lines(f.lines) {
			name, value, _ := strings.Cut(line, ":")
			h.Add(name, strings.Trim(value, " \t\r\n"))
		}
		for _, strict := range []bool{false, true} {
			key, ok, err := kakuteihttp.ParseKey(h, strict)
			refused := f.key == "" || strict && !f.strict
			switch {
			case f.absent && (key != "" || ok || err != nil),
				!f.absent && !ok,
				!f.absent && refused != (err != nil),
				!f.absent && !refused && key != f.key:
				t.Errorf("%s, strict %v: %q, %v, %v", f.name, strict, key, ok, err)
			}
			if err != nil && f.key != "" && len(f.key) > 8 && strings.Contains(err.Error(), f.key) {
				t.Errorf("%s: the error holds the key: %v", f.name, err)
			}
		}
	}
}

// FuzzParseKey compares with what the rules say, written down apart from the code.
func FuzzParseKey(f *testing.F) {
	for _, x := range forms() {
		for line := range strings.Lines(x.lines) {
			_, value, _ := strings.Cut(line, ":")
			f.Add(strings.Trim(value, " \t\r\n"), false)
			f.Add(strings.Trim(value, " \t\r\n"), true)
		}
	}
	for _, params := range []string{`;a=1.5`, `;a=-1`, `;a=?1`, `;a=:YWJj:`, `;a=:YWJ:`, `;a=@1`, `;a=%"%c3%bc"`, `;a=%"%ff"`, `;a=tok/en`, `;*`, `;a=1234567890123456`, `;a=1.`, `; a`, ` ;a`, `;a =1`} {
		f.Add(`"k"`+params, true)
	}
	f.Fuzz(func(t *testing.T, value string, strict bool) {
		key, ok, err := kakuteihttp.ParseKey(http.Header{kakuteihttp.Header: {value}}, strict)
		if !ok {
			t.Fatalf("%q is taken for no key at all", value)
		}
		want, verdict := keyByTheRules(value, strict)
		switch {
		case verdict == refuse && err == nil:
			t.Errorf("%q, strict %v: the rules refuse it; got key %q", value, strict, key)
		case verdict == accept && (err != nil || key != want):
			t.Errorf("%q, strict %v: got %q, %v; the rules say %q", value, strict, key, err, want)
		case err == nil && (key == "" || len(key) > 255):
			t.Errorf("%q: a key of %d bytes", value, len(key))
		case err == nil && !strict:
			// Whatever is a key can be written as a string, and is the same then.
			quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
			if again, _, err := kakuteihttp.ParseKey(http.Header{kakuteihttp.Header: {quoted}}, true); err != nil || again != key {
				t.Errorf("%q as a string: %q, %v", key, again, err)
			}
		}
	})
}

type verdict int

const (
	refuse verdict = iota
	accept
	open // RFC 9651 leaves it to the recipient
)

// The grammar of RFC 9651 for a string with parameters, as one expression.
var (
	sfString    = `"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"`
	sfByteSeq   = `:[A-Za-z0-9+/=]*:`
	sfDisplay   = `%"(?:[\x20-\x21\x23-\x24\x26-\x7e]|%[0-9a-f]{2})*"`
	sfBareItem  = strings.Join([]string{`-?[0-9]{1,15}`, `-?[0-9]{1,12}\.[0-9]{1,3}`, sfString, `[A-Za-z*][!#$%&'*+\-.^_` + "`" + `|~0-9A-Za-z:/]*`, sfByteSeq, `\?[01]`, `@-?[0-9]{1,15}`, sfDisplay}, "|")
	sfParam     = `; *[a-z*][a-z0-9_\-.*]*(?:=(?:` + sfBareItem + `))?`
	sfKey       = regexp.MustCompile(`\A` + sfString + `((?:` + sfParam + `)*) *\z`)
	sfOneParam  = regexp.MustCompile(sfParam)
	bareKey     = regexp.MustCompile(`\A[\x21\x23-\x2b\x2d-\x3a\x3c-\x7e]{1,255}\z`)
	startsAsKey = regexp.MustCompile(`\A"`)
)

// keyByTheRules is the oracle: docs/protocol.md and RFC 9651, section 4.2.
func keyByTheRules(value string, strict bool) (key string, v verdict) {
	if !startsAsKey.MatchString(value) {
		if strict || !bareKey.MatchString(value) {
			return "", refuse
		}
		return value, accept
	}
	m := sfKey.FindStringSubmatch(value)
	if m == nil {
		return "", refuse
	}
	key = regexp.MustCompile(`\\(.)`).ReplaceAllString(m[1], "$1")
	if key == "" || len(key) > 255 {
		return "", refuse
	}
	v = accept
	for _, p := range sfOneParam.FindAllString(m[2], -1) {
		_, item, _ := strings.Cut(p, "=")
		switch {
		case strings.HasPrefix(item, ":"):
			if _, err := base64.StdEncoding.DecodeString(strings.Trim(item, ":")); err != nil {
				v = open // padding may be missing; some decoders cannot be told
			}
		case strings.HasPrefix(item, `%"`):
			text, err := url.PathUnescape(item[2 : len(item)-1])
			if err != nil || !utf8.ValidString(text) {
				return "", refuse
			}
		}
	}
	return key, v
}
