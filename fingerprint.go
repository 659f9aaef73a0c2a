package kakutei

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"mime"
	"strings"
)

// FingerprintVersion is the version that new fingerprints are made with.
const FingerprintVersion uint8 = 1

// Fingerprint is the SHA-256 of what makes one request different from another,
// with the version of the rule that it was computed by. It is comparable with ==.
type Fingerprint struct {
	Version uint8
	Sum     [sha256.Size]byte
}

// FingerprintOf returns the fingerprint of a call that is not an HTTP request:
// a queue message, a job, an RPC. Every part is hashed with its length, so that
// ("a", "bc") and ("ab", "c") differ.
func FingerprintOf(parts ...[]byte) Fingerprint {
	return Fingerprint{Version: FingerprintVersion, Sum: sumParts("call", parts...)}
}

// Bytes returns the stored form: the version in one byte, then the sum.
func (f Fingerprint) Bytes() []byte {
	return append([]byte{f.Version}, f.Sum[:]...)
}

// ParseFingerprint reads the stored form. Anything else is an [ErrCorrupt].
func ParseFingerprint(b []byte) (Fingerprint, error) {
	var f Fingerprint
	if len(b) != 1+len(f.Sum) || b[0] == 0 {
		return Fingerprint{}, fmt.Errorf("%w: a fingerprint of %d bytes", ErrCorrupt, len(b))
	}
	f.Version = b[0]
	copy(f.Sum[:], b[1:])
	return f, nil
}

// Request is the part of an HTTP request that its fingerprint covers. What
// legitimately changes between two sendings of one request (User-Agent, trace
// headers, credentials, Date, Host) is left out.
type Request struct {
	Method string
	// Path is the escaped path as it was sent, Query the raw query.
	Path, Query string
	// ContentType and ContentEncoding are the header values as they were sent.
	ContentType, ContentEncoding string
	// Body is the whole body as it was sent.
	Body []byte
}

// Fingerprint returns the fingerprint by the current version.
func (r Request) Fingerprint() Fingerprint {
	f, _ := r.FingerprintAt(FingerprintVersion)
	return f
}

// FingerprintAt returns the fingerprint by the given version, and false if this
// program does not know it. It fits [Operation.FingerprintFunc].
func (r Request) FingerprintAt(version uint8) (Fingerprint, bool) {
	if version != 1 {
		return Fingerprint{}, false
	}
	return Fingerprint{Version: 1, Sum: sumParts("http",
		[]byte(r.Method), []byte(r.Path), []byte(r.Query),
		[]byte(canonicalMediaType(r.ContentType)), []byte(strings.ToLower(r.ContentEncoding)), r.Body)}, true
}

// canonicalMediaType lets the spellings of one media type (case, spaces, order
// of parameters) hash alike. What cannot be parsed is compared as it is.
func canonicalMediaType(v string) string {
	if v == "" {
		return ""
	}
	mediaType, params, err := mime.ParseMediaType(v)
	if err != nil {
		return v
	}
	if s := mime.FormatMediaType(mediaType, params); s != "" {
		return s
	}
	return v
}

// sumParts hashes each part after its length. domain keeps the kinds of
// fingerprint apart, so that a call can never be taken for an HTTP request.
func sumParts(domain string, parts ...[]byte) (sum [sha256.Size]byte) {
	h := sha256.New()
	var length [8]byte
	write := func(p []byte) {
		binary.BigEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write(p)
	}
	write([]byte(domain))
	for _, p := range parts {
		write(p)
	}
	h.Sum(sum[:0])
	return sum
}
