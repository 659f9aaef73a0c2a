package kakuteihttp_test

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/memstore"
)

// wantRow checks what transactions have committed under name.
func (s *site) wantRow(name, value string) {
	s.t.Helper()
	if got, _ := s.store.Get(name); got != value {
		s.t.Errorf("row %q is %q, want %q", name, got, value)
	}
}

// TestTransactional: the handler's writes and its answer are kept together, or
// neither is.
func TestTransactional(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := &site{http2: http2}
		s.handler = func(w http.ResponseWriter, r *http.Request) {
			a := kakutei.FromContext(r.Context())
			memstore.TxFrom(r.Context()).Set(a.ID().Key, fmt.Sprint("attempt ", a.Number()))
			status, _ := strconv.Atoi(r.Header.Get("Status"))
			switch {
			case a.Number() > 1:
				w.WriteHeader(201)
			case status == 0:
				panic(http.ErrAbortHandler)
			case status == 1:
				a.NoEffect()
				w.WriteHeader(201)
			default:
				w.WriteHeader(status)
			}
		}
		s.withRecovery(kakutei.Transactional).start(t)
		for status, final := range map[int]bool{201: true, 404: true, 409: true, 422: true, 500: false, 503: false, 429: false, 0: false, 1: false} {
			s.runs.Store(0)
			key := fmt.Sprint("k-", status)
			c := call{key: key, header: http.Header{"Status": {strconv.Itoa(status)}}}
			switch r := s.do(c); {
			case status == 0 && r.err == nil:
				t.Errorf("a panic was answered with %d", r.status)
			case status == 1:
				wantAnswer(t, r, 201, "")
			case status > 1:
				wantAnswer(t, r, status, "")
			}
			if final {
				s.want(1, key, kakutei.StatusSucceeded)
				s.wantRow(key, "attempt 1")
				wantReplay(t, s.do(c), status, "")
				s.want(1, key, kakutei.StatusSucceeded)
				continue
			}
			s.want(1, key, kakutei.StatusFailed)
			s.wantRow(key, "")
			wantAnswer(t, s.do(c), 201, "")
			s.wantRow(key, "attempt 2")
			wantReplay(t, s.do(c), 201, "")
			s.want(2, key, kakutei.StatusSucceeded)
		}
	})
}

// TestTransactionRefused is case 26 over HTTP: the handler runs again with the
// request as it came, and only the answer of the run that was committed is seen,
// whatever was flushed before.
func TestTransactionRefused(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		s := &site{http2: http2}
		s.handler = func(w http.ResponseWriter, r *http.Request) {
			run := s.runs.Load()
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != "body" || r.Header.Get("X-Seen") != "" || r.URL.Path != "/charges" || r.Method != "POST" || w.Header().Get("X-Run") != "" {
				t.Errorf("run %d got %s %s %q %v, header so far %v", run, r.Method, r.URL, body, r.Header, w.Header())
			}
			r.Header.Set("X-Seen", "1")
			r.URL.Path, r.Method = "/seen", "PATCH"
			tx := memstore.TxFrom(r.Context())
			tx.Set("row", fmt.Sprint("run ", run))
			w.Header().Set("X-Run", fmt.Sprint(run))
			w.Header().Set("X-Only-"+fmt.Sprint(run), "1")
			w.WriteHeader(int(200 + run))
			fmt.Fprint(w, "run ", run)
			w.(http.Flusher).Flush()
			if run < 3 {
				tx.Refuse()
			}
			io.WriteString(w, ".")
		}
		s.withRecovery(kakutei.Transactional).start(t)
		r := s.post("k", "body")
		wantAnswer(t, r, 203, "run 3.")
		if r.header.Get("X-Run") != "3" || r.header.Get("X-Only-1") != "" || r.length != 6 {
			t.Errorf("header %v, length %d", r.header, r.length)
		}
		s.want(3, "k", kakutei.StatusSucceeded)
		s.wantRow("row", "run 3")
		wantReplay(t, s.post("k", "body"), 203, "run 3.")
		if s.seen(kakutei.EventConflict) != 2 {
			t.Errorf("%d conflicts were seen", s.seen(kakutei.EventConflict))
		}
	})
}

