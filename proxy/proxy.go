package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"regexp"
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
	// Transport sends them. Default: a transport of its own, with keep-alive. One
	// that does not support [net/http/httptrace], as [http.Transport] does, cannot tell
	// that a request was not sent, which then counts as an unknown outcome.
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
	// Method is POST or PATCH; empty means both.
	Method string
	// Path is a pattern of [http.ServeMux]: "/charges", "/accounts/{id}", "/v1/",
	// to which "/v1" belongs as well. Paths are matched without dot segments and
	// empty ones; an escaped slash does not end a segment.
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
	if u := cfg.Upstream; u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%w: the upstream is scheme, host and path alone: what else stands in its URL would not be sent", kakutei.ErrInvalid)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Transport == nil {
		cfg.Transport = newTransport()
	}
	p := &proxy{logger: cfg.Logger, routes: http.NewServeMux()}
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
	// routes only finds the route: it serves nothing itself, since it would
	// redirect paths that it finds unclean.
	routes *http.ServeMux
}

// protected is the handler of a route, to be told from those by which ServeMux
// redirects.
type protected struct{ http.Handler }

func (p *proxy) add(engine *kakutei.Engine, r Route) (err error) {
	pattern := strings.TrimSpace(r.Method + " " + r.Path)
	fail := func(err error) error { return fmt.Errorf("route %q: %w", pattern, err) }
	if r.Recovery == kakutei.Transactional {
		return fail(fmt.Errorf("%w: a proxy has no part in the upstream's transactions; choose rerun or hold", kakutei.ErrInvalid))
	}
	switch r.Method {
	case "", http.MethodPost, http.MethodPatch:
	default:
		return fail(fmt.Errorf("%w: only POST and PATCH are protected; everything else passes through", kakutei.ErrInvalid))
	}
	if !strings.HasPrefix(r.Path, "/") || strings.ContainsAny(r.Path, " \t") {
		return fail(fmt.Errorf("%w: the path must begin with /, and a space in it be written as %%20", kakutei.ErrInvalid))
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
			text := strings.ReplaceAll(registeredAt.ReplaceAllString(fmt.Sprint(v), ""), "\n", " ")
			if strings.Contains(text, `conflicts with pattern "/"`) {
				text = "this is what has no route of its own: set it outside of the routes"
			}
			err = fail(fmt.Errorf("%w: %s", kakutei.ErrInvalid, text))
		}
	}()
	p.routes.Handle(pattern, protected{protect(http.HandlerFunc(p.forward))})
	return nil
}

// registeredAt is what ServeMux says about this file, in which no pattern stands.
var registeredAt = regexp.MustCompile(` \(registered at [^)]*\)`)

// ServeHTTP implements [http.Handler].
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Header.Del(AttemptHeader)
	if offersHTTP2(r.Header) {
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	if r.Method != http.MethodPost && r.Method != http.MethodPatch {
		p.upstream.ServeHTTP(w, r)
		return
	}
	p.routeOf(r).ServeHTTP(w, r)
}

// routeOf returns the handler that protects r.
func (p *proxy) routeOf(r *http.Request) http.Handler {
	escaped := cleanPath(r.URL.EscapedPath())
	h := p.find(r.Method, escaped)
	if _, ok := h.(protected); !ok { // ServeMux would redirect /tree to /tree/, so it belongs to that
		h = p.find(r.Method, escaped+"/")
	}
	return h
}

func (p *proxy) find(method, escaped string) http.Handler {
	plain, err := url.PathUnescape(escaped)
	if err != nil { // cannot be: cleanPath has escaped it
		plain = escaped
	}
	h, _ := p.routes.Handler(&http.Request{Method: method, URL: &url.URL{Path: plain, RawPath: escaped}})
	return h
}

// cleanPath returns the path that routes are matched with; the upstream gets it
// as it came. Dot segments and empty ones are gone and every character is in
// its plain form, so that no spelling gets around a route. A slash that was
// escaped stays so: as ServeMux has it, it does not end a segment.
func cleanPath(escaped string) string {
	segments := strings.Split(escaped, "/")
	for i, s := range segments {
		if plain, err := url.PathUnescape(s); err == nil {
			segments[i] = url.PathEscape(plain)
		}
	}
	s := strings.Join(segments, "/")
	c := path.Clean("/" + s)
	if strings.HasSuffix(s, "/") && c != "/" {
		c += "/"
	}
	return c
}

// offersHTTP2 reports an offer to go on in HTTP/2. It is made to this server
// alone (RFC 7540 section 3.2), and whoever passes it on opens a tunnel to the
// upstream in which no request is protected any more.
func offersHTTP2(h http.Header) bool {
	for _, line := range h["Upgrade"] {
		for protocol := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(protocol), "h2c") {
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
		r.Header.Del("Upgrade") // an offer that a server may ignore; what runs in a tunnel cannot be recorded
		w = &unflushed{ResponseWriter: w}
		if r.Context().Value(http.ServerContextKey) == nil {
			// Called without a net/http server, ReverseProxy would take an answer
			// that breaks off for a whole one.
			r = r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, new(http.Server)))
		}
	}
	p.upstream.ServeHTTP(w, r)
}

func rewrite(pr *httputil.ProxyRequest, upstream *url.URL) {
	pr.SetURL(upstream)
	asSent(pr.Out.URL, pr.In, upstream)
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

// asSent lets the target go out byte for byte, as it was fingerprinted: net/url
// would escape what it thinks should be.
func asSent(out *url.URL, in *http.Request, upstream *url.URL) {
	out.RawQuery = in.URL.RawQuery
	sent, err := url.ParseRequestURI(in.RequestURI)
	if err != nil || sent.Path != in.URL.Path || sent.EscapedPath() != in.URL.EscapedPath() {
		return // something before us has set another path
	}
	raw, _, _ := strings.Cut(in.RequestURI, "?")
	if !strings.HasPrefix(raw, "/") {
		return // the absolute form, which names a host
	}
	raw = strings.TrimSuffix(upstream.EscapedPath(), "/") + raw
	if !strings.HasPrefix(raw, "//") { // which net/url would take for a host
		out.Opaque = raw
	}
}

// unflushed keeps ReverseProxy from flushing every answer of unknown length: it
// would reach the client before it is recorded. Event streams are flushed.
type unflushed struct{ http.ResponseWriter }

// FlushError is what ReverseProxy calls.
func (u *unflushed) FlushError() error {
	// As ReverseProxy reads it: parameters may be wrong.
	if mediaType, _, _ := mime.ParseMediaType(u.Header().Get("Content-Type")); mediaType == "text/event-stream" {
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
