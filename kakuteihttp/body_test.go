package kakuteihttp_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// TestRequestTooLarge is case 41: a body over the limit is refused, whatever its
// length claims, and leaves no record. The limit itself is taken.
func TestRequestTooLarge(t *testing.T) {
	t.Parallel()
	const limit = 1000 // so little that it is sent before the server hangs up
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, opts: kakuteihttp.Options{MaxRequestBytes: limit}, handler: func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, n, err)
		}}).start(t)
		for _, chunked := range []bool{false, true} {
			send := func(key string, n int) *reply {
				var body io.Reader = strings.NewReader(strings.Repeat("x", n))
				if chunked {
					body = io.MultiReader(body)
				}
				return s.do(call{key: key, reader: body})
			}
			key := fmt.Sprint("k", chunked)
			wantAnswer(t, send(key, limit), 200, fmt.Sprint(limit, nil))
			wantProblem(t, send(key+"-1", limit+1), 413, "request-too-large")
			s.want(map[bool]int32{false: 1, true: 2}[chunked], key+"-1", kakutei.StatusNone)
		}
	})
}

// TestLyingLength is case 41: a length that is not true, or not there, costs no
// memory and runs nothing.
func TestLyingLength(t *testing.T) {
	t.Parallel()
	const head = "POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"
	for _, c := range []struct {
		name, request string
		status        int
		problem       string
	}{
		{"far too long", head + "Content-Length: 4000000000000\r\n\r\nabc", 413, "request-too-large"},
		{"longer than int64", head + "Content-Length: 99999999999999999999\r\n\r\nabc", 400, ""},
		{"negative", head + "Content-Length: -1\r\n\r\nabc", 400, ""},
		{"two lengths", head + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400, ""},
		{"longer than the body", head + "Content-Length: 4000000\r\n\r\nabc", 400, "body-unreadable"},
		{"chunks break off", head + "Transfer-Encoding: chunked\r\n\r\n5\r\nabc", 400, "body-unreadable"},
		{"no last chunk", head + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", 400, "body-unreadable"},
		{"not chunks", head + "Transfer-Encoding: chunked\r\n\r\nzzz\r\nabc\r\n", 400, "body-unreadable"},
		{"endless chunk", head + "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n" + strings.Repeat("x", 1<<20), 413, "request-too-large"},
		{"endless chunks", head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\nx\r\n", 110_000), 413, "request-too-large"},
		{"length and chunks", head + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, ""},
		{"nothing", head + "\r\n", 200, ""},
		{"length 0", head + "Content-Length: 0\r\n\r\n", 200, ""},
		{"shorter than what follows", head + "Content-Length: 2\r\n\r\n{}GET", 200, ""},
		{"refused expectation", head + "Content-Length: 4000000000\r\nExpect: 100-continue\r\n\r\n", 413, "request-too-large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := (&site{opts: kakuteihttp.Options{MaxRequestBytes: 100_000}, handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
			if c.name == "longer than the body" {
				s.stop()
				s = (&site{handler: func(http.ResponseWriter, *http.Request) {}}).start(t)
			}
			conn := s.dial()
			go func() { // the server may answer, and hang up, before it has all
				conn.say(c.request)
				if c.problem == "body-unreadable" {
					conn.Conn.(*net.TCPConn).CloseWrite() //nolint:errcheck // see above
				}
			}()
			r := conn.hear()
			if r.err != nil || r.status != c.status || r.problem() != c.problem {
				t.Errorf("got %d %q %v (%s), want %d %q", r.status, r.problem(), r.err, r.body, c.status, c.problem)
			}
			ran := int32(0)
			if c.status == 200 {
				ran = 1
			}
			s.want(ran, "", 0)
			if live, results := s.store.Len(); live != 0 || results != int(ran) {
				t.Errorf("%d live records, %d results", live, results)
			}
		})
	}
}

// greedy is a body that goes far beyond every limit and remembers how much of it
// was read. It ends, so that a fault costs a test and not the machine.
type greedy struct{ read int }

func (g *greedy) Read(p []byte) (int, error) {
	if g.read > 100<<20 {
		return 0, io.EOF
	}
	g.read += len(p)
	return len(p), nil
}

func (g *greedy) Close() error { return nil }

// TestBodyMemory is case 41: no more is read than the limit, and no memory is
// set aside on the client's word.
func TestBodyMemory(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	for _, length := range []int64{-1, limit} {
		s := &site{opts: kakuteihttp.Options{MaxRequestBytes: limit}, handler: func(http.ResponseWriter, *http.Request) {}}
		h := s.protect(t)
		t.Cleanup(s.stop)
		g := &greedy{}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set(kakuteihttp.Header, "k")
		r.Body, r.ContentLength = g, length
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 413 || g.read > 4*limit {
			t.Errorf("length %d: %d after %d bytes were asked for", length, w.Code, g.read)
		}
		s.want(0, "k", kakutei.StatusNone)
	}
	// A client that promises much and sends nothing.
	s := &site{opts: kakuteihttp.Options{MaxRequestBytes: 1 << 31}, handler: func(http.ResponseWriter, *http.Request) {}}
	h := s.protect(t)
	t.Cleanup(s.stop)
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.Header.Set(kakuteihttp.Header, "k")
	asked := 0
	r.Body, r.ContentLength = io.NopCloser(readerFunc(func(p []byte) (int, error) {
		asked = max(asked, len(p))
		return 0, io.ErrUnexpectedEOF
	})), 1<<30
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 400 || asked > 100<<10 {
		t.Errorf("%d; %d bytes were set aside for a body that was only promised", w.Code, asked)
	}
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestBodyConsumed: where something in front has consumed the body, all bodies
// would look alike, and one request be answered with another's record.
func TestBodyConsumed(t *testing.T) {
	t.Parallel()
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	for name, c := range map[string]struct {
		call    call
		consume func(r *http.Request)
	}{
		"read": {call{body: "a=1"}, func(r *http.Request) { io.Copy(io.Discard, r.Body) }},
		"closed": {call{body: "a=1"}, func(r *http.Request) {
			io.Copy(io.Discard, r.Body)
			r.Body = http.NoBody
		}},
		"taken away":     {call{body: "a=1"}, func(r *http.Request) { r.Body = nil }},
		"form":           {call{body: "a=1", header: form}, func(r *http.Request) { r.ParseForm() }},
		"form, chunked":  {call{reader: io.MultiReader(strings.NewReader("a=1")), header: form}, func(r *http.Request) { r.ParseForm() }},
		"multipart read": {call{reader: io.MultiReader(strings.NewReader("--x--\r\n")), header: http.Header{"Content-Type": {"multipart/form-data; boundary=x"}}}, func(r *http.Request) { r.ParseMultipartForm(1000) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var cause error
			s := &site{handler: func(http.ResponseWriter, *http.Request) {}}
			s.opts.ErrorFunc = func(w http.ResponseWriter, r *http.Request, p kakuteihttp.Problem) {
				cause = p.Err
				kakuteihttp.WriteProblem(w, r, p)
			}
			s.outer = func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					c.consume(r)
					h.ServeHTTP(w, r)
				})
			}
			s.start(t)
			c.call.key = "k"
			wantProblem(t, s.do(c.call), 500, "server-error")
			if cause == nil || !strings.Contains(cause.Error(), "put what reads it inside") {
				t.Errorf("the log is told %v", cause)
			}
			s.want(0, "k", kakutei.StatusNone)
		})
	}
	t.Run("restored", func(t *testing.T) {
		t.Parallel()
		s := &site{handler: func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }}
		s.outer = func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					panic(err)
				}
				r.Body = io.NopCloser(strings.NewReader(strings.ToUpper(string(body)))) // as what decompresses
				h.ServeHTTP(w, r)
			})
		}
		s.start(t)
		wantAnswer(t, s.post("k", "body"), 200, "BODY")
		wantReplay(t, s.post("k", "Body"), 200, "BODY")
		s.want(1, "k", kakutei.StatusSucceeded)
	})
	t.Run("inside", func(t *testing.T) {
		t.Parallel()
		s := &site{handler: func(w http.ResponseWriter, r *http.Request) {
			if err := r.ParseForm(); err != nil {
				panic(err)
			}
			io.WriteString(w, r.PostForm.Get("a"))
		}}
		s.start(t)
		wantAnswer(t, s.do(call{key: "k", body: "a=1", header: form}), 200, "1")
		wantProblem(t, s.do(call{key: "k", body: "a=2", header: form}), 422, "key-reused")
	})
}

