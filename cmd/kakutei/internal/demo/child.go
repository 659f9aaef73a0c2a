package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"
)

// drainTime is how long a process that ends waits for its requests.
const drainTime = 2 * time.Second

// Child is one of the other processes of the demo: args are "provider", or
// "server" with its flags. It prints its URL in a line on stdout. It ends with
// ctx, and when stdin is closed: so it cannot outlive the demo, however that ends.
func Child(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		//nolint:errcheck // an end is an end
		io.Copy(io.Discard, stdin)
		cancel()
	}()
	role := ""
	if len(args) > 0 {
		role, args = args[0], args[1:]
	}
	switch role {
	case "provider":
		return serve(ctx, newProvider(), stdout, stderr)
	case "server":
		cfg, err := parseServerConfig(args, stderr)
		if err != nil {
			return err
		}
		handler, stop, err := newServer(ctx, cfg)
		if err != nil {
			return err
		}
		err = serve(ctx, handler, stdout, stderr)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
		defer cancel()
		return errors.Join(err, stop(ctx))
	}
	return fmt.Errorf("a child of the demo is a provider or a server, not %q", role)
}

func parseServerConfig(args []string, stderr io.Writer) (cfg serverConfig, err error) {
	f := flag.NewFlagSet("server", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&cfg.layer, "layer", "", "what protects the shop")
	f.StringVar(&cfg.provider, "provider", "", "URL of the provider")
	f.StringVar(&cfg.database, "database", "", "file of the layer")
	f.DurationVar(&cfg.lease, "lease", 0, "lease of an attempt")
	f.BoolVar(&cfg.sabotage, "sabotage", false, "use the naive layer whatever --layer says")
	return cfg, f.Parse(args)
}

// args is the inverse of parseServerConfig.
func (c serverConfig) args() []string {
	return []string{
		"server", "--layer", c.layer, "--provider", c.provider, "--database", c.database,
		"--lease", c.lease.String(), fmt.Sprintf("--sabotage=%t", c.sabotage),
	}
}

// serve answers on a free port of the loopback until ctx ends.
func serve(ctx context.Context, handler http.Handler, stdout, stderr io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(stderr, "", 0)}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	if _, err := fmt.Fprintf(stdout, "http://%s\n", listener.Addr()); err != nil {
		return errors.Join(err, server.Close()) // nobody will ever ask
	}
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}
