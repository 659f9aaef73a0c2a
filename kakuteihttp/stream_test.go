package kakuteihttp_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// TestTooLarge is case 22: the first client gets all of an answer that outgrows
// the limit, a retry is told that it was not kept, and n is 1.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	const limit, size = 64 << 10, 8 << 20
	both(t, func(t *testing.T, http2 bool) {
		for _, declared := range []bool{false, true} {
			s := (&site{http2: http2, opts: kakuteihttp.Options{MaxResponseBytes: limit}, handler: func(w http.ResponseWriter, _ *http.Request) {
				if declared {
					w.Header().Set("Content-Length", strconv.Itoa(size))
				}
				w.WriteHeader(201)
				io.Copy(w, io.LimitReader(&pattern{}, size))
			}}).start(t)
			first := s.post("k", "")
			if first.err != nil || first.status != 201 || len(first.body) != size {
				t.Fatalf("declared %v: the first client got %d, %d bytes, %v", declared, first.status, len(first.body), first.err)
			}
			want, _ := io.ReadAll(io.LimitReader(&pattern{}, size))
			if sha256.Sum256([]byte(first.body)) != sha256.Sum256(want) {
				t.Errorf("declared %v: the body is not what the handler wrote", declared)
			}
			for range 2 {
				wantProblem(t, s.post("k", ""), 409, "result-not-retained")
			}
			s.want(1, "k", kakutei.StatusSucceeded)
			if rec := s.record("k"); len(rec.Result.Body) != 0 {
				t.Errorf("%d bytes of an answer that was not kept are in the record", len(rec.Result.Body))
			}
		}
	})
}

// pattern is an endless text in which no two blocks are alike.
type pattern struct{ n uint32 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(p.n ^ p.n>>8 ^ p.n>>16)
		p.n++
	}
	return len(b), nil
}

// TestAtTheLimit is case 22: exactly the limit is kept, one byte more is not.
func TestAtTheLimit(t *testing.T) {
	t.Parallel()
	const limit = 1000
	s := (&site{opts: kakuteihttp.Options{MaxResponseBytes: limit}, handler: func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Path[1:])
		for range n {
			w.Write([]byte("x"))
		}
	}}).start(t)
	for _, n := range []int{limit, limit + 1} {
		c := call{key: fmt.Sprint(n), path: fmt.Sprintf("/%d", n)}
		wantAnswer(t, s.do(c), 200, strings.Repeat("x", n))
		if n == limit {
			wantReplay(t, s.do(c), 200, strings.Repeat("x", n))
		} else {
			wantProblem(t, s.do(c), 409, "result-not-retained")
		}
	}
	s.want(2, "", 0)
}

// TestTooLargeMemory is case 22: what does not fit is not kept in memory either,
// whether it fits the length that the handler has declared or goes beyond it.
func TestTooLargeMemory(t *testing.T) {
	const size, limit = 64 << 20, 64 << 10
	block := bytes.Repeat([]byte("x"), 32<<10)
	for _, declared := range []string{"", strconv.Itoa(size), "10"} {
		var refused error
		s := &site{opts: kakuteihttp.Options{MaxResponseBytes: limit}, handler: func(w http.ResponseWriter, _ *http.Request) {
			if declared != "" {
				w.Header().Set("Content-Length", declared)
			}
			w.(http.Flusher).Flush()
			for range size / len(block) {
				if _, err := w.Write(block); err != nil {
					refused = err
				}
			}
		}}
		h := s.protect(t)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := &discard{header: http.Header{}}
		func() {
			defer func() {
				if v := recover(); v != nil && (v != http.ErrAbortHandler || declared != "10") { //nolint:errorlint // the very value
					t.Errorf("declared %q: panic: %v", declared, v)
				}
			}()
			h.ServeHTTP(w, directRequest("k", ""))
		}()
		runtime.ReadMemStats(&after)
		s.stop()
		if got := after.TotalAlloc - before.TotalAlloc; got > 2<<20 {
			t.Errorf("declared %q: %d KiB were allocated for an answer of %d MiB over a limit of %d KiB", declared, got>>10, size>>20, limit>>10)
		}
		switch {
		case declared == "10":
			if !errors.Is(refused, http.ErrContentLength) || w.n > 10 {
				t.Errorf("more than was declared: %d bytes went out, and the handler was told %v", w.n, refused)
			}
		case w.n != size || refused != nil:
			t.Errorf("declared %q: %d bytes went out, %v", declared, w.n, refused)
		}
	}
}

