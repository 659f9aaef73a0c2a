package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// AttemptHeader tells the upstream the number of the attempt: a fencing token
// that grows with every run of one operation. What clients send under this name
// is removed.
const AttemptHeader = "Kakutei-Attempt"

// Config configures a proxy.
type Config struct {
	// Upstream is where requests go: scheme, host and, if any, a path before theirs.
	Upstream *url.URL
	// Transport sends them. Default: a transport of its own, with keep-alive.
	Transport http.RoundTripper
	// Default is for requests that match none of Routes. Its Method and Path
	// are not used.
	Default Route
	// Routes have their own settings; the most specific pattern wins.
	Routes []Route
	// Logger gets failures. Default slog.Default().
	Logger *slog.Logger
}

// Route says how requests are protected.
type Route struct {
	// Method restricts the route; empty means any.
	Method string
	// Path is a pattern of [http.ServeMux]: "/charges", "/accounts/{id}/", "/v1/".
	Path string
	// Scope tells the tenant of a request. Required.
	Scope kakuteihttp.ScopeFunc
	// Recovery is [kakutei.Rerun] or [kakutei.Hold]. Required.
	Recovery kakutei.Recovery
	// Required, Strict, Wait, Lease, MaxRequestBytes and MaxResponseBytes are
	// those of [kakuteihttp.Options].
	Required, Strict                  bool
	Wait, Lease                       time.Duration
	MaxRequestBytes, MaxResponseBytes int64
	// Timeout is how long the upstream may take. Default: the engine's deadline.
	Timeout time.Duration
	// AuthorizeReplayURL is asked, with a GET that has the headers of the
	// request, before a recorded answer is given; unless it answers 2xx the
	// replay is refused. Default: not asked.
	AuthorizeReplayURL string
}

// New returns the proxy as a handler.
func New(engine *kakutei.Engine, cfg Config) (http.Handler, error) {
	if cfg.Upstream == nil || cfg.Upstream.Host == "" || cfg.Upstream.Scheme != "http" && cfg.Upstream.Scheme != "https" {
		return nil, fmt.Errorf("%w: the upstream must be an http or https URL such as http://127.0.0.1:9000", kakutei.ErrInvalid)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.Proxy = nil // the upstream is given, and is not reached through another proxy
		t.MaxIdleConnsPerHost = 256
		t.DisableCompression = true // bodies pass as they are
		cfg.Transport = t
	}
	p := &proxy{logger: cfg.Logger, routes: http.NewServeMux(), byPattern: make(map[string]http.Handler)}
	p.upstream = &httputil.ReverseProxy{
		Rewrite:      func(pr *httputil.ProxyRequest) { rewrite(pr, cfg.Upstream) },
		Transport:    once{cfg.Transport},
		ErrorHandler: p.upstreamFailed,
		ErrorLog:     slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelWarn),
	}
	fallback := cfg.Default
	fallback.Method, fallback.Path = "", "/"
	for _, r := range append([]Route{fallback}, cfg.Routes...) {
		if err := p.add(engine, r); err != nil {
			return nil, err
		}
	}
	return p, nil
}

type proxy struct {
	logger   *slog.Logger
	upstream *httputil.ReverseProxy
	// routes only finds the pattern: its handlers are never called, since it
	// would redirect paths that it finds unclean.
	routes    *http.ServeMux
	byPattern map[string]http.Handler
}

func (p *proxy) add(engine *kakutei.Engine, r Route) (err error) {
	pattern := strings.TrimSpace(r.Method + " " + r.Path)
	fail := func(err error) error { return fmt.Errorf("route %q: %w", pattern, err) }
	if r.Recovery == kakutei.Transactional {
		return fail(fmt.Errorf("%w: a proxy has no part in the upstream's transactions; choose rerun or hold", kakutei.ErrInvalid))
	}
	if !strings.HasPrefix(r.Path, "/") {
		return fail(fmt.Errorf("%w: the path must begin with /", kakutei.ErrInvalid))
	}
	opts := kakuteihttp.Options{
		Recovery: r.Recovery, Required: r.Required, Strict: r.Strict, Wait: r.Wait, Lease: r.Lease, Deadline: r.Timeout,
		MaxRequestBytes: r.MaxRequestBytes, MaxResponseBytes: r.MaxResponseBytes,
		FinalityFunc: Finality, ErrorFunc: p.refused,
	}
	if r.AuthorizeReplayURL != "" {
		if opts.AuthorizeReplayFunc, err = forwardAuthorization(r.AuthorizeReplayURL); err != nil {
			return fail(err)
		}
	}
	protect, err := kakuteihttp.Middleware(engine, r.Scope, opts)
	if err != nil {
		return fail(err)
	}
	defer func() { // how ServeMux reports a pattern it does not take
		if v := recover(); v != nil {
			err = fail(fmt.Errorf("%w: %v", kakutei.ErrInvalid, v))
		}
	}()
	p.routes.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	p.byPattern[pattern] = protect(http.HandlerFunc(p.forward))
	return nil
}

