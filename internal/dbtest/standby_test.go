package dbtest

import (
	"context"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

func TestFailover(t *testing.T) {
	t.Parallel()
	for _, v := range Versions(t) {
		t.Run(v, func(t *testing.T) {
			var traces []trace
			t.Run("pair", func(t *testing.T) { traces = failover(t, v) })
			gone(t, traces...)
		})
	}
}

func failover(t *testing.T, version string) []trace {
	primary := Postgres(t, PostgresOptions{Version: version})
	primary.Exec("postgres", "CREATE TABLE t (n int)")
	began := time.Now()
	standby := Standby(t, primary, StandbyOptions{Replication: Applied})
	t.Logf("standby after %v", time.Since(began))
	sw := NewSwitch(t, primary.Addr())
	dsn := PostgresDSN(sw.Addr(), "postgres")

	conn := connect(t, dsn)
	if _, err := conn.Exec(t.Context(), "INSERT INTO t VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	assert.Equal(t, standby.Query("postgres", "SELECT count(*) FROM t"), "1", "rows on the standby")

	// It is synchronous: without the standby nothing is acknowledged.
	standby.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := conn.Exec(ctx, "INSERT INTO t VALUES (2)"); err == nil {
		t.Error("a commit was acknowledged without the standby")
	}
	standby.Resume()

	standby.Kill9()
	standby.Start()
	primary.Exec("postgres", "INSERT INTO t VALUES (3)") // waits for it
	assert.Equal(t, standby.Query("postgres", "SELECT min(n), max(n) FROM t"), "1|3", "rows on the standby after its crash")

	traces := []trace{traceOf(t, primary.daemon), traceOf(t, standby.daemon)}
	primary.Kill9()
	began = time.Now()
	standby.Promote()
	t.Logf("promoted after %v", time.Since(began))
	sw.Point(standby.Addr())
	sw.Cut()
	conn = connect(t, dsn)
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, "INSERT INTO t VALUES (4)"); err != nil {
		t.Fatalf("write on the new primary: %v", err)
	}
	assert.Equal(t, standby.Query("postgres", "SELECT min(n), max(n) FROM t"), "1|4", "rows on the new primary")
	return traces
}

func TestAsynchronousStandby(t *testing.T) {
	t.Parallel()
	primary := Postgres(t, PostgresOptions{})
	standby := Standby(t, primary, StandbyOptions{Replication: Asynchronous})
	standby.Pause()
	primary.Exec("postgres", "CREATE TABLE t (n int)") // does not hang
	primary.Kill9()
	standby.Resume()
	standby.Promote()
	standby.Query("postgres", "SELECT count(*) FROM pg_class WHERE relname = 't'") // it may be lost
}