// TestFlushed is case 22: an answer under the limit that is flushed reaches its
// client at once, is kept, and is replayed.
func TestFlushed(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		read := make(chan struct{})
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: 1\n\n")
			w.(http.Flusher).Flush()
			<-read
			io.WriteString(w, "data: 2\n\n")
			w.(http.Flusher).Flush()
			io.WriteString(w, "data: 3\n\n")
		}}).start(t)
		resp, err := s.client.Do(s.request(context.Background(), call{key: "k"}))
		if err != nil {
			t.Fatal(err)
		}
		first := make([]byte, 9)
		if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "data: 1\n\n" {
			t.Fatalf("flushed: %q, %v", first, err)
		}
		close(read)
		rest, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(rest) != "data: 2\n\ndata: 3\n\n" {
			t.Fatalf("rest: %q, %v", rest, err)
		}
		for range 2 {
			again := s.post("k", "")
			wantReplay(t, again, 200, "data: 1\n\ndata: 2\n\ndata: 3\n\n")
			if got := again.header["Content-Type"]; len(got) != 1 || got[0] != "text/event-stream" {
				t.Errorf("media type of the replay: %q", got)
			}
		}
		s.want(1, "k", kakutei.StatusSucceeded)
	})
}

// broken is a way in which an answer that has begun can fail to be recorded.
type broken struct {
	name string
	// spoil is called by the handler before it ends.
	spoil func(s *site, r *http.Request)
	// retry checks what the next client gets.
	retry func(t *testing.T, r *reply)
}

func breakages() []broken {
	recorded := kakutei.Result{Code: 202, Header: []byte("kakutei/1\r\n\r\n"), Body: []byte("of the other attempt")}
	return []broken{
		{"overtaken and running", func(s *site, r *http.Request) { s.lose(r) }, func(t *testing.T, r *reply) {
			wantProblem(t, r, 409, "in-flight")
		}},
		{"overtaken and done", func(s *site, r *http.Request) { s.store.succeed(s.t, s.lose(r), recorded) }, func(t *testing.T, r *reply) {
			wantReplay(t, r, 202, "of the other attempt")
		}},
		{"store lost", func(s *site, _ *http.Request) {
			s.store.hook(func(st *store) {
				st.settle = func([]kakutei.Settlement, settleFunc) ([]error, error) { return nil, errors.New("the store is away") }
			})
		}, func(t *testing.T, r *reply) { wantProblem(t, r, 409, "in-flight") }},
	}
}

