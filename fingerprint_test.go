package kakutei_test

import (
	"bytes"
	"encoding/hex"
	"mime"
	"reflect"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// Parts are hashed with their length: no two lists of parts read alike.
func TestFingerprintParts(t *testing.T) {
	t.Parallel()
	lists := [][]string{
		{}, {""}, {"", ""}, {"abc"}, {"a", "bc"}, {"ab", "c"}, {"", "abc"}, {"abc", ""}, {"a", "b", "c"},
		{"\x00\x00\x00\x00\x00\x00\x00\x03abc"}, {"abc\x00"}, {"call"}, {"http"}, {"ABC"},
	}
	seen := map[kakutei.Fingerprint][]string{}
	for _, l := range lists {
		parts := make([][]byte, len(l))
		for i, p := range l {
			parts[i] = []byte(p)
		}
		fp := kakutei.FingerprintOf(parts...)
		assert.Equal(t, fp, kakutei.FingerprintOf(parts...), "the same parts again")
		assert.Equal(t, fp.Version, kakutei.FingerprintVersion, "version")
		if other, ok := seen[fp]; ok {
			t.Errorf("%q and %q have one fingerprint", other, l)
		}
		seen[fp] = l
	}
}

// A stored fingerprint outlives the program. If this test fails, records that
// exist do not match any more: make a new version instead.
func TestFingerprintIsStable(t *testing.T) {
	t.Parallel()
	got := kakutei.FingerprintOf([]byte("charge"), []byte("100")).Bytes()
	assert.Equal(t, hex.EncodeToString(got), "013e49788ec1beabb7744d6cf481a15ca3dc4c347f3668574c6fe8e899887bc15b", "call")
	got = kakutei.Request{
		Method: "POST", Path: "/charges", Query: "dry=1", ContentType: "Application/JSON; charset=utf-8",
		ContentEncoding: "GZIP", Body: []byte(`{"amount":100}`),
	}.Fingerprint().Bytes()
	assert.Equal(t, hex.EncodeToString(got), "013aa87ce4e4e428d9ff1de415bed0b1038b81d2e61a005039ccbb8c13a2ec7c35", "request")
}

// Case 30, the root package's part: every field counts. Case 32: the path and
// the query do, with the border between them.
func TestCase30EveryFieldCounts(t *testing.T) {
	t.Parallel()
	base := kakutei.Request{Method: "POST", Path: "/x", Query: "a=1", ContentType: "text/plain", ContentEncoding: "gzip", Body: []byte("body")}
	variants := []kakutei.Request{base, {}, {Method: "POST", Path: "/x", Query: "dry=1"}, {Method: "POST", Path: "/x"}, {Method: "POST", Path: "/xdry=1"}, {Method: "POST", Path: "/x?dry=1"}}
	typ := reflect.TypeFor[kakutei.Request]()
	for i := range typ.NumField() {
		for _, change := range []func(reflect.Value){
			func(f reflect.Value) { f.SetZero() },
			func(f reflect.Value) {
				if f.Kind() == reflect.String {
					f.SetString(f.String() + "x")
				} else {
					f.SetBytes(append(bytes.Clone(f.Bytes()), 'x'))
				}
			},
		} {
			r := base
			change(reflect.ValueOf(&r).Elem().Field(i))
			variants = append(variants, r)
		}
	}
	// Two neighbours must not merge either.
	moved := base
	moved.Path, moved.Query = "/xa", "=1"
	variants = append(variants, moved)
	seen := map[kakutei.Fingerprint]kakutei.Request{}
	for _, r := range variants {
		fp := r.Fingerprint()
		if other, ok := seen[fp]; ok {
			t.Errorf("%+v and %+v have one fingerprint", other, r)
		}
		seen[fp] = r
	}
	// A call is never taken for a request.
	call := kakutei.FingerprintOf([]byte(base.Method), []byte(base.Path), []byte(base.Query), []byte(base.ContentType), []byte(base.ContentEncoding), base.Body)
	assert.True(t, call != base.Fingerprint(), "a call and a request have one fingerprint")
}

// Spellings of one media type are one request.
func TestMediaTypeSpellings(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b string
		same bool
	}{
		{"application/json", "Application/JSON", true},
		{"text/plain; charset=utf-8", "text/plain;charset=utf-8", true},
		{"text/plain; charset=utf-8", `text/plain; CHARSET="utf-8"`, true},
		{"a/b; x=1; y=2", "a/b; y=2; x=1", true},
		{"multipart/form-data; boundary=a", "multipart/form-data; boundary=A", false},
		{"text/plain; charset=utf-8", "text/plain; charset=latin1", false},
		{"application/json", "application/json; charset=utf-8", false},
		{"application/json", "text/json", false},
		{"", "application/json", false},
		{"a/b; x=1; x=2", "a/b; x=1", false}, // not a media type: compared as it is
		{"a/b;;;=", "a/b", false},
		{"///", "//", false},
	} {
		a, b := kakutei.Request{ContentType: tc.a}.Fingerprint(), kakutei.Request{ContentType: tc.b}.Fingerprint()
		assert.True(t, (a == b) == tc.same, "%q and %q: one request: %v, want %v", tc.a, tc.b, a == b, tc.same)
	}
	gzip, upper := kakutei.Request{ContentEncoding: "gzip"}, kakutei.Request{ContentEncoding: "GZip"}
	assert.Equal(t, gzip.Fingerprint(), upper.Fingerprint(), "content codings are compared without case")
}

