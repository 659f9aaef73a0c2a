package demo

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/kakutei-go/kakutei"
)

// layer is what stands between the clients and the shop: a column of the table.
type layer struct {
	name  string // on the command line of the server, and in JSON
	title string
	// heading is the title as the table has it, in two lines.
	heading [2]string
}

const (
	layerNaive = "naive"
	layerHold  = "kakutei-hold"
	layerRelay = "kakutei-relay"
)

// layers returns the columns in their order.
func layers() []layer {
	return []layer{
		{layerNaive, "naive", [2]string{"naive", ""}},
		{layerHold, "Kakutei, hold", [2]string{"Kakutei", "hold"}},
		{layerRelay, "Kakutei, rerun+relay", [2]string{"Kakutei", "rerun+relay"}},
	}
}

// serverConfig is what a server process is told.
type serverConfig struct {
	layer    string
	provider string
	database string
	lease    time.Duration
	// sabotage puts the naive layer where Kakutei should be, to show that the
	// demo would notice.
	sabotage bool
}

// newServer returns the shop behind its layer.
func newServer(ctx context.Context, cfg serverConfig) (http.Handler, func(context.Context) error, error) {
	s := &shop{provider: cfg.provider, relay: cfg.layer == layerRelay}
	handler := faulty(http.HandlerFunc(s.charge))

	var err error
	var protected http.Handler
	var stop func(context.Context) error
	switch {
	case cfg.layer == layerNaive, cfg.sabotage:
		protected, stop, err = protectNaively(ctx, handler, cfg.database)
	case cfg.layer == layerHold:
		protected, stop, err = protect(ctx, handler, cfg.database, cfg.lease, kakutei.Hold)
	case cfg.layer == layerRelay:
		protected, stop, err = protect(ctx, handler, cfg.database, cfg.lease, kakutei.Rerun)
	default:
		err = fmt.Errorf("layer %q is unknown", cfg.layer)
	}
	if err != nil {
		return nil, nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", protected)
	return mux, stop, nil
}

// faultHeader asks for a fault. It is not part of what makes two requests
// different, so that a retry without it is the same request.
const faultHeader = "Demo-Fault"

const panicText = "a fault of the demo: the handler panics after the charge"

// faulty breaks the handler on request, between the charge and its answer.
func faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if r.Header.Get(faultHeader) == "panic" {
			panic(panicText)
		}
	})
}