// TestFlushedButNotRecorded is case 22, and G7: no client takes an answer that
// the store does not hold for a whole one. What has begun is broken off.
func TestFlushedButNotRecorded(t *testing.T) {
	t.Parallel()
	shapes := map[string]func(w http.ResponseWriter, flush func()){
		"flushed":            func(w http.ResponseWriter, flush func()) { io.WriteString(w, "part"); flush() },
		"flushed at the end": func(w http.ResponseWriter, flush func()) { io.WriteString(w, "partend"); flush() },
		"only flushed":       func(_ http.ResponseWriter, flush func()) { flush() },
		"declared": func(w http.ResponseWriter, flush func()) {
			w.Header().Set("Content-Length", "7")
			io.WriteString(w, "part")
			flush()
			io.WriteString(w, "end")
			flush()
		},
		"declared, in one piece": func(w http.ResponseWriter, flush func()) {
			w.Header().Set("Content-Length", "7")
			w.WriteHeader(200)
			flush()
			io.WriteString(w, "partend")
			flush()
		},
		"with identity coding": func(w http.ResponseWriter, flush func()) {
			w.Header().Set("Transfer-Encoding", "identity")
			io.WriteString(w, "partend")
			flush()
		},
		"too large": func(w http.ResponseWriter, _ func()) { w.Write(make([]byte, 5000)) },
		"too large, declared": func(w http.ResponseWriter, _ func()) {
			w.Header().Set("Content-Length", "5000")
			w.Write(make([]byte, 4000))
			w.Write(make([]byte, 1000))
		},
		"too large, with trailer": func(w http.ResponseWriter, _ func()) {
			w.Header().Set("Trailer", "X-Sum")
			w.Write(make([]byte, 5000))
			w.Header().Set("X-Sum", "1")
		},
	}
	both(t, func(t *testing.T, http2 bool) {
		for shape, write := range shapes {
			for _, b := range breakages() {
				t.Run(b.name+"/"+shape, func(t *testing.T) {
					t.Parallel()
					s := &site{http2: http2, opts: kakuteihttp.Options{MaxResponseBytes: 1000}, engine: kakutei.Options{SettleTimeout: 20 * time.Millisecond}}
					s.handler = func(w http.ResponseWriter, r *http.Request) {
						write(w, w.(http.Flusher).Flush)
						b.spoil(s, r)
					}
					s.start(t)
					s.store.expireAtOnce()
					first := s.post("k", "")
					if first.err == nil {
						t.Errorf("the client got a whole answer: %d %.20q", first.status, first.body)
					}
					s.want(1, "", 0)
					b.retry(t, s.post("k", ""))
					s.want(1, "", 0)
				})
			}
		}
	})
}

// TestWholeInItsHeader is case 22, and G7: an answer that has no body is whole
// with its header, which therefore waits for the record, flushed or not.
func TestWholeInItsHeader(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		for _, name := range []string{"204", "304", "201"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := &site{http2: http2}
				s.handler = func(w http.ResponseWriter, r *http.Request) {
					status, _ := strconv.Atoi(name)
					if status == 201 {
						w.Header().Set("Content-Length", "0")
					}
					w.WriteHeader(status)
					w.(http.Flusher).Flush()
					s.lose(r)
				}
				s.start(t)
				s.store.expireAtOnce()
				wantProblem(t, s.post("k", ""), 409, "in-flight")
			})
		}
	})
}

// TestFlushHTTP10 is case 22, and G7: a client of HTTP/1.0, such as nginx in its
// default configuration, takes the end of the connection for the end of the
// answer, so that an answer cannot be broken off once it has begun.
func TestFlushHTTP10(t *testing.T) {
	t.Parallel()
	s := &site{}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "paid")
		w.(http.Flusher).Flush()
		if r.Header.Get("Lose") != "" {
			s.lose(r)
		}
	}
	s.start(t)
	s.store.expireAtOnce()
	for _, lose := range []string{"", "Lose: 1\r\n"} {
		conn := s.dial()
		conn.say("POST /charges HTTP/1.0\r\nHost: x\r\nIdempotency-Key: k" + lose[:min(4, len(lose))] + "\r\n" + lose + "\r\n")
		if r := conn.hear(); lose == "" {
			wantAnswer(t, r, 200, "paid")
		} else {
			wantProblem(t, r, 409, "in-flight")
		}
	}
	s.want(2, "", 0)
}

// TestNotAsDeclared: an answer of another length than its handler declared is
// broken for the first client, as it is without the middleware, and no retry
// gets it as a whole one.
func TestNotAsDeclared(t *testing.T) {
	t.Parallel()
	shapes := map[string]http.HandlerFunc{
		"shorter": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"id":`)
		},
		"longer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "8")
			io.WriteString(w, `{"id":`)
			if n, err := io.WriteString(w, `"ch_1"}`); n != 0 || !errors.Is(err, http.ErrContentLength) {
				panic("more than was declared was taken")
			}
		},
	}
	both(t, func(t *testing.T, http2 bool) {
		for name, handle := range shapes {
			s := (&site{http2: http2, handler: handle}).start(t)
			if first := s.post("k", ""); first.err == nil || first.body != `{"id":` {
				t.Errorf("%s: the first client got %d %q, %v", name, first.status, first.body, first.err)
			}
			wantProblem(t, s.post("k", ""), 409, "result-not-retained")
			s.want(1, "k", kakutei.StatusSucceeded)
		}
	})
}