func TestFingerprintAt(t *testing.T) {
	t.Parallel()
	r := kakutei.Request{Method: "POST", Path: "/x"}
	fp, ok := r.FingerprintAt(kakutei.FingerprintVersion)
	assert.True(t, ok && fp == r.Fingerprint(), "the current version is not the default")
	for _, v := range []uint8{0, kakutei.FingerprintVersion + 1, 255} {
		_, ok := r.FingerprintAt(v)
		assert.True(t, !ok, "version %d is said to be known", v)
	}
}

func TestFingerprintStoredForm(t *testing.T) {
	t.Parallel()
	fp := kakutei.FingerprintOf([]byte("x"))
	got, err := kakutei.ParseFingerprint(fp.Bytes())
	assert.NoError(t, err)
	assert.Equal(t, got, fp, "round trip")
	newer := append([]byte{9}, fp.Sum[:]...)
	got, err = kakutei.ParseFingerprint(newer) // read, so that it can be answered with a mismatch of versions
	assert.NoError(t, err)
	assert.Equal(t, got.Version, 9, "version")
	for _, b := range [][]byte{nil, {}, {1}, fp.Bytes()[:32], append(fp.Bytes(), 0), append([]byte{0}, fp.Sum[:]...)} {
		_, err := kakutei.ParseFingerprint(b)
		assert.ErrorIs(t, err, kakutei.ErrCorrupt)
	}
}

func FuzzParseFingerprint(f *testing.F) {
	fp := kakutei.FingerprintOf([]byte("x"))
	for _, b := range [][]byte{nil, {1}, fp.Bytes(), append(fp.Bytes(), 0), append([]byte{0}, fp.Sum[:]...), append([]byte{255}, fp.Sum[:]...)} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		fp, err := kakutei.ParseFingerprint(b)
		if err != nil {
			assert.ErrorIs(t, err, kakutei.ErrCorrupt)
			assert.Equal(t, fp, kakutei.Fingerprint{}, "fingerprint beside an error")
			return
		}
		assert.True(t, bytes.Equal(fp.Bytes(), b), "%x came back as %x", b, fp.Bytes())
	})
}

func FuzzCanonicalMediaType(f *testing.F) {
	for _, v := range []string{
		"", "application/json", "Text/Plain; Charset=UTF-8", `multipart/form-data; boundary="a b"`, "a/b; x*=utf-8''%e2%82%ac",
		"a/b; x*0=1; x*1=2", "a/b; x=1; x=2", "form-data; name=\"\\\"\"", "a/b;", "\xff/\xfe", "a/b; x=\"\x00\"", "a", "a/b; x=", "a/b; x*=%",
	} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		c := kakutei.CanonicalMediaType(v)
		if again := kakutei.CanonicalMediaType(c); again != c {
			t.Errorf("%q is %q, and that is %q: not canonical", v, c, again)
		}
		mt, params, err := mime.ParseMediaType(v)
		if err != nil {
			assert.Equal(t, c, v, "what is no media type")
			return
		}
		// It must still mean the same: two types with one canonical form are one.
		mt2, params2, err := mime.ParseMediaType(c)
		if err != nil || mt != mt2 || !reflect.DeepEqual(params, params2) {
			t.Errorf("%q means %q %q; its canonical form %q means %q %q (%v)", v, mt, params, c, mt2, params2, err)
		}
	})
}
