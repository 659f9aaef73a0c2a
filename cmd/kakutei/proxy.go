package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
	"github.com/kakutei-go/kakutei/proxy"
)

const proxyLong = `A reverse proxy that gives the API behind it idempotency keys. POST and PATCH
requests with an Idempotency-Key run once; everything else passes through.

The scope says whose key a key is. header:NAME takes a header that a gateway in
front sets and clients cannot; jwt:CLAIM a claim of the bearer token; single is
for an API with one tenant.

The recovery says what becomes of a request that was sent on and got no final
answer (the proxy or the upstream died, timed out, answered 5xx): rerun sends it
again when the client does, with the same key, which is right if the upstream
knows the key; hold answers 409 until somebody has looked.

Flags go before the file given by --config, which can set routes apart:

  scope: header:X-Account-Id
  routes:
    - method: POST
      path: /payments/{id}/capture
      recovery: hold
      authorize_replay: http://127.0.0.1:9000/may-read`

// proxyCommand is "kakutei proxy".
func (p *program) proxyCommand() *cobra.Command {
	return p.proxyCommandWith(p.proxy)
}

// proxyCommandWith returns the command that does serve with what flags and file
// come to.
func (p *program) proxyCommandWith(serve func(context.Context, proxyConfig) error) *cobra.Command {
	var flags proxyConfig
	var file string
	route := routeConfig{
		Scope: ptr(""), Recovery: ptr(""), Required: ptr(false), Strict: ptr(false), Wait: ptr(duration(0)), Lease: ptr(duration(0)),
		Timeout: ptr(duration(0)), MaxRequestBytes: ptr(int64(0)), MaxResponseBytes: ptr(int64(0)), AuthorizeReplay: ptr(""),
	}
	flags.Retention, flags.Drain = ptr(duration(0)), ptr(duration(0))
	cmd := &cobra.Command{
		Use:   "proxy",
		Short: "Put idempotency keys in front of any HTTP API",
		Long:  proxyLong,
		Args:  cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&flags.Listen, "listen", "", "address to listen on; port 0 takes a free one (default 127.0.0.1:8080)")
	f.StringVar(&flags.Upstream, "upstream", "", "URL of the API to protect (required)")
	f.StringVar(&flags.Store, "store", "", storeHelp+" (default sqlite:kakutei.db)")
	f.StringVar(&flags.Admin, "admin", "", "address for /healthz, /readyz and /metrics (default none)")
	f.DurationVar((*time.Duration)(flags.Retention), "retention", 0, "how long answers are kept (default 72h)")
	f.DurationVar((*time.Duration)(flags.Drain), "drain", 0, "how long running requests may take to end after SIGTERM (default 30s)")
	f.StringVar(&flags.JWTKey, "jwt-key", "", "file with the key that verifies tokens for --scope jwt:CLAIM: PEM public key, certificate, or HMAC secret")
	f.BoolVar(&flags.JWTUnverified, "jwt-unverified", false, "take the claims of tokens on trust: only where a gateway in front verifies them")
	f.StringVar(&file, "config", "", "YAML file with the same settings, and routes")
	f.StringVar(route.Scope, "scope", "", "whose key a key is: header:NAME, jwt:CLAIM or single (required)")
	f.StringVar(route.Recovery, "recovery", "", "after a request without a final answer: rerun or hold (default rerun)")
	f.BoolVar(route.Required, "required", false, "refuse POST and PATCH without a key")
	f.BoolVar(route.Strict, "strict", false, `take only quoted keys ("…"), as the draft standard has them`)
	f.DurationVar((*time.Duration)(route.Wait), "wait", 0, "how long a duplicate waits for the running request before 409 (default 0s)")
	f.DurationVar((*time.Duration)(route.Lease), "lease", 0, "how long a crash blocks a key (default 30s)")
	f.DurationVar((*time.Duration)(route.Timeout), "timeout", 0, "how long the upstream may take (default 1m)")
	f.Int64Var(route.MaxRequestBytes, "max-request-bytes", 0, "largest body of a request with a key (default 4194304)")
	f.Int64Var(route.MaxResponseBytes, "max-response-bytes", 0, "largest answer that is kept (default 4194304)")
	f.StringVar(route.AuthorizeReplay, "authorize-replay", "", "URL that is asked before a recorded answer is given (default none)")

	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// Only what was given on the command line overrides the file.
		for name, forget := range map[string]func(){
			"scope": func() { route.Scope = nil }, "recovery": func() { route.Recovery = nil },
			"required": func() { route.Required = nil }, "strict": func() { route.Strict = nil },
			"wait": func() { route.Wait = nil }, "lease": func() { route.Lease = nil }, "timeout": func() { route.Timeout = nil },
			"max-request-bytes":  func() { route.MaxRequestBytes = nil },
			"max-response-bytes": func() { route.MaxResponseBytes = nil },
			"authorize-replay":   func() { route.AuthorizeReplay = nil },
			"retention":          func() { flags.Retention = nil },
			"drain":              func() { flags.Drain = nil },
		} {
			if !cmd.Flags().Changed(name) {
				forget()
			}
		}
		flags.routeConfig = route
		if file == "" && cmd.Flags().Changed("config") {
			return usagef("--config has no value: the name of a file")
		}
		cfg, err := flags.complete(file)
		if err != nil {
			return err
		}
		return serve(cmd.Context(), cfg)
	}
	return cmd
}

