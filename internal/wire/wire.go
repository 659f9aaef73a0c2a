// Package wire is the stored form of an HTTP header: readable by a person with
// a database client, exact to the byte, and marked with its version.
//
//	kakutei/1
//	Content-Type: application/json
//	Vary: Accept
//	Vary: Origin
//
//	Expires: trailer fields follow the empty line
package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

const version1 = "kakutei/1"

// ErrFormat: bytes that this program did not write, or a newer version did.
var ErrFormat = errors.New("wire: the stored header cannot be read")

// Encode returns the stored form. Fields are sorted by name; the lines of one
// field keep their order and their bytes. Line breaks within a value become
// spaces, as net/http writes them.
func Encode(header, trailer http.Header) []byte {
	var b bytes.Buffer
	b.WriteString(version1 + "\r\n")
	encode(&b, header)
	b.WriteString("\r\n")
	encode(&b, trailer)
	return b.Bytes()
}

var breaks = strings.NewReplacer("\r", " ", "\n", " ")

func encode(b *bytes.Buffer, h http.Header) {
	names := make([]string, 0, len(h))
	for name := range h {
		// net/http drops names that are not tokens; so does the record.
		if httpguts.ValidHeaderFieldName(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range h[name] {
			fmt.Fprintf(b, "%s: %s\r\n", name, strings.Trim(breaks.Replace(value), " \t"))
		}
	}
}

// Decode reads the stored form. Its errors wrap [ErrFormat].
func Decode(b []byte) (header, trailer http.Header, err error) {
	rest, ok := bytes.CutPrefix(b, []byte(version1+"\r\n"))
	if !ok {
		return nil, nil, fmt.Errorf("%w: it does not begin with %q", ErrFormat, version1)
	}
	header = make(http.Header)
	into := header
	for len(rest) > 0 {
		line, after, ok := bytes.Cut(rest, []byte("\r\n"))
		if !ok {
			return nil, nil, fmt.Errorf("%w: it breaks off in a line", ErrFormat)
		}
		rest = after
		if len(line) == 0 && trailer == nil {
			trailer = make(http.Header)
			into = trailer
			continue
		}
		name, value, ok := strings.Cut(string(line), ": ")
		if !ok || !httpguts.ValidHeaderFieldName(name) {
			return nil, nil, fmt.Errorf("%w: a line without a name", ErrFormat)
		}
		into[name] = append(into[name], value)
	}
	if trailer == nil {
		return nil, nil, fmt.Errorf("%w: it breaks off in the header", ErrFormat)
	}
	return header, trailer, nil
}
