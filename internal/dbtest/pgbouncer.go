package dbtest

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// BouncerOptions describe a PgBouncer. The zero value is good.
type BouncerOptions struct {
	// PoolMode is session, transaction or statement. Default: transaction, the
	// one that breaks what relies on the session.
	PoolMode string
	// PoolSize is how many server connections each database has. Default: 10.
	PoolSize int
	// Upstream is where it connects to. Default: the server's own address. It can
	// be that of a Switch.
	Upstream string
	// Config is added to the [pgbouncer] section.
	Config map[string]string
}

// Bouncer is a running PgBouncer.
type Bouncer struct {
	daemon
}

// PgBouncer starts a connection pooler in front of a server; the server may be
// the shared one. Every user name is accepted and becomes postgres.
func PgBouncer(tb testing.TB, s *Server, o BouncerOptions) *Bouncer {
	tb.Helper()
	const program = "/usr/sbin/pgbouncer" // Debian's, and not in everybody's PATH
	if !executable(program) {
		missing(tb, "PgBouncer")
	}
	if o.PoolMode == "" {
		o.PoolMode = "transaction"
	}
	if o.PoolSize == 0 {
		o.PoolSize = 10
	}
	if o.Upstream == "" {
		o.Upstream = s.addr
	}
	p, err := newProcess("PgBouncer")
	if err != nil {
		tb.Fatal(err)
	}
	conf := filepath.Join(p.dir, "pgbouncer.ini")
	p.argv = []string{program, conf}
	p.ready = func(int) bool {
		conn, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err != nil {
			return false
		}
		_ = conn.Close()
		return true
	}
	if err := writeFile(conf, bouncerConfig(p, o)); err != nil {
		_ = p.close()
		tb.Fatal(err)
	}
	return &Bouncer{private(tb, p)}
}

func bouncerConfig(p *process, o BouncerOptions) string {
	host, port, _ := net.SplitHostPort(o.Upstream)
	conf := map[string]string{
		"listen_addr":       "127.0.0.1",
		"listen_port":       fmt.Sprint(p.port.number),
		"unix_socket_dir":   "",
		"auth_type":         "any",
		"pool_mode":         o.PoolMode,
		"default_pool_size": fmt.Sprint(o.PoolSize),
		"max_client_conn":   "1000",
		"log_connections":   "0", "log_disconnections": "0", "log_stats": "0",
		// lib/pq sets it at every start.
		"ignore_startup_parameters": "extra_float_digits",
		// After the server was away: try again soon, not after 15 s.
		"server_login_retry": "1",
	}
	maps.Copy(conf, o.Config)
	var text strings.Builder
	fmt.Fprintf(&text, "[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\n", host, port)
	for _, name := range slices.Sorted(maps.Keys(conf)) {
		fmt.Fprintf(&text, "%s = %s\n", name, conf[name])
	}
	return text.String()
}

// DSN is the URL of a database through the pooler.
func (b *Bouncer) DSN(db string, params ...string) string {
	return PostgresDSN(b.addr, db, params...)
}
