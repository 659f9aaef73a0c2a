package kakuteihttp

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/wire"
)

const (
	omittedTooLarge   = "too-large"
	omittedHijacked   = "hijacked"
	omittedIncomplete = "incomplete"
)

// recorder is the ResponseWriter of one run of a handler. It keeps the answer
// back until it is recorded. An answer that is flushed or outgrows the limit is
// passed on as it comes, and only its end is kept back: no client sees a whole
// success that the store does not hold.
type recorder struct {
	w      http.ResponseWriter
	before http.Header // what was set outside of the handler
	limit  int64
	// atOnce tells that Flush passes on. A transaction's answer must not, since
	// the transaction may yet be refused and run again; nor one over HTTP/1.0,
	// where an answer that is broken off looks like a whole one.
	atOnce bool

	header   http.Header // what the handler sees
	status   int         // 0 until the handler has said
	frozen   http.Header // header at that moment
	declared int64       // Content-Length that the handler declared, or -1
	body     []byte
	written  int64
	omitted  string

	passing  bool
	held     []byte // the end of a declared length, kept back
	hijacked bool
}

func newRecorder(w http.ResponseWriter, limit int64, atOnce bool) *recorder {
	return &recorder{w: w, before: w.Header().Clone(), header: cloneHeader(w.Header()), limit: limit, atOnce: atOnce, declared: -1}
}

func cloneHeader(h http.Header) http.Header {
	if h = h.Clone(); h == nil {
		h = make(http.Header)
	}
	return h
}

// Header implements [http.ResponseWriter].
func (rec *recorder) Header() http.Header { return rec.header }

// Unwrap lets [http.ResponseController] reach the deadlines of the connection.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.w }

// WriteHeader implements [http.ResponseWriter]. Informational answers go
// straight to the client and settle nothing.
func (rec *recorder) WriteHeader(status int) {
	switch {
	case rec.hijacked, rec.status != 0:
		return
	case status < 100 || status > 999:
		panic(fmt.Sprintf("kakuteihttp: invalid WriteHeader code %v", status)) // as net/http does
	case status < 200 && status != http.StatusSwitchingProtocols:
		saved := rec.w.Header().Clone()
		replaceHeader(rec.w.Header(), rec.header)
		rec.w.WriteHeader(status)
		replaceHeader(rec.w.Header(), saved)
		return
	}
	rec.status = status
	rec.frozen = cloneHeader(rec.header)
	if n, err := strconv.ParseInt(rec.header.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		rec.declared = n
	}
}

// Write implements [io.Writer].
func (rec *recorder) Write(p []byte) (int, error) {
	if rec.hijacked {
		return 0, http.ErrHijacked
	}
	rec.WriteHeader(http.StatusOK)
	if len(p) == 0 {
		return 0, nil
	}
	if !bodyAllowed(rec.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if rec.written += int64(len(p)); rec.declared >= 0 && rec.written > rec.declared {
		return 0, http.ErrContentLength // as net/http does
	}
	if rec.written > rec.limit && rec.omitted == "" {
		rec.pass(p)
		rec.omitted, rec.body = omittedTooLarge, nil
	}
	if rec.omitted == "" {
		rec.body = append(rec.body, p...)
	}
	if rec.passing {
		rec.forward(p)
	}
	return len(p), nil
}

// ReadFrom implements [io.ReaderFrom].
func (rec *recorder) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{rec}, r)
}

// FlushError is what [http.ResponseController] calls.
func (rec *recorder) FlushError() error {
	if rec.hijacked {
		return http.ErrHijacked
	}
	if !rec.atOnce {
		return nil
	}
	rec.WriteHeader(http.StatusOK)
	if rec.declared == 0 || !bodyAllowed(rec.status) {
		return nil // the header is the whole answer, and waits for the record
	}
	rec.pass(nil)
	//nolint:errcheck // the client may have left; the handler goes on
	http.NewResponseController(rec.w).Flush()
	return nil
}

// Flush implements [http.Flusher].
func (rec *recorder) Flush() {
	//nolint:errcheck // Flush has nowhere to report to
	rec.FlushError()
}

// Hijack implements [http.Hijacker]. What the handler then sends cannot be
// replayed: a retry gets 409, and the handler does not run again.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if rec.status != 0 {
		rec.pass(nil) // net/http, too, sends what was written before
	}
	conn, rw, err := http.NewResponseController(rec.w).Hijack()
	if err == nil {
		rec.hijacked, rec.omitted, rec.body = true, omittedHijacked, nil
	}
	return conn, rw, err
}

// pass begins to send what comes to the client. next is what is written now.
func (rec *recorder) pass(next []byte) {
	if rec.passing {
		return
	}
	rec.sniff(next)
	rec.passing = true
	rec.sendHeader()
	rec.forward(rec.body)
}

// sendHeader sends status and header. How the body is framed is not for the
// handler to say: an answer must be able to break off visibly.
func (rec *recorder) sendHeader() {
	replaceHeader(rec.w.Header(), rec.frozen)
	rec.w.Header().Del("Transfer-Encoding")
	rec.w.WriteHeader(rec.status)
}

// forward sends p, unless it would complete the declared length. That the
// client has left is no matter to the handler, which goes on to its end.
func (rec *recorder) forward(p []byte) {
	if len(p) == 0 {
		return
	}
	if rec.declared >= 0 && rec.written >= rec.declared {
		rec.held = append(rec.held, p...)
		return
	}
	rec.w.Write(p) //nolint:errcheck // see above
}

