package dbtest

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// PostgresOptions describe a server. The zero value is good.
type PostgresOptions struct {
	// Version is the major version, "15" for example. Default: the environment's
	// KAKUTEI_DBTEST_POSTGRES, or the oldest one at hand.
	Version string
	// Config is added to the configuration: {"deadlock_timeout": "10ms"}.
	Config map[string]string
}

// Server is a running PostgreSQL server. The superuser is postgres; there are no
// passwords.
type Server struct {
	daemon
	*cluster
}

// cluster is what a PostgreSQL server has beyond being a process.
type cluster struct {
	in   install
	data string

	mu     sync.Mutex
	config map[string]string
}

// Postgres starts a server for this test alone, to be killed, paused and
// configured. It takes about a third of a second; tests that only need a
// database use Shared.
func Postgres(tb testing.TB, o PostgresOptions) *Server {
	tb.Helper()
	p, c, err := newPostgres(findPostgres(tb, o.Version), o.Config)
	if err != nil {
		tb.Fatal(err)
	}
	return &Server{private(tb, p), c}
}

// newPostgres prepares a server with a fresh cluster; it is not started.
func newPostgres(in install, config map[string]string) (*process, *cluster, error) {
	p, c, err := bareServer(in, config)
	if err != nil {
		return nil, nil, err
	}
	err = in.newCluster(c.data)
	if err == nil {
		err = c.writeConfig(p)
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.close())
	}
	return p, c, nil
}

// bareServer prepares a server without a cluster.
func bareServer(in install, config map[string]string) (*process, *cluster, error) {
	p, err := newProcess("PostgreSQL " + in.major)
	if err != nil {
		return nil, nil, err
	}
	c := &cluster{in: in, data: filepath.Join(p.dir, "data"), config: maps.Clone(config)}
	if c.config == nil {
		c.config = map[string]string{}
	}
	p.argv = []string{filepath.Join(in.bin, "postgres"), "-D", c.data}
	p.ready = c.ready
	return p, c, nil
}

// ready reads the pid file, whose last line says how far the server is. One that
// was left by a killed server has another process id.
func (c *cluster) ready(pid int) bool {
	text, err := os.ReadFile(filepath.Join(c.data, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	if len(lines) < 8 || lines[0] != strconv.Itoa(pid) {
		return false
	}
	status := strings.TrimSpace(lines[7])
	return status == "ready" || status == "standby"
}

// writeConfig writes the configuration that the server reads at its next start
// or reload.
func (c *cluster) writeConfig(p *process) error {
	conf := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(p.port.number),
		"unix_socket_directories": p.dir,
		"max_connections":         "300",
		// Nothing is left outside of the directory after a SIGKILL.
		"dynamic_shared_memory_type": "mmap",
		// What production has.
		"fsync":              "on",
		"full_page_writes":   "on",
		"synchronous_commit": "on",
		"log_line_prefix":    "%m [%p] %q%d ",
		"log_checkpoints":    "off",
	}
	maps.Copy(conf, c.config)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(conf)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.ReplaceAll(conf[name], "'", "''"))
	}
	// A server may be reading it: complete or the old one.
	path := filepath.Join(c.data, confFile)
	if err := writeFile(path+".new", text.String()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Version is the server's major version, "15" for example.
func (s *Server) Version() string { return s.in.major }

// DSN is the URL of a database over TCP, for pgx and lib/pq, with parameters
// such as "application_name=x" or "statement_timeout=100" added.
func (s *Server) DSN(db string, params ...string) string {
	return PostgresDSN(s.addr, db, params...)
}

// SocketDSN is DSN over the server's Unix socket, which costs less per round trip.
func (s *Server) SocketDSN(db string, params ...string) string {
	_, port, _ := net.SplitHostPort(s.addr)
	return PostgresDSN("", db, append([]string{"host=" + s.dir, "port=" + port}, params...)...)
}

// StopMode is one of PostgreSQL's ways to shut down.
type StopMode syscall.Signal

// The ways to stop a server: wait until all clients are gone; end their
// transactions; end everything and recover at the next start.
const (
	StopSmart     = StopMode(syscall.SIGTERM)
	StopFast      = StopMode(syscall.SIGINT)
	StopImmediate = StopMode(syscall.SIGQUIT)
)

// Stop shuts the server down and returns when it has ended. Start starts it again.
func (s *Server) Stop(mode StopMode) {
	s.tb.Helper()
	s.own("Stop")
	s.must(s.stop(syscall.Signal(mode)))
}

// SetConfig changes a setting, for the next start or Reload.
func (s *Server) SetConfig(name, value string) {
	s.tb.Helper()
	s.own("SetConfig")
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	s.config[name] = value
	s.must(s.writeConfig(s.process))
}

// Reload makes the running server read its configuration again. New connections
// have it when Reload returns, open ones at their next statement.
func (s *Server) Reload() {
	s.tb.Helper()
	s.own("Reload")
	const loaded = "SELECT pg_conf_load_time()"
	before := s.Query("postgres", loaded)
	s.must(s.signal(syscall.SIGHUP))
	s.must(poll(func() (bool, error) {
		now, err := querySQL(s.SocketDSN("postgres"), loaded)
		return err == nil && now != before, err
	}))
}
