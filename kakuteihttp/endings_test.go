package kakuteihttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// ending is one way in which a handler can end.
type ending struct {
	name   string
	handle http.HandlerFunc
	status int    // of the first answer; 0: there is none, or it breaks off
	body   string // of the first answer
	final  bool
	// omitted tells that a retry is told that the answer was not kept.
	omitted bool
	// only is "HTTP1.1" for what HTTP/2 does not have.
	only string
	// also checks the first answer further.
	also func(t *testing.T, r *reply)
}

func endings(dir string) []ending {
	h := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	return []ending{
		{name: "Write", handle: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "done") }, status: 200, body: "done", final: true},
		{name: "WriteHeader only", handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }, status: 202, final: true},
		{name: "nothing written", handle: func(http.ResponseWriter, *http.Request) {}, status: 200, final: true},
		{name: "header only", handle: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Only", "1") }, status: 200, final: true,
			also: func(t *testing.T, r *reply) {
				if r.header.Get("X-Only") != "1" {
					t.Errorf("the header is lost: %v", r.header)
				}
			}},
		{name: "empty Write", handle: func(w http.ResponseWriter, _ *http.Request) { w.Write(nil) }, status: 200, final: true},
		{name: "ReadFrom", handle: func(w http.ResponseWriter, _ *http.Request) {
			if n, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("from a reader")); n != 13 || err != nil {
				panic("ReadFrom")
			}
		}, status: 200, body: "from a reader", final: true},
		{name: "ServeContent", handle: func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "a.txt", time.Unix(1e9, 0), strings.NewReader("content"))
		}, status: 200, body: "content", final: true, also: func(t *testing.T, r *reply) {
			if r.length != 7 || r.header.Get("Last-Modified") == "" || !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") {
				t.Errorf("header of ServeContent: %v", r.header)
			}
		}},
		{name: "ServeFile", handle: func(w http.ResponseWriter, r *http.Request) {
			http.ServeFile(w, r, filepath.Join(dir, "file.txt"))
		}, status: 200, body: "a file", final: true},
		{name: "Flush", handle: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "one ")
			w.(http.Flusher).Flush()
			io.WriteString(w, "two")
		}, status: 200, body: "one two", final: true},
		{name: "Flush only", handle: func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, status: 200, final: true},
		{name: "Flush at the end", handle: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "all")
			w.(http.Flusher).Flush()
		}, status: 200, body: "all", final: true},
		{name: "ResponseController", handle: func(w http.ResponseWriter, _ *http.Request) {
			rc := http.NewResponseController(w)
			err := errors.Join(rc.SetWriteDeadline(time.Now().Add(time.Hour)), rc.SetReadDeadline(time.Now().Add(time.Hour)), rc.Flush())
			if err != nil {
				panic(err)
			}
			io.WriteString(w, "controlled")
		}, status: 200, body: "controlled", final: true},
		{name: "SetWriteDeadline has passed", handle: func(w http.ResponseWriter, _ *http.Request) {
			if err := http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)); err != nil {
				panic(err)
			}
			io.WriteString(w, "nobody gets this now")
		}, body: "nobody gets this now", final: true},
		{name: "Hijack", only: "HTTP1.1", handle: func(w http.ResponseWriter, _ *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			io.WriteString(rw, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nraw")
			rw.Flush()
			if _, err := w.Write([]byte("x")); !errors.Is(err, http.ErrHijacked) {
				conn.Close()
			}
			w.WriteHeader(500)
			w.(http.Flusher).Flush()
		}, status: 200, body: "raw", final: true, omitted: true},
		{name: "Hijack and nothing", only: "HTTP1.1", handle: func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			conn.Close()
		}, final: true, omitted: true},
		{name: "WriteHeader and Hijack", only: "HTTP1.1", handle: func(w http.ResponseWriter, _ *http.Request) {
			// As in the upgrade code of Kubernetes: net/http sends the header.
			w.Header().Set("Connection", "close")
			w.Header().Set("Content-Length", "3")
			w.WriteHeader(200)
			conn, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			io.WriteString(rw, "raw")
			rw.Flush()
		}, status: 200, body: "raw", final: true, omitted: true},
		{name: "panic", handle: func(http.ResponseWriter, *http.Request) { panic("handler") }},
		{name: "panic after Write", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			io.WriteString(w, "created")
			panic("handler")
		}},
		{name: "panic after Flush", handle: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "part")
			w.(http.Flusher).Flush()
			panic("handler")
		}},
		{name: "panic ErrAbortHandler", handle: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
		{name: "Goexit", handle: func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "part")
			runtime.Goexit()
		}},
		{name: "WriteHeader twice", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			w.Header().Set("X-Late", "1")
			w.WriteHeader(500)
			io.WriteString(w, "created")
		}, status: 201, body: "created", final: true, also: func(t *testing.T, r *reply) {
			if r.header.Get("X-Late") != "" {
				t.Errorf("a header set after WriteHeader was sent: %v", r.header)
			}
		}},
		{name: "invalid code", handle: h(42, "")},
		{name: "invalid code 1000", handle: h(1000, "")},
		{name: "body on 204", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
				panic("a body on 204 was taken")
			}
		}, status: 204, final: true},
		{name: "body on 304", handle: h(304, "x"), status: 304, final: true},
		{name: "Flush on 204", handle: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			w.(http.Flusher).Flush()
		}, status: 204, final: true},
		{name: "NoEffect", handle: func(w http.ResponseWriter, r *http.Request) { // case 29
			kakutei.FromContext(r.Context()).NoEffect()
			w.WriteHeader(422)
		}, status: 422},
		{name: "400", handle: h(400, "bad"), status: 400, body: "bad", final: true},
		{name: "500", handle: h(500, "sorry"), status: 500, body: "sorry"},
		{name: "503", handle: h(503, "sorry"), status: 503, body: "sorry"},
		{name: "408", handle: h(408, "late"), status: 408, body: "late"},
		{name: "425", handle: h(425, "early"), status: 425, body: "early"},
		{name: "429", handle: h(429, "often"), status: 429, body: "often"},
	}
}