// TestTransactionRefusedForEver is case 26: at the deadline 503, and the key is free.
func TestTransactionRefusedForEver(t *testing.T) {
	t.Parallel()
	var refuse atomic.Bool
	refuse.Store(true)
	s := &site{opts: kakuteihttp.Options{Deadline: time.Second}}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		tx := memstore.TxFrom(r.Context())
		tx.Set("row", "1")
		if refuse.Load() {
			tx.Refuse()
		}
		w.Header().Set("X-Handler", "1")
		w.WriteHeader(201)
	}
	s.withRecovery(kakutei.Transactional).start(t)
	r := s.post("k", "")
	wantProblem(t, r, 503, "store-unavailable")
	wantRetryAfter(t, r, 1)
	if r.header.Get("X-Handler") != "" {
		t.Errorf("header of a run that was rolled back: %v", r.header)
	}
	if s.runs.Load() < 2 {
		t.Errorf("the handler ran %d times", s.runs.Load())
	}
	s.want(s.runs.Load(), "k", kakutei.StatusFailed)
	s.wantRow("row", "")
	refuse.Store(false)
	wantAnswer(t, s.post("k", ""), 201, "")
	s.wantRow("row", "1")
}

// TestTransactionTooLarge is case 22 under Transactional: an answer that outgrows
// the limit has begun before the commit. If that is refused, the answer is broken
// off, the handler does not run again for this client, and the key is free.
func TestTransactionTooLarge(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		for _, declared := range []bool{false, true} {
			s := &site{http2: http2, opts: kakuteihttp.Options{MaxResponseBytes: 100}}
			s.handler = func(w http.ResponseWriter, r *http.Request) {
				tx := memstore.TxFrom(r.Context())
				tx.Set("row", "1")
				if s.runs.Load() == 1 {
					tx.Refuse()
				}
				if declared {
					w.Header().Set("Content-Length", "1000")
				}
				w.Write(make([]byte, 1000))
			}
			s.withRecovery(kakutei.Transactional).start(t)
			if r := s.post("k", ""); r.err == nil {
				t.Errorf("a run that was rolled back was answered with %d, %d bytes", r.status, len(r.body))
			}
			s.want(1, "k", kakutei.StatusFailed)
			s.wantRow("row", "")
			wantAnswer(t, s.post("k", ""), 200, string(make([]byte, 1000)))
			s.want(2, "k", kakutei.StatusSucceeded)
			s.wantRow("row", "1")
			wantProblem(t, s.post("k", ""), 409, "result-not-retained")
		}
	})
}

// TestTransactionFlush: what a transactional handler flushes waits for the commit.
func TestTransactionFlush(t *testing.T) {
	t.Parallel()
	g := newGate()
	defer g.release()
	s := (&site{handler: func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "paid")
		w.(http.Flusher).Flush()
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		g.pass(r)
	}}).withRecovery(kakutei.Transactional).start(t)
	conn := s.dial()
	conn.say("POST /charges HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	receive(t, "the handler", g.entered)
	conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) //nolint:errcheck // the read tells
	if b, err := conn.r.Peek(1); err == nil {
		t.Errorf("%q was sent before the commit", b)
	}
	conn.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // the read tells
	g.release()
	r := conn.hear()
	wantAnswer(t, r, 200, "paid")
	if r.length != 4 {
		t.Errorf("Content-Length %d", r.length)
	}
}

// TestTransactionOvertaken is G3 and G4: whoever lost its lease commits nothing,
// and its client gets the record.
func TestTransactionOvertaken(t *testing.T) {
	t.Parallel()
	s := &site{}
	s.handler = func(w http.ResponseWriter, r *http.Request) {
		memstore.TxFrom(r.Context()).Set("row", "of the loser")
		s.store.succeed(t, s.lose(r), kakutei.Result{Code: 202, Header: []byte("kakutei/1\r\n\r\n"), Body: []byte("of the winner")})
		w.WriteHeader(201)
	}
	s.withRecovery(kakutei.Transactional).start(t)
	s.store.expireAtOnce()
	wantReplay(t, s.post("k", ""), 202, "of the winner")
	s.wantRow("row", "")
	s.want(1, "k", kakutei.StatusSucceeded)
}