// ending returns how the run ended, once the handler has returned.
func (rec *recorder) ending(finality func(int, http.Header) kakutei.Finality) kakutei.Ending {
	if rec.hijacked {
		return kakutei.Ending{Finality: kakutei.FinalityFinal, Result: kakutei.Result{Omitted: omittedHijacked}, Sent: true}
	}
	rec.WriteHeader(http.StatusOK)
	rec.sniff(nil)
	switch {
	case rec.status == http.StatusSwitchingProtocols:
		rec.omitted = omittedHijacked
	case bodyAllowed(rec.status) && rec.declared >= 0 && rec.written != rec.declared && rec.omitted == "":
		rec.omitted = omittedIncomplete // and is broken off by net/http
	}
	kept := rec.body
	if rec.omitted != "" {
		kept = nil
	}
	return kakutei.Ending{
		Finality: finality(rec.status, rec.frozen),
		Sent:     rec.passing,
		Result: kakutei.Result{
			Code:    rec.status,
			Header:  wire.Encode(rec.kept(), rec.trailer(notReplayed)),
			Body:    kept,
			Omitted: rec.omitted,
		},
	}
}

// send gives the client what it has not got yet.
func (rec *recorder) send() {
	if rec.hijacked {
		return
	}
	trailer := rec.trailer(nil)
	if !rec.passing {
		if rec.declared < 0 && bodyAllowed(rec.status) {
			setFraming(rec.frozen, len(rec.body), trailer)
		}
		rec.sendHeader()
		rec.held = rec.body
	}
	if len(rec.held) > 0 {
		rec.w.Write(rec.held) //nolint:errcheck // the client is gone; it will ask again
	}
	writeTrailer(rec.w.Header(), trailer)
}

// kept returns the header fields to record: those that the handler set, without
// those that belong to one connection, one moment or one client.
func (rec *recorder) kept() http.Header {
	drop := slices.Concat(notReplayed, listed(rec.frozen["Connection"]), listed(rec.frozen["Trailer"]))
	kept := make(http.Header, len(rec.frozen))
	for name, values := range rec.frozen {
		if slices.Contains(drop, http.CanonicalHeaderKey(name)) || strings.HasPrefix(name, http.TrailerPrefix) ||
			slices.Equal(values, rec.before[name]) {
			continue
		}
		kept[name] = values
	}
	return kept
}

// listed returns the field names in the lines of a header that lists some.
func listed(lines []string) (names []string) {
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			names = append(names, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	return names
}

// notReplayed are the fields of a response that are never recorded.
var notReplayed = []string{
	"Authorization", "Connection", "Content-Length", "Date", "Idempotent-Replayed", "Keep-Alive",
	"Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie", "Set-Cookie2", "Te",
	"Trailer", "Transfer-Encoding", "Upgrade", "Www-Authenticate",
}

// trailer returns the trailer fields that the handler has set, by either of
// net/http's ways, without those in drop.
func (rec *recorder) trailer(drop []string) http.Header {
	trailer := make(http.Header)
	for _, name := range listed(rec.frozen["Trailer"]) {
		if values := rec.header[name]; len(values) > 0 {
			trailer[name] = values
		}
	}
	for name, values := range rec.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			trailer[name] = values
		}
	}
	for name := range trailer {
		if slices.Contains(drop, http.CanonicalHeaderKey(name)) {
			delete(trailer, name)
		}
	}
	return trailer
}

// setFraming tells net/http how a whole answer is sent: with its length, or, for
// the sake of a trailer, in chunks.
func setFraming(h http.Header, length int, trailer http.Header) {
	if len(trailer) == 0 {
		h.Set("Content-Length", strconv.Itoa(length))
		return
	}
	h["Trailer"] = slices.Sorted(maps.Keys(trailer))
}

func writeTrailer(h, trailer http.Header) {
	for name, values := range trailer {
		h[http.TrailerPrefix+name] = values
	}
}

// sniff sets the media type as net/http would from what is known of the body
// when the header is sent, so that a replay has the same one.
func (rec *recorder) sniff(next []byte) {
	_, typed := rec.frozen["Content-Type"]
	if typed || rec.passing || rec.frozen.Get("Content-Encoding") != "" {
		return
	}
	const enough = 512 // for http.DetectContentType
	n := min(len(rec.body), enough)
	start := append([]byte(nil), rec.body[:n]...)
	start = append(start, next[:min(len(next), enough-n)]...)
	if len(start) > 0 {
		rec.frozen.Set("Content-Type", http.DetectContentType(start))
	}
}

func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func replaceHeader(dst, src http.Header) {
	clear(dst)
	for name, values := range src {
		dst[name] = slices.Clone(values)
	}
}

// writeReplay gives the recorded answer. Fields set outside of the handler (by
// middleware that runs for replays, too) stay, unless the record has them.
func writeReplay(w http.ResponseWriter, result kakutei.Result) error {
	header, trailer, err := wire.Decode(result.Header)
	if err != nil {
		return err
	}
	if result.Code < 200 || result.Code > 999 {
		return fmt.Errorf("%w: status %d", wire.ErrFormat, result.Code)
	}
	h := w.Header()
	for name, values := range header {
		h[name] = values
	}
	if _, typed := header["Content-Type"]; !typed && len(h["Content-Type"]) == 0 {
		h["Content-Type"] = nil // the first answer had none: do not let net/http guess one
	}
	h.Set("Idempotent-Replayed", "true")
	if bodyAllowed(result.Code) {
		setFraming(h, len(result.Body), trailer)
	}
	w.WriteHeader(result.Code)
	if bodyAllowed(result.Code) {
		io.Copy(w, bytes.NewReader(result.Body)) //nolint:errcheck // the client is gone; it will ask again
	}
	writeTrailer(h, trailer)
	return nil
}