// TestEndings is case 21: every way a handler can end leaves a defined state,
// and a retry a defined answer, under both recoveries.
func TestEndings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file.txt"), []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := endings(dir)
	both(t, func(t *testing.T, http2 bool) {
		for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold} {
			s := (&site{http2: http2, opts: kakuteihttp.Options{MaxPreferWait: patience}, handler: func(w http.ResponseWriter, r *http.Request) {
				for _, e := range all {
					if e.name == r.Header.Get("Ending") {
						e.handle(w, r)
					}
				}
			}}).withRecovery(recovery).start(t)
			for _, e := range all {
				if e.only != "" && http2 {
					continue
				}
				t.Run(recovery.String()+"/"+e.name, func(t *testing.T) { s.checkEnding(t, e) })
			}
		}
	})
}

func (s *site) withRecovery(r kakutei.Recovery) *site {
	s.opts.Recovery = r
	return s
}

func (s *site) checkEnding(t *testing.T, e ending) {
	key := strings.ReplaceAll(e.name, " ", "-")
	c := call{key: key, body: "{}", header: http.Header{"Ending": {e.name}}}
	s.runs.Store(0)
	first := s.do(c)
	if e.status == 0 {
		if first.err == nil {
			t.Errorf("the client got a whole answer: %d %q", first.status, first.body)
		}
	} else {
		wantAnswer(t, first, e.status, e.body)
		if e.also != nil {
			e.also(t, first)
		}
	}
	// What is hijacked or too late ends for the client before the handler does.
	until(t, "the record", func() bool { return s.record(key).Status != kakutei.StatusProcessing })
	noEffect := e.name == "NoEffect"
	switch rec := s.record(key); {
	case e.final && (rec.Status != kakutei.StatusSucceeded || (rec.Result.Omitted != "") != e.omitted),
		!e.final && s.opts.Recovery == kakutei.Hold && !noEffect && rec.Status != kakutei.StatusUncertain,
		!e.final && (s.opts.Recovery == kakutei.Rerun || noEffect) && rec.Status != kakutei.StatusFailed:
		t.Errorf("the record is %v (omitted %q)", rec.Status, rec.Result.Omitted)
	}

	c.header = http.Header{"Ending": {e.name}, "Prefer": {"wait=60"}} // see above
	again := s.do(c)
	n := int32(1)
	switch {
	case e.omitted:
		wantProblem(t, again, 409, "result-not-retained")
	case e.final && e.status == 0:
		wantReplay(t, again, 200, e.body)
	case e.final:
		wantReplay(t, again, e.status, e.body)
		if e.also != nil {
			e.also(t, again)
		}
	case s.opts.Recovery == kakutei.Hold && !noEffect:
		wantProblem(t, again, 409, "uncertain")
		if again.header.Get("Retry-After") != "" {
			t.Errorf("an uncertain operation is to be asked for again: %v", again.header)
		}
	default:
		n = 2
		if again.replayed() {
			t.Errorf("an answer that is not final was replayed")
		}
	}
	if got := s.runs.Load(); got != n {
		t.Errorf("the handler ran %d times, want %d", got, n)
	}
}

