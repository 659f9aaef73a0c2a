package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kakutei-go/kakutei"
)

// metrics counts the engine's events for Prometheus.
type metrics struct {
	registry *prometheus.Registry
	events   *prometheus.CounterVec
	runs     *prometheus.HistogramVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kakutei_events_total", Help: "What happened to operations, by kind.",
		}, []string{"kind"}),
		runs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kakutei_run_seconds", Help: "How long attempts ran, by how they ended.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"kind"}),
	}
	for _, kind := range kakutei.EventKinds() {
		m.events.WithLabelValues(kind.String())
	}
	m.registry.MustRegister(m.events, m.runs, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) observe(_ context.Context, ev kakutei.Event) {
	m.events.WithLabelValues(ev.Kind.String()).Inc()
	if ev.Duration > 0 {
		m.runs.WithLabelValues(ev.Kind.String()).Observe(ev.Duration.Seconds())
	}
}

// admin is the listener for operators and their machines.
type admin struct {
	store    kakutei.Store
	metrics  *metrics
	draining atomic.Bool
}

// readyTimeout bounds the question to the store behind /readyz.
const readyTimeout = 2 * time.Second

func (a *admin) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if a.draining.Load() {
			http.Error(w, "draining", http.StatusServiceUnavailable)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		if _, err := a.store.Look(ctx, []kakutei.ID{{Scope: "-", Key: "-"}}); err != nil {
			http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

// serve serves on listener until stop is called.
func (a *admin) serve(listener net.Listener, logger *slog.Logger) (stop func()) {
	server := &http.Server{Handler: a.handler(), ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.Serve(listener); err != nil && err != http.ErrServerClosed {
			logger.Error("kakutei: the admin listener ended", "error", err)
		}
	}()
	logger.Info("kakutei: admin listens", "url", "http://"+listener.Addr().String())
	return func() { _ = server.Close() } // nothing to lose: scrapes come again
}
