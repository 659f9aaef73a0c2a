package kakuteihttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/memstore"
)

const benchBody = `{"amount":100,"currency":"EUR"}`

// benchHandler is about as much as a small JSON handler does.
func benchHandler(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	io.WriteString(w, `{"id":"ch_1","status":"paid"}`)
}

// benchmark measures ServeHTTP without a network: the cost of the middleware
// with its engine and a store in memory. The request is made outside of it.
func benchmark(b *testing.B, h http.Handler, key func(i int) string, status int) {
	b.Helper()
	target := &url.URL{Path: "/charges"}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r := &http.Request{
			Method: http.MethodPost, URL: target, RequestURI: "/charges", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header:        http.Header{"Content-Type": {"application/json"}, kakuteihttp.Header: {key(i)}},
			Body:          io.NopCloser(strings.NewReader(benchBody)),
			ContentLength: int64(len(benchBody)),
		}
		w := &discard{header: make(http.Header, 4)}
		h.ServeHTTP(w, r)
		if w.status != status {
			b.Fatalf("status %d, want %d", w.status, status)
		}
	}
}

// benchMiddleware returns the handler behind the middleware, on a store in memory.
func benchMiddleware(b *testing.B) (*memstore.Store, http.Handler) {
	b.Helper()
	store := memstore.New()
	engine, err := kakutei.New(store, kakutei.Options{ReplayMemoryBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { engine.Close(context.Background()) }) //nolint:errcheck // nothing runs
	protect, err := kakuteihttp.Middleware(engine, kakuteihttp.SingleScope, kakuteihttp.Options{Recovery: kakutei.Rerun})
	if err != nil {
		b.Fatal(err)
	}
	return store, protect(http.HandlerFunc(benchHandler))
}

func newKey(i int) string { return fmt.Sprintf("8e03978e-40d5-43dd-bc93-%012d", i) }

func oneKey(int) string { return "8e03978e-40d5-43dd-bc93-000000000000" }

// BenchmarkBareHandler is what the others are to be compared with.
func BenchmarkBareHandler(b *testing.B) {
	benchmark(b, http.HandlerFunc(benchHandler), newKey, 201)
}

// BenchmarkFirstRun: every request has a new key, runs, and is recorded.
func BenchmarkFirstRun(b *testing.B) {
	_, h := benchMiddleware(b)
	benchmark(b, h, newKey, 201)
}

// BenchmarkReplay: every request is answered from the record.
func BenchmarkReplay(b *testing.B) {
	_, h := benchMiddleware(b)
	h.ServeHTTP(&discard{header: http.Header{}}, directRequest(oneKey(0), benchBody))
	benchmark(b, h, oneKey, 201)
}

// BenchmarkRefusal: every request finds its key in flight.
func BenchmarkRefusal(b *testing.B) {
	store, h := benchMiddleware(b)
	op := chargeOp(oneKey(0), benchBody)
	op.Scope = "single"
	claim := kakutei.Claim{Operation: op, Owner: "another process", Lease: kakutei.MaxLease, Recovery: kakutei.Rerun}
	if d, err := store.Claim(context.Background(), []kakutei.Claim{claim}); err != nil || d[0].Outcome != kakutei.Acquired {
		b.Fatalf("%+v, %v", d, err)
	}
	benchmark(b, h, oneKey, 409)
}

// BenchmarkMalformed: every request is refused for its key, before any store.
func BenchmarkMalformed(b *testing.B) {
	_, h := benchMiddleware(b)
	benchmark(b, h, func(int) string { return `"malformed` }, 400)
}
