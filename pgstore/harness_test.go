package pgstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/pgstore"
	"github.com/kakutei-go/kakutei/storetest"
)

// door is a way to a store, and to business rows in its transactions.
type door struct {
	name string
	open func(ctx context.Context, dsn string) (*pgstore.Store, func(), error)
	// write makes a business row in the transaction of ctx.
	write func(ctx context.Context, name string) error
}

const queryBusiness = `INSERT INTO business (name) VALUES ($1)`

func writePGX(ctx context.Context, name string) error {
	tx, err := pgstore.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, queryBusiness, name)
	return err
}

func writeSQL(ctx context.Context, name string) error {
	tx, err := pgstore.TxDB(ctx)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, queryBusiness, name)
	return err
}

func openSQL(ctx context.Context, db *sql.DB) (*pgstore.Store, func(), error) {
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	s, err := pgstore.NewDB(ctx, db, pgstore.Options{})
	return s, func() { db.Close() }, err
}

const maxConns = 12

// The doors: a pgx pool, database/sql over pgx, and database/sql over another
// driver.
var (
	pgxDoor = door{"pgx", func(ctx context.Context, dsn string) (*pgstore.Store, func(), error) {
		cfg, err := pgxpool.ParseConfig(dsn)
		if err != nil {
			return nil, nil, err
		}
		cfg.MaxConns = maxConns
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		s, err := pgstore.New(ctx, pool, pgstore.Options{})
		return s, pool.Close, err
	}, writePGX}
	stdlibDoor = door{"stdlib", func(ctx context.Context, dsn string) (*pgstore.Store, func(), error) {
		db, err := sql.Open("pgx", dsn)
		if err != nil {
			return nil, nil, err
		}
		return openSQL(ctx, db)
	}, writeSQL}
	pqDoor = door{"pq", func(ctx context.Context, dsn string) (*pgstore.Store, func(), error) {
		db, err := sql.Open("postgres", dsn)
		if err != nil {
			return nil, nil, err
		}
		return openSQL(ctx, db)
	}, writeSQL}
	doors = []door{pgxDoor, stdlibDoor, pqDoor}
)

// must opens the store at dsn until the test ends.
func (d door) must(t *testing.T, dsn string) *pgstore.Store {
	t.Helper()
	s, end, err := d.open(t.Context(), dsn)
	if end != nil {
		t.Cleanup(end)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// admin is a connection pool beside the store, for what the store does not do.
func admin(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// migrated makes the tables in the database at dsn.
func migrated(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	if err := pgstore.Migrate(t.Context(), pool, pgstore.Options{}); err != nil {
		t.Fatal(err)
	}
}

// opened is a store with what the suite's hooks need.
type opened struct {
	*pgstore.Store
	dsn   string
	admin *pgxpool.Pool
}

// factory runs the suite through d. database returns the DSNs of a fresh
// database: that of the store, and one that leads straight to the server.
func factory(d door, database func(t *testing.T) (dsn, direct string)) storetest.Factory {
	exec := func(t *testing.T, s kakutei.Store, query string, args ...any) {
		t.Helper()
		if _, err := s.(opened).admin.Exec(context.Background(), query, args...); err != nil {
			t.Fatal(err)
		}
	}
	return storetest.Factory{
		Open: func(t *testing.T) kakutei.Store {
			dsn, direct := database(t)
			pool := admin(t, direct)
			migrated(t, pool)
			return opened{d.must(t, dsn), dsn, pool}
		},
		Reopen: func(t *testing.T, s kakutei.Store) kakutei.Store {
			o := s.(opened)
			return opened{d.must(t, o.dsn), o.dsn, o.admin}
		},
		Corrupt: func(t *testing.T, s kakutei.Store, id kakutei.ID, status string, fingerprint []byte) {
			exec(t, s, `ALTER TABLE idempotency_keys DROP CONSTRAINT IF EXISTS idempotency_keys_status_check`)
			exec(t, s, `INSERT INTO idempotency_keys SELECT $1, $2, '', '', $3, $4, 1, 'nobody', '', '', '',
				now() - interval '1 hour', t, t, t FROM (SELECT now() - interval '2 hours' AS t) x`, id.Scope, id.Key, fingerprint, status)
		},
		Dump: func(t *testing.T, s kakutei.Store, id kakutei.ID) (out string) {
			err := s.(opened).admin.QueryRow(context.Background(), `SELECT
				coalesce((SELECT k::text FROM idempotency_keys k WHERE scope = $1 AND idempotency_key = $2), '') ||
				coalesce((SELECT string_agg(r::text, E'\n' ORDER BY r::text) FROM idempotency_results r WHERE scope = $1 AND idempotency_key = $2), '')`,
				id.Scope, id.Key).Scan(&out)
			if err != nil {
				t.Fatal(err)
			}
			return out
		},
		ClaimUncommitted: func(t *testing.T, s kakutei.Store, c kakutei.Claim) func() {
			tx, err := s.(opened).admin.Begin(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(context.Background(), `INSERT INTO idempotency_keys SELECT $1, $2, '', '', $3, 'PROCESSING', 1, $4, '', '', '',
				now() + interval '1 hour', now(), now(), now()`, c.Scope, c.Key, c.Fingerprint.Bytes(), c.Owner); err != nil {
				t.Fatal(err)
			}
			return func() { tx.Rollback(context.Background()) }
		},
		Backdate: backdate,
		Business: func(t *testing.T, s kakutei.Store) storetest.Business {
			exec(t, s, `CREATE TABLE IF NOT EXISTS business (name text PRIMARY KEY)`)
			return storetest.Business{Write: d.write, Exists: func(ctx context.Context, name string) (ok bool, err error) {
				err = s.(opened).admin.QueryRow(ctx, `SELECT EXISTS (SELECT FROM business WHERE name = $1)`, name).Scan(&ok)
				return ok, err
			}}
		},
	}
}

// backdate makes the records of id older, in the partition of that day.
func backdate(t *testing.T, s kakutei.Store, id kakutei.ID, age time.Duration) {
	pool := s.(opened).admin
	day := time.Now().UTC().Add(-age).Truncate(24 * time.Hour)
	name := "idempotency_results_" + day.Format("20060102")
	const bound = "2006-01-02 00:00:00+00"
	ctx := context.Background()
	var there bool
	if err := pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, name).Scan(&there); err != nil {
		t.Fatal(err)
	}
	statements := []string{`ALTER TABLE idempotency_keys DROP CONSTRAINT IF EXISTS idempotency_keys_check`}
	if !there {
		statements = append(statements, fmt.Sprintf(`CREATE TABLE %s PARTITION OF idempotency_results FOR VALUES FROM ('%s') TO ('%s')`,
			name, day.Format(bound), day.AddDate(0, 0, 1).Format(bound)))
	}
	for _, st := range statements {
		if _, err := pool.Exec(ctx, st); err != nil {
			t.Fatal(err)
		}
	}
	const older = ` = %[1]s - $3 * interval '1 millisecond'`
	for table, columns := range map[string][]string{
		"idempotency_results": {"completed_at", "created_at", "claimed_at"}, "idempotency_keys": {"updated_at", "created_at", "claimed_at"},
	} {
		for _, c := range columns {
			if _, err := pool.Exec(ctx, `UPDATE `+table+` SET `+c+fmt.Sprintf(older, c)+` WHERE scope = $1 AND idempotency_key = $2`,
				id.Scope, id.Key, age.Milliseconds()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

var _ = stdlib.GetDefaultDriver // the driver "pgx"
