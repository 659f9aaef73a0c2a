package pgstore_test

import (
	"testing"

	"github.com/kakutei-go/kakutei/internal/dbtest"
	"github.com/kakutei-go/kakutei/storetest"
)

// TestConformance runs the suite through each door.
func TestConformance(t *testing.T) {
	for _, d := range doors {
		t.Run(d.name, func(t *testing.T) {
			storetest.Run(t, factory(d, func(t *testing.T) (string, string) {
				dsn := dbtest.Shared(t).Database().DSN()
				return dsn, dsn
			}))
		})
	}
}

// TestConformanceVersions runs the suite on every PostgreSQL at hand but the one
// that the other tests use.
func TestConformanceVersions(t *testing.T) {
	for _, v := range dbtest.Versions(t)[1:] {
		t.Run("postgres"+v, func(t *testing.T) {
			storetest.Run(t, factory(pgxDoor, func(t *testing.T) (string, string) {
				dsn := dbtest.SharedVersion(t, v).Database().DSN()
				return dsn, dsn
			}))
		})
	}
}

// TestConformanceIsolation_case_5 runs the suite where the default isolation of
// the sessions is another one: a second look with the first one's snapshot would
// be blind.
func TestConformanceIsolation_case_5(t *testing.T) {
	for level, d := range map[string]door{"repeatable read": pgxDoor, "serializable": pqDoor} {
		t.Run(level, func(t *testing.T) {
			storetest.Run(t, factory(d, func(t *testing.T) (string, string) {
				db := dbtest.Shared(t).Database()
				db.Exec(`ALTER DATABASE "` + db.Name + `" SET default_transaction_isolation = '` + level + `'`)
				return db.DSN(), db.DSN()
			}))
		})
	}
}

// TestConformanceBouncer_case_50 runs the suite through PgBouncer in transaction
// mode.
func TestConformanceBouncer_case_50(t *testing.T) {
	bouncer := dbtest.PgBouncer(t, dbtest.Shared(t), dbtest.BouncerOptions{})
	for _, d := range []door{pgxDoor, stdlibDoor} {
		t.Run(d.name, func(t *testing.T) {
			storetest.Run(t, factory(d, func(t *testing.T) (string, string) {
				db := dbtest.Shared(t).Database()
				return bouncer.DSN(db.Name, "default_query_exec_mode=exec"), db.DSN()
			}))
		})
	}
}

// TestConformanceTimeZone_case_46 runs the suite where the sessions are in
// another time zone, a day away from UTC for half of the time.
func TestConformanceTimeZone_case_46(t *testing.T) {
	for _, zone := range []string{"Pacific/Chatham", "America/Los_Angeles"} {
		t.Run(zone, func(t *testing.T) {
			storetest.Run(t, factory(pgxDoor, func(t *testing.T) (string, string) {
				db := dbtest.Shared(t).Database()
				db.Exec(`ALTER DATABASE "` + db.Name + `" SET timezone = '` + zone + `'`)
				return db.DSN(), db.DSN()
			}))
		})
	}
}
