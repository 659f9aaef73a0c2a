package kakuteihttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
)

// UnrecordedHeader marks an answer that the store could not take: the handler
// ran, and a retry with the same key may run it again.
const UnrecordedHeader = "Idempotent-Unrecorded"

// Middleware returns what protects one route, or the routes that share opts.
// Each request with a key runs the handler once; a retry of it gets the recorded
// answer with the header "Idempotent-Replayed: true".
//
// The handler's context is not cancelled when the client hangs up: it ends with
// the deadline, or with cause [kakutei.ErrLeaseLost] when another attempt may
// take over. [kakutei.FromContext] finds the attempt in it. What the handler
// writes reaches the client when it is recorded; see docs/guarantees.md for
// answers that are flushed or too large.
//
// Middleware that authenticates, limits or logs belongs outside of it, so that it
// sees replays, too. Middleware that consumes the body does not.
//
// The error, an [kakutei.ErrInvalid], says what opts lack; a zero Recovery above all.
func Middleware(engine *kakutei.Engine, scope ScopeFunc, opts Options) (func(http.Handler) http.Handler, error) {
	opts, err := opts.withDefaults(engine, scope)
	if err != nil {
		return nil, fmt.Errorf("kakuteihttp: %w", err)
	}
	return func(next http.Handler) http.Handler {
		return &handler{engine: engine, scope: scope, opts: opts, next: next}
	}, nil
}

type handler struct {
	engine *kakutei.Engine
	scope  ScopeFunc
	opts   Options
	next   http.Handler
}

// ServeHTTP implements [http.Handler].
func (m *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(m.opts.Methods, r.Method) {
		m.next.ServeHTTP(w, r)
		return
	}
	key, ok, err := ParseKey(r.Header, m.opts.Strict)
	switch {
	case err != nil:
		m.refuse(w, r, problemKeyMalformed, err)
		return
	case !ok && m.opts.Required:
		m.refuse(w, r, problemKeyMissing, nil)
		return
	case !ok:
		m.next.ServeHTTP(w, r)
		return
	}
	scope, err := m.scope(r)
	if err == nil {
		err = kakutei.ValidateScope(scope)
	}
	switch {
	case errors.Is(err, ErrUnauthenticated):
		m.refuse(w, r, problemUnauthenticated, err)
		return
	case err != nil:
		m.refuse(w, r, problemScope, err)
		return
	}
	body, problem, err := readBody(w, r, m.opts.MaxRequestBytes)
	if err != nil {
		m.refuse(w, r, problem, err)
		return
	}
	m.serve(w, r, m.operation(r, scope, key, body), body)
}

// operation returns what the request asks for. It is fixed here: what the
// handler does to the request later changes nothing.
func (m *handler) operation(r *http.Request, scope, key string, body []byte) kakutei.Operation {
	path, query := target(r)
	req := kakutei.Request{
		Method: r.Method, Path: path, Query: query, Body: body,
		ContentType: r.Header.Get("Content-Type"), ContentEncoding: r.Header.Get("Content-Encoding"),
	}
	op := kakutei.Operation{
		Scope: scope, Key: key, Fingerprint: req.Fingerprint(), FingerprintFunc: req.FingerprintAt,
		Method: r.Method, Path: path[:min(len(path), maxAuditPath)], TraceID: traceID(r.Header.Get("Traceparent")),
	}
	if m.opts.ActorFunc != nil {
		op.Actor = m.opts.ActorFunc(r)
	}
	return op
}

// maxAuditPath bounds what is stored of a path; the fingerprint covers all of it.
const maxAuditPath = 1024

// target returns path and query as the client sent them: a router may have cut
// r.URL, and two routes must not look alike for it.
func target(r *http.Request) (path, query string) {
	u := r.URL
	if r.RequestURI != "" {
		if sent, err := url.ParseRequestURI(r.RequestURI); err == nil {
			u = sent
		}
	}
	return u.EscapedPath(), u.RawQuery
}

// traceID returns the trace id of a W3C traceparent, or nothing. What is not
// hexadecimal must not get into a record: databases refuse bytes that are not text.
func traceID(traceparent string) string {
	parts := strings.Split(traceparent, "-")
	if len(parts) < 4 || len(parts[1]) != 32 || strings.Trim(parts[1], "0123456789abcdef") != "" || strings.Trim(parts[1], "0") == "" {
		return ""
	}
	return parts[1]
}

var errConsumed = errors.New("the body was read before the middleware could; put what reads it inside")

