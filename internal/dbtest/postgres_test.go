package dbtest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

func TestEachVersion(t *testing.T) {
	t.Parallel()
	for _, v := range Versions(t) {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			db := SharedVersion(t, v).Database()
			t.Logf("shared server and database after %v", time.Since(began))
			assert.True(t, strings.HasPrefix(db.Query("SHOW server_version"), v+"."), "server is %s", db.Query("SHOW server_version"))

			var tr trace
			t.Run("private", func(t *testing.T) {
				began := time.Now()
				s := Postgres(t, PostgresOptions{Version: v})
				t.Logf("private server after %v", time.Since(began))
				s.Exec("postgres", "CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
				conn := connect(t, s.DSN("postgres"))
				if _, err := conn.Exec(t.Context(), "INSERT INTO t VALUES (2)"); err != nil {
					t.Fatal(err)
				}
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (3)"); err != nil {
					t.Fatal(err)
				}
				before := traceOf(t, s.daemon)
				s.Kill9()
				for _, pid := range before.pids {
					assert.True(t, !running(pid), "process %d survived", pid)
				}
				assert.Equal(t, s.PID(), 0, "process id of a dead server")
				if err := answers(s.DSN("postgres")); err == nil {
					t.Error("a dead server answers")
				}
				began = time.Now()
				s.Start()
				t.Logf("recovered after %v", time.Since(began))
				assert.Equal(t, s.Query("postgres", "SELECT string_agg(n::text, ',' ORDER BY n) FROM t"), "1,2", "rows after the crash")
				assert.True(t, strings.Contains(s.Log(), "not properly shut down"), "no crash recovery in the log:\n%s", s.Log())
				tr = traceOf(t, s.daemon)
			})
			gone(t, tr)
		})
	}
}

func TestDurability(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	for _, setting := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		assert.Equal(t, s.Query("postgres", "SHOW "+setting), "on", setting)
	}
}

func TestDatabasesAreApart(t *testing.T) {
	t.Parallel()
	var names []string
	t.Run("test", func(t *testing.T) {
		a := Shared(t).Database()
		a.Exec("CREATE TABLE t AS SELECT 7 AS n")
		b := Shared(t).Database()
		assert.Equal(t, b.Query("SELECT count(*) FROM pg_class WHERE relname = 't'"), "0", "tables of another database")
		c := Shared(t).DatabaseFrom(a.Name)
		assert.Equal(t, c.Query("SELECT n, NULL, 'x' FROM t"), "7||x", "row of the copy")
		names = append(names, a.Name, b.Name, c.Name)
		connect(t, b.DSN()) // a forgotten connection does not keep it
	})
	assert.Equal(t, Shared(t).Query("postgres", "SELECT count(*) FROM pg_database WHERE datname IN ('"+strings.Join(names, "','")+"')"), "0", "databases left")
}

func TestSharedIsOneServer(t *testing.T) {
	t.Parallel()
	var pids sync.Map
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { pids.Store(Shared(t).PID(), true) })
	}
	wg.Wait()
	n := 0
	pids.Range(func(any, any) bool { n++; return true })
	assert.Equal(t, n, 1, "servers")
}

func TestSharedMayNotBeBroken(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(*Server){
		"Kill9":     func(s *Server) { s.Kill9() },
		"Pause":     func(s *Server) { s.Pause() },
		"Stop":      func(s *Server) { s.Stop(StopFast) },
		"SetConfig": func(s *Server) { s.SetConfig("fsync", "off") },
	} {
		Shared(t) // where there is none, skip
		tb := &fakeTB{TB: t}
		tb.run(func(tb testing.TB) { breakIt(Shared(tb)) })
		assert.True(t, strings.HasPrefix(tb.failed, name+" on the shared server"), "%s: %q", name, tb.failed)
	}
}

func TestStopPauseAndConfigure(t *testing.T) {
	t.Parallel()
	s := Postgres(t, PostgresOptions{Config: map[string]string{"application_name": "it's"}})
	pid := s.PID()
	assert.Equal(t, s.Query("postgres", "SHOW application_name"), "it's", "application_name")

	s.SetConfig("deadlock_timeout", "7ms")
	s.Reload()
	assert.Equal(t, s.Query("postgres", "SHOW deadlock_timeout"), "7ms", "deadlock_timeout")

	s.Pause()
	if err := answers(s.DSN("postgres")); err == nil {
		t.Error("a paused server answers")
	}
	s.Resume()
	assert.Equal(t, s.Query("postgres", "SELECT 1"), "1", "answer after Resume")

	for _, mode := range []StopMode{StopSmart, StopFast, StopImmediate} {
		s.Stop(mode)
		assert.Equal(t, s.PID(), 0, "process id")
		s.Start()
	}
	assert.True(t, s.PID() != pid, "the process is still the first one")

	s.Pause()
	s.Kill9()
	s.Start()
	assert.Equal(t, s.Query("postgres", "SHOW deadlock_timeout"), "7ms", "deadlock_timeout")
	conn := connect(t, s.SocketDSN("postgres", "application_name=over there", "statement_timeout=100"))
	var name, limit string
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('application_name'), current_setting('statement_timeout')").Scan(&name, &limit); err != nil {
		t.Fatal(err)
	}
	assert.Equal(t, name+" "+limit, "over there 100ms", "parameters of the connection")
}

func TestAServerThatCannotStartSaysWhy(t *testing.T) {
	t.Parallel()
	findPostgres(t, "")
	tb := &fakeTB{TB: t}
	tb.run(func(tb testing.TB) { Postgres(tb, PostgresOptions{Config: map[string]string{"shared_buffers": "no"}}) })
	assert.True(t, strings.Contains(tb.failed, "invalid value for parameter"), "failed with %q", tb.failed)
}
