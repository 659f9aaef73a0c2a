package dbtest

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kakutei-go/kakutei/internal/assert"
)

func TestPgBouncer(t *testing.T) {
	t.Parallel()
	var tr trace
	t.Run("server", func(t *testing.T) {
		db := Shared(t).Database()
		db.Exec("CREATE TABLE t (n int)")
		b := PgBouncer(t, Shared(t), BouncerOptions{})
		conn := connect(t, b.DSN(db.Name, "default_query_exec_mode=exec"))
		if _, err := conn.Exec(t.Context(), "INSERT INTO t VALUES ($1)", 1); err != nil {
			t.Fatal(err)
		}
		b.Kill9()
		if err := answers(b.DSN(db.Name)); err == nil {
			t.Error("a dead pooler answers")
		}
		b.Start()
		conn = connect(t, b.DSN(db.Name, "default_query_exec_mode=exec"))
		var n int
		if err := conn.QueryRow(t.Context(), "SELECT n FROM t").Scan(&n); err != nil {
			t.Fatal(err)
		}
		assert.Equal(t, n, 1, "row")
		b.Pause()
		if err := answers(b.DSN(db.Name)); err == nil {
			t.Error("a paused pooler answers")
		}
		b.Resume()
		tr = traceOf(t, b.daemon)
	})
	gone(t, tr)
}

// In transaction mode a session is not a session: what a store must not rely on
// has to fail here.
func TestPgBouncerBreaksSessions(t *testing.T) {
	t.Parallel()
	db := Shared(t).Database()
	b := PgBouncer(t, Shared(t), BouncerOptions{PoolSize: 2})
	pool, err := pgxpool.New(t.Context(), b.DSN(db.Name, "pool_max_conns=4"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	errs := make(chan error)
	for range 8 {
		go func() {
			var err error
			for range 200 {
				var n int
				if err = pool.QueryRow(t.Context(), "SELECT $1::int", 1).Scan(&n); err != nil {
					break
				}
			}
			errs <- err
		}()
	}
	failures := 0
	for range 8 {
		if err := <-errs; err != nil && strings.Contains(err.Error(), "prepared statement") {
			failures++
		}
	}
	assert.True(t, failures > 0, "prepared statements work: it is no pooler in transaction mode")
}