// readBody reads the body whole, so that it can be compared and read again.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, Problem, error) {
	if (r.Body == nil || r.Body == http.NoBody) && r.ContentLength <= 0 {
		return nil, Problem{}, nil
	}
	if r.ContentLength > limit {
		return nil, problemTooLarge, &http.MaxBytesError{Limit: limit}
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(min(r.ContentLength, 1<<16)) + bytes.MinRead) // no more on the client's word alone
	}
	var err error
	if r.Body != nil {
		_, err = b.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	}
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, problemTooLarge, err
	case err != nil:
		return nil, problemBodyUnreadable, err
	case b.Len() == 0 && (r.ContentLength > 0 || r.PostForm != nil || r.MultipartForm != nil):
		// All bodies would look alike, and any request be taken for any other.
		return nil, problemServer, errConsumed
	}
	return b.Bytes(), Problem{}, nil
}

// serve runs the operation, or answers why it does not run.
func (m *handler) serve(w http.ResponseWriter, r *http.Request, op kakutei.Operation, body []byte) {
	policy := m.opts.policy()
	policy.Wait = m.wait(r.Header)
	var rec *recorder
	answer, err := m.engine.Run(r.Context(), op, policy, func(ctx context.Context) kakutei.Ending {
		rec = newRecorder(w, m.opts.MaxResponseBytes, m.opts.Recovery != kakutei.Transactional && r.ProtoAtLeast(1, 1))
		m.handle(rec, withBody(ctx, r, body))
		return rec.ending(m.opts.FinalityFunc)
	})
	switch {
	case rec != nil && (rec.passing || rec.hijacked) && (err != nil || answer.Replayed || answer.Unrecorded):
		// The client has a part of an answer that does not stand, or is not
		// recorded. It must not take it for the whole.
		panic(http.ErrAbortHandler)
	case err != nil && rec == nil && m.opts.FailOpen && errors.Is(err, kakutei.ErrUnavailable):
		if m.opts.ObserveFailOpenFunc != nil {
			m.opts.ObserveFailOpenFunc(r, err)
		}
		m.handle(w, withBody(r.Context(), r, body))
	case err != nil:
		m.opts.ErrorFunc(w, r, problemOf(err))
	case answer.Replayed:
		m.replay(w, r, op, answer)
	default:
		if answer.Unrecorded {
			rec.frozen.Set(UnrecordedHeader, "true")
		}
		rec.send()
	}
}

// handle runs the handler on a request that net/http does not know.
func (m *handler) handle(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if r.MultipartForm != nil {
			//nolint:errcheck // as net/http does: the files are in a temporary directory
			r.MultipartForm.RemoveAll()
		}
	}()
	m.next.ServeHTTP(w, r)
}

func (m *handler) replay(w http.ResponseWriter, r *http.Request, op kakutei.Operation, answer kakutei.Answer) {
	if m.opts.AuthorizeReplayFunc != nil {
		err := m.opts.AuthorizeReplayFunc(r)
		switch {
		case errors.Is(err, kakutei.ErrUnavailable):
			m.opts.ErrorFunc(w, r, problemOf(err))
			return
		case errors.Is(err, ErrUnauthenticated):
			m.refuse(w, r, problemUnauthenticated, err)
			return
		case err != nil:
			m.refuse(w, r, problemForbidden, err)
			return
		}
	}
	if err := writeReplay(w, answer.Result); err != nil {
		m.opts.ErrorFunc(w, r, problemOf(m.engine.Unreadable(r.Context(), op.ID(), err)))
	}
}

func (m *handler) refuse(w http.ResponseWriter, r *http.Request, p Problem, cause error) {
	p.Err = cause
	m.opts.ErrorFunc(w, r, p)
}

// withBody returns the request as the handler gets it, with the body from its start.
func withBody(ctx context.Context, r *http.Request, body []byte) *http.Request {
	r = r.Clone(ctx) // a handler that runs again must not see what the first run changed
	r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, int64(len(body)), nil
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return r
}

// wait returns how long this request may wait for a running attempt: what the
// client prefers (RFC 7240), within bounds, or the route's default.
func (m *handler) wait(h http.Header) time.Duration {
	if m.opts.MaxPreferWait == NoPreferWait {
		return m.opts.Wait
	}
	for _, line := range h["Prefer"] {
		for pref := range strings.SplitSeq(line, ",") {
			pref, _, _ = strings.Cut(pref, ";")
			name, value, _ := strings.Cut(pref, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			n, err := strconv.ParseUint(strings.Trim(value, " \t\""), 10, 31)
			if err != nil {
				continue
			}
			return min(time.Duration(n)*time.Second, m.opts.MaxPreferWait)
		}
	}
	return m.opts.Wait
}
