package wire_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"

	"github.com/kakutei-go/kakutei/internal/wire"
)

var update = flag.Bool("update", false, "write the golden files")

// everything has one of each kind of line.
func everything() (header, trailer http.Header) {
	return http.Header{
		"Content-Type":        {"application/json"},
		"Content-Disposition": {`attachment; filename="a, b; c.pdf"`},
		"Vary":                {"Accept", "Origin, Accept-Language"},
		"X-Empty":             {""},
		"X-Colon":             {": a: b:"},
		"X-Spaces":            {" \ta  b\t "},
		"X-Breaks":            {"a\r\nb: c\nd\re"},
		"X-Latin1":            {"caf\xe9\xff"},
		"x-small":             {"not canonical"},
		"X-Nothing":           nil,
		"X-None":              {},
		"Bad Name":            {"dropped"},
		"Bad:Name":            {"dropped"},
		"":                    {"dropped"},
	}, http.Header{"Expires": {"0"}, "X-Sum": {"1", "2"}}
}

// TestStoredForm is case 39: the stored form is what records hold for years, so
// it is compared with a file, byte for byte.
func TestStoredForm(t *testing.T) {
	t.Parallel()
	golden := filepath.Join("testdata", "golden", "header.txt")
	stored := wire.Encode(everything())
	got := quoted(stored)
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("stored form:\n%s\nwant:\n%s", got, want)
	}
	header, trailer, err := wire.Decode(stored)
	if err != nil {
		t.Fatal(err)
	}
	wantHeader := http.Header{
		"Content-Type":        {"application/json"},
		"Content-Disposition": {`attachment; filename="a, b; c.pdf"`},
		"Vary":                {"Accept", "Origin, Accept-Language"},
		"X-Empty":             {""},
		"X-Colon":             {": a: b:"},
		"X-Spaces":            {"a  b"},
		"X-Breaks":            {"a  b: c d e"},
		"X-Latin1":            {"caf\xe9\xff"},
		"x-small":             {"not canonical"},
	}
	if !maps.EqualFunc(header, wantHeader, slices.Equal) {
		t.Errorf("header %q, want %q", header, wantHeader)
	}
	if wantTrailer := (http.Header{"Expires": {"0"}, "X-Sum": {"1", "2"}}); !maps.EqualFunc(trailer, wantTrailer, slices.Equal) {
		t.Errorf("trailer %q, want %q", trailer, wantTrailer)
	}
}

// quoted shows every byte, so that nothing on the way to a file or through git
// can change one unseen.
func quoted(stored []byte) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(stored) {
		fmt.Fprintf(&b, "%q\n", line)
	}
	return b.Bytes()
}

// TestEmpty: no header is a record, too.
func TestEmpty(t *testing.T) {
	t.Parallel()
	stored := wire.Encode(nil, nil)
	if string(stored) != "kakutei/1\r\n\r\n" {
		t.Errorf("stored form %q", stored)
	}
	header, trailer, err := wire.Decode(stored)
	if err != nil || header == nil || trailer == nil || len(header)+len(trailer) != 0 {
		t.Errorf("%v, %v, %v", header, trailer, err)
	}
}