// complete puts the flags over the file and the file over the defaults.
func (c proxyConfig) complete(file string) (proxyConfig, error) {
	if file != "" {
		base, err := readConfig(file)
		if err != nil {
			return c, err
		}
		orElse(&c.Listen, base.Listen)
		orElse(&c.Upstream, base.Upstream)
		orElse(&c.Store, base.Store)
		orElse(&c.Admin, base.Admin)
		orElse(&c.Retention, base.Retention)
		orElse(&c.Drain, base.Drain)
		orElse(&c.JWTKey, base.JWTKey)
		orElse(&c.JWTUnverified, base.JWTUnverified)
		c.over(base.routeConfig)
		c.Routes = base.Routes
	}
	c.defaults()
	for i := range c.Routes {
		c.Routes[i].over(c.routeConfig)
	}
	return c, c.check()
}

// build returns what the configuration describes. Nothing is opened yet, so a
// mistake in it leaves no trace.
func (c proxyConfig) build(logger *slog.Logger) (cfg proxy.Config, err error) {
	var scopes proxy.ScopeOptions
	scopes.JWTUnverified = c.JWTUnverified
	if c.JWTKey != "" {
		content, err := os.ReadFile(c.JWTKey)
		if err != nil {
			return cfg, usagef("read the JWT key: %v", err)
		}
		if scopes.JWTKey, err = proxy.ParseJWTKey(content); err != nil {
			return cfg, fmt.Errorf("%w: %w", errUsage, err)
		}
	}
	if c.Upstream == "" {
		return cfg, usagef("--upstream is missing: the URL of the API to protect")
	}
	upstream, err := url.Parse(c.Upstream)
	if err != nil || upstream.Scheme != "http" && upstream.Scheme != "https" {
		return cfg, usagef("--upstream is not an http or https URL such as http://127.0.0.1:9000") // the text may hold a password
	}
	cfg = proxy.Config{Upstream: upstream, Logger: logger}
	if cfg.Default, err = c.routeConfig.route(scopes); err != nil {
		return cfg, err
	}
	for _, r := range c.Routes {
		route, err := r.route(scopes)
		if err != nil {
			return cfg, err
		}
		cfg.Routes = append(cfg.Routes, route)
	}
	if _, err := parseStore(c.Store); err != nil {
		return cfg, err
	}
	return cfg, rehearse(cfg)
}

// rehearse makes the proxy on a store that keeps nothing, so that what it
// refuses is refused before anything is opened.
func rehearse(routes proxy.Config) error {
	engine, err := kakutei.New(memstore.New(), kakutei.Options{})
	if err != nil {
		return err
	}
	if _, err = proxy.New(engine, routes); err != nil {
		err = fmt.Errorf("%w: %w", errUsage, err)
	}
	return errors.Join(err, engine.Close(context.Background()))
}

// listen listens on the address that a flag gives.
func listen(flag, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	var malformed *net.AddrError
	switch {
	case errors.As(err, &malformed):
		return nil, usagef("%s: %q is not an address such as 127.0.0.1:8080", flag, addr)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return l, nil
}

// proxy serves until ctx ends, and then drains.
func (p *program) proxy(ctx context.Context, cfg proxyConfig) (err error) {
	logger := slog.New(slog.NewTextHandler(p.stderr, nil))
	routes, err := cfg.build(logger)
	if err != nil {
		return err
	}
	// Who cannot listen has no use for a store, and makes none.
	listener, err := listen("--listen", cfg.Listen)
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // the server closes it, too
	admin := &admin{metrics: newMetrics()}
	var adminListener net.Listener
	if cfg.Admin != "" {
		if adminListener, err = listen("--admin", cfg.Admin); err != nil {
			return err
		}
		defer adminListener.Close() //nolint:errcheck // the server closes it, too
	}
	store, err := openStore(ctx, cfg.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	engine, err := kakutei.New(store, kakutei.Options{
		Retention: time.Duration(*cfg.Retention), Logger: logger, ObserveFunc: admin.metrics.observe,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	handler, err := proxy.New(engine, routes)
	if err != nil {
		return errors.Join(fmt.Errorf("%w: %w", errUsage, err), engine.Close(ctx))
	}
	if admin.store = store; adminListener != nil {
		defer admin.serve(adminListener, logger)()
	}
	server, served := p.serve(listener, handler, logger)

	select {
	case err = <-served:
	case <-ctx.Done():
	}
	drain := time.Duration(*cfg.Drain)
	logger.Info("kakutei: draining", "up_to", drain)
	admin.draining.Store(true)
	// The drain begins when ctx has ended, so it has a time of its own: one for
	// the requests and the engine together.
	ctx, cancel := context.WithTimeout(context.Background(), drain)
	defer cancel()
	late := server.Shutdown(ctx)
	if errors.Is(late, context.DeadlineExceeded) {
		late = fmt.Errorf("requests were still running after %v", drain)
	}
	return errors.Join(err, late, engine.Close(ctx))
}

// serve serves on listener, and says so when it does.
func (p *program) serve(listener net.Listener, handler http.Handler, logger *slog.Logger) (*http.Server, <-chan error) {
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(logger.Handler(), slog.LevelWarn), Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	fmt.Fprintf(p.stdout, "listening on http://%s\n", listener.Addr())
	return server, served
}
