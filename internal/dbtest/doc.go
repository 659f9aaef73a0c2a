// Package dbtest starts real, throwaway database servers for tests, and breaks
// them.
//
//	func TestClaim(t *testing.T) {
//		db := dbtest.Shared(t).Database()      // a fresh database; one server for the whole test process
//		pool, err := pgxpool.New(ctx, db.DSN())
//		…
//	}
//
//	func TestFailover(t *testing.T) {
//		primary := dbtest.Postgres(t, dbtest.PostgresOptions{Version: "17"}) // its own server, to be broken
//		standby := dbtest.Standby(t, primary, dbtest.StandbyOptions{})
//		sw := dbtest.NewSwitch(t, primary.Addr())                            // the address the client keeps
//		pool, err := pgxpool.New(ctx, dbtest.PostgresDSN(sw.Addr(), "postgres"))
//		…
//		primary.Kill9()
//		standby.Promote()
//		sw.Point(standby.Addr())
//	}
//
// Every server has a directory of its own below TMPDIR, or /tmp where that
// is closed to others, listens on loopback
// alone, accepts whoever connects, and runs as an unprivileged user if the test
// runs as root. It is durable as in production: fsync and synchronous commit are
// on. It never outlives the test process, however that ends: a watcher (guard.go)
// kills it and removes its directory as soon as the process is gone.
//
// A server program that is not installed fails the test where CI=true, and skips
// it elsewhere; .ci/install installs them all. Functions and methods that cannot
// do what they say end the test, so they are called from its goroutine.
//
// The package needs Linux. Another database is one file that builds on process
// (process.go) and daemon (daemon.go), as pgbouncer.go does.
package dbtest