// TestInformational is case 21: 1xx answers pass at once, settle nothing, leave
// nothing behind, and are not recorded.
func TestInformational(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(103)
			w.Header().Del("Link")
			w.WriteHeader(102)
			w.Header().Set("X-Final", "1")
			w.WriteHeader(201)
			io.WriteString(w, "created")
		}}).start(t)
		var got []int
		var links []string
		ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				got = append(got, code)
				links = append(links, h.Get("Link"))
				return nil
			},
		})
		first := s.send(s.request(ctx, call{key: "k"}))
		wantAnswer(t, first, 201, "created")
		if len(got) != 2 || got[0] != 103 || got[1] != 102 || links[0] == "" || links[1] != "" {
			t.Errorf("informational answers: %v with Link %q", got, links)
		}
		got = nil
		again := s.send(s.request(ctx, call{key: "k"}))
		wantReplay(t, again, 201, "created")
		for _, r := range []*reply{first, again} {
			if r.header.Get("Link") != "" || r.header.Get("X-Final") != "1" {
				t.Errorf("final header: %v", r.header)
			}
		}
		if got != nil {
			t.Errorf("informational answers were replayed: %v", got)
		}
		s.want(1, "k", kakutei.StatusSucceeded)
	})
}

// TestInformationalThenLost is case 21: what a 1xx answer carried is not left in
// the problem that a refused attempt is answered with.
func TestInformationalThenLost(t *testing.T) {
	t.Parallel()
	s := &site{}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(103)
		s.lose(r)
		w.WriteHeader(201)
	}
	s.start(t)
	s.store.expireAtOnce()
	r := s.post("k", "")
	wantProblem(t, r, 409, "in-flight")
	if r.header.Get("Link") != "" {
		t.Errorf("the problem carries the handler's header: %v", r.header)
	}
}

// TestSwitchingProtocols is case 21: an answer 101 belongs to its connection.
func TestSwitchingProtocols(t *testing.T) {
	t.Parallel()
	s := (&site{opts: kakuteihttp.Options{MaxPreferWait: patience}, handler: func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "raw")
		w.WriteHeader(101)
		if r.Header.Get("Take") == "" {
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		io.WriteString(rw, "raw")
		rw.Flush()
	}}).start(t)
	for _, take := range []string{"", "Take: 1\r\n"} {
		key := "k" + take[:min(len(take), 4)]
		request := "POST /charges HTTP/1.1\r\nHost: x\r\nPrefer: wait=60\r\nIdempotency-Key: " + key + "\r\nConnection: Upgrade\r\nUpgrade: raw\r\n" + take + "\r\n"
		conn := s.dial()
		conn.say(request)
		line, err := conn.r.ReadString('\n')
		if err != nil || !strings.Contains(line, " 101 ") {
			t.Errorf("first answer: %q, %v", line, err)
		}
		if take != "" {
			if rest, err := io.ReadAll(conn.r); !strings.HasSuffix(string(rest), "\r\n\r\nraw") {
				t.Errorf("after the switch: %q, %v", rest, err)
			}
		}
		conn.Close()
		until(t, "the record", func() bool { return s.record(key).Status == kakutei.StatusSucceeded })
		conn = s.dial()
		conn.say(request)
		wantProblem(t, conn.hear(), 409, "result-not-retained")
	}
	s.want(2, "", 0)
}

// TestHijackRefused is case 21: HTTP/2 has no Hijack; the handler learns it and
// answers as it likes.
func TestHijackRefused(t *testing.T) {
	t.Parallel()
	s := (&site{http2: true, handler: func(w http.ResponseWriter, _ *http.Request) {
		if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
			panic(err)
		}
		w.WriteHeader(409)
		io.WriteString(w, "not here")
	}}).start(t)
	wantAnswer(t, s.post("k", ""), 409, "not here")
	wantReplay(t, s.post("k", ""), 409, "not here")
	s.want(1, "k", kakutei.StatusSucceeded)
}