// TestMultipartFiles: the files that a form is put into are removed when the
// request is over, as net/http does it for the request that it knows.
func TestMultipartFiles(t *testing.T) {
	t.Parallel()
	var form bytes.Buffer
	mw := multipart.NewWriter(&form)
	part, err := mw.CreateFormFile("file", "a.bin")
	if err != nil {
		t.Fatal(err)
	}
	part.Write(make([]byte, 1<<20))
	mw.Close()
	s := (&site{handler: func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			panic(err)
		}
		f, err := r.MultipartForm.File["file"][0].Open()
		if err != nil {
			panic(err)
		}
		defer f.Close()
		io.WriteString(w, f.(*os.File).Name())
		if r.Header.Get("Panic") != "" {
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}
	}}).start(t)
	header := func(extra ...string) http.Header {
		h := http.Header{"Content-Type": {mw.FormDataContentType()}}
		for _, name := range extra {
			h.Set(name, "1")
		}
		return h
	}
	for _, c := range []call{{}, {key: "k"}, {key: "k2", header: header("Panic")}} {
		if c.body = form.String(); c.header == nil {
			c.header = header()
		}
		r := s.do(c)
		if r.body == "" {
			t.Fatalf("no file: %d %v", r.status, r.err)
		}
		until(t, "that the file is removed", func() bool {
			_, err := os.Stat(r.body)
			return errors.Is(err, os.ErrNotExist)
		})
	}
}

// TestRequestTrailer is case 31: a trailer of the request reaches the handler.
func TestRequestTrailer(t *testing.T) {
	t.Parallel()
	s := (&site{handler: func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Trailer.Get("X-Sum")) }}).start(t)
	conn := s.dial()
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 7\r\n\r\n")
	wantAnswer(t, conn.hear(), 200, "7")
}

// TestExpectContinue is case 41: the client is asked for its body if it is wanted,
// and learns at once that it is not.
func TestExpectContinue(t *testing.T) {
	t.Parallel()
	s := (&site{opts: kakuteihttp.Options{Required: true}, handler: func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) }}).start(t)
	conn := s.dial()
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	if line, err := conn.r.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("%q, %v", line, err)
	}
	if line, err := conn.r.ReadString('\n'); err != nil || line != "\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	conn.say("{}")
	wantAnswer(t, conn.hear(), 200, "{}")
	conn = s.dial()
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n")
	wantProblem(t, conn.hear(), 400, "key-missing")
}