// ServeHTTP implements [http.Handler].
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Del(AttemptHeader)
	if r.Method != http.MethodPost && r.Method != http.MethodPatch || isUpgrade(r.Header) {
		p.upstream.ServeHTTP(w, r)
		return
	}
	_, pattern := p.routes.Handler(&http.Request{
		Method: r.Method, Host: r.Host, URL: &url.URL{Path: cleanPath(r.URL.Path)},
	})
	h, ok := p.byPattern[pattern]
	if !ok {
		h = p.byPattern["/"]
	}
	h.ServeHTTP(w, r)
}

// cleanPath returns the path that routes are matched with; the upstream gets it
// as it came.
func cleanPath(s string) string {
	c := path.Clean("/" + s)
	if strings.HasSuffix(s, "/") && c != "/" {
		c += "/"
	}
	return c
}

func isUpgrade(h http.Header) bool {
	for _, line := range h["Connection"] {
		for token := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

// forward is the handler that the middleware protects.
func (p *proxy) forward(w http.ResponseWriter, r *http.Request) {
	if a := kakutei.FromContext(r.Context()); a != nil {
		r.Header.Set(AttemptHeader, strconv.FormatInt(a.Number(), 10))
		w = &unflushed{ResponseWriter: w}
	}
	p.upstream.ServeHTTP(w, r)
}

func rewrite(pr *httputil.ProxyRequest, upstream *url.URL) {
	pr.SetURL(upstream)
	pr.Out.URL.RawQuery = pr.In.URL.RawQuery // as it was fingerprinted
	pr.Out.Host = pr.In.Host
	pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	pr.SetXForwarded()
	// A client may not keep these from the upstream by naming them in Connection.
	for _, name := range []string{kakuteihttp.Header, AttemptHeader} {
		if values := pr.In.Header[name]; len(values) > 0 {
			pr.Out.Header[name] = values
		}
	}
}

// unflushed keeps ReverseProxy from flushing every answer of unknown length: it
// would reach the client before it is recorded. Event streams are flushed.
type unflushed struct{ http.ResponseWriter }

// FlushError is what ReverseProxy calls.
func (u *unflushed) FlushError() error {
	if mediaType, _, _ := strings.Cut(u.Header().Get("Content-Type"), ";"); strings.TrimSpace(mediaType) == "text/event-stream" {
		return http.NewResponseController(u.ResponseWriter).Flush()
	}
	return nil
}

// Finality is what the answers of an upstream mean. Those by which it says that
// it did nothing are not final; nor are those after which nobody knows.
func Finality(status int, header http.Header) kakutei.Finality {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired, http.StatusTooManyRequests:
		return kakutei.FinalityNoEffect
	case http.StatusServiceUnavailable:
		if header.Get("Retry-After") != "" {
			return kakutei.FinalityNoEffect
		}
	}
	return kakuteihttp.DefaultFinality(status, header)
}

// upstreamFailed answers when there was no answer. Whether anything was done is
// known only if nothing was sent.
func (p *proxy) upstreamFailed(w http.ResponseWriter, r *http.Request, err error) {
	problem := kakuteihttp.Problem{
		Type: kakuteihttp.TypeBase + "upstream-broken", Title: "The upstream gave no answer", Status: http.StatusBadGateway,
		Detail: "The request was sent on, and no whole answer came back. It may have taken effect. Send it again with the same key.",
		Err:    err,
	}
	switch {
	case errors.Is(err, errNotSent):
		problem.Type, problem.Title, problem.Status = kakuteihttp.TypeBase+"upstream-unreachable", "The upstream cannot be reached", http.StatusServiceUnavailable
		problem.Detail, problem.RetryAfter = "The request was not sent on, and nothing was done. Send it again with the same key.", time.Second
		if a := kakutei.FromContext(r.Context()); a != nil {
			a.NoEffect()
		}
	case errors.Is(err, context.DeadlineExceeded):
		problem.Type, problem.Title, problem.Status = kakuteihttp.TypeBase+"upstream-timeout", "The upstream took too long", http.StatusGatewayTimeout
	}
	p.refused(w, r, problem)
}

// refused answers with a problem, and logs those that an operator can mend.
func (p *proxy) refused(w http.ResponseWriter, r *http.Request, problem kakuteihttp.Problem) {
	if problem.Status >= 500 {
		p.logger.WarnContext(r.Context(), "kakutei: request refused", "problem", strings.TrimPrefix(problem.Type, kakuteihttp.TypeBase),
			"status", problem.Status, "method", r.Method, "path", r.URL.Path, "error", problem.Err)
	}
	kakuteihttp.WriteProblem(w, r, problem)
}