// TestFormat is case 24: what was not written by this version is refused; so is
// what was cut off, wherever.
func TestFormat(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{
		"", "kakutei", "kakutei/1", "kakutei/1\n\n", "kakutei/2\r\n\r\n", "kakutei/10\r\n\r\n", "KAKUTEI/1\r\n\r\n", " kakutei/1\r\n\r\n",
		`{"Content-Type":["text/plain"]}`, "HTTP/1.1 200 OK\r\n\r\n",
		"kakutei/1\r\n", "kakutei/1\r\nA: b\r\n", "kakutei/1\r\n\r\n\r\n", "kakutei/1\r\n\r\nA: b\r\n\r\n",
		"kakutei/1\r\nA\r\n\r\n", "kakutei/1\r\nA:b\r\n\r\n", "kakutei/1\r\n: b\r\n\r\n", "kakutei/1\r\nA b: c\r\n\r\n", "kakutei/1\r\n A: c\r\n\r\n",
	} {
		if header, trailer, err := wire.Decode([]byte(stored)); !errors.Is(err, wire.ErrFormat) || header != nil || trailer != nil {
			t.Errorf("%q: %v, %v, %v; want ErrFormat", stored, header, trailer, err)
		}
	}
	whole := wire.Encode(everything())
	end := bytes.Index(whole, []byte("\r\n\r\n")) + 4
	for n := range len(whole) {
		_, _, err := wire.Decode(whole[:n])
		// A trailer that is cut off between two lines cannot be told from a shorter one.
		if atLine := n >= end && bytes.HasSuffix(whole[:n], []byte("\r\n")); (err == nil) != atLine {
			t.Errorf("cut off after %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

// TestEncodeKeepsItsInput: the header belongs to the caller, and goes out after.
func TestEncodeKeepsItsInput(t *testing.T) {
	t.Parallel()
	header, trailer := everything()
	wire.Encode(header, trailer)
	if want, _ := everything(); !maps.EqualFunc(header, want, slices.Equal) {
		t.Errorf("the header was changed: %q", header)
	}
}

// FuzzDecode: nothing that is stored makes the reader fail in another way than
// ErrFormat, and what it accepts is what Encode writes.
func FuzzDecode(f *testing.F) {
	f.Add(wire.Encode(everything()))
	f.Add(wire.Encode(nil, nil))
	for _, s := range []string{"", "kakutei/2\r\n\r\n", "kakutei/1\r\nA: b\r\nA: c\r\n\r\n", "kakutei/1\r\nB: \r\nA:  x\r\n\r\nT: y\r\n", "kakutei/1\r\n\r\n\r\n", "kakutei/1\r\nA: \rb\n\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		header, trailer, err := wire.Decode(stored)
		if err != nil {
			if !errors.Is(err, wire.ErrFormat) {
				t.Fatalf("another error: %v", err)
			}
			return
		}
		again := wire.Encode(header, trailer)
		h2, t2, err := wire.Decode(again)
		if err != nil {
			t.Fatalf("written again as %q: %v", again, err)
		}
		if !maps.EqualFunc(normal(header), h2, slices.Equal) || !maps.EqualFunc(normal(trailer), t2, slices.Equal) {
			t.Fatalf("read %q, %q; written again and read: %q, %q", header, trailer, h2, t2)
		}
	})
}

// FuzzRoundTrip: every header comes back as net/http would have written it.
func FuzzRoundTrip(f *testing.F) {
	f.Add("Content-Type", "text/plain", "Vary", "Accept", "Origin")
	f.Add("Vary", "a", "Vary", "b", "")
	f.Add("x-small", " a ", "Bad Name", "b", "c\r\nd: e")
	f.Add("", ": ", "A:", "\x00", "\xff")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2, value3 string) {
		header := http.Header{name1: {value1}}
		header[name2] = append(header[name2], value2, value3)
		trailer := http.Header{name2: {value1}}
		stored := wire.Encode(header, trailer)
		h2, t2, err := wire.Decode(stored)
		if err != nil {
			t.Fatalf("stored as %q: %v", stored, err)
		}
		if !maps.EqualFunc(normal(header), h2, slices.Equal) || !maps.EqualFunc(normal(trailer), t2, slices.Equal) {
			t.Fatalf("%q, %q came back as %q, %q", header, trailer, h2, t2)
		}
		if !bytes.Equal(stored, wire.Encode(h2, t2)) {
			t.Fatalf("%q is stored in two forms", header)
		}
	})
}

// normal is a header as it stands on the wire, by the rules of RFC 9110: names
// are tokens, values hold no line breaks and no blanks at their ends.
func normal(h http.Header) http.Header {
	out := make(http.Header)
	for name, values := range h {
		for _, v := range values {
			if httpguts.ValidHeaderFieldName(name) {
				v = strings.NewReplacer("\n", " ", "\r", " ").Replace(v)
				out[name] = append(out[name], strings.Trim(v, "\t "))
			}
		}
	}
	return out
}
