package bench

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/sqlitestore"
)

// The plain way on SQLite: one table, the rowid left out as Kakutei does it.
const (
	sqlitePlainTable = `
CREATE TABLE idempotency (
    scope TEXT NOT NULL, idempotency_key TEXT NOT NULL, request_hash BLOB NOT NULL, status TEXT NOT NULL,
    response BLOB, created_at INTEGER NOT NULL, completed_at INTEGER, PRIMARY KEY (scope, idempotency_key)
) STRICT, WITHOUT ROWID`

	sqlitePlainInsert = `
INSERT INTO idempotency (scope, idempotency_key, request_hash, status, created_at)
VALUES (?1, ?2, ?3, 'PROCESSING', unixepoch()) ON CONFLICT DO NOTHING`

	sqlitePlainSelect = `SELECT request_hash, status, response FROM idempotency WHERE scope = ?1 AND idempotency_key = ?2`

	sqlitePlainUpdate = `
UPDATE idempotency SET status = 'COMPLETED', response = ?3, completed_at = unixepoch()
WHERE scope = ?1 AND idempotency_key = ?2`

	sqlitePlainLoad = `
INSERT INTO idempotency (scope, idempotency_key, request_hash, status, response, created_at, completed_at)
VALUES (?1, ?2, ?3, 'COMPLETED', ?4, unixepoch(), unixepoch())`

	sqlitePlainCounts = `
SELECT coalesce(sum(status = 'PROCESSING'), 0), coalesce(sum(status = 'COMPLETED'), 0),
       (SELECT count(*) FROM transfers), (SELECT -sum(balance) FROM accounts)
FROM idempotency`

	sqliteKakuteiCounts = `
SELECT (SELECT count(*) FROM idempotency_keys),
       (SELECT count(*) FROM idempotency_results WHERE status = 'SUCCEEDED'),
       (SELECT count(*) FROM transfers), (SELECT -sum(balance) FROM accounts)`
)

// The business: accounts that begin at zero, and transfers of one each.
const (
	sqliteBusinessTables = `
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT;
CREATE TABLE transfers (id INTEGER PRIMARY KEY, ref TEXT NOT NULL, account INTEGER NOT NULL, amount INTEGER NOT NULL) STRICT;
WITH RECURSIVE n(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id + 1 < ?1)
INSERT INTO accounts SELECT id, 0 FROM n`

	sqliteSpend    = `UPDATE accounts SET balance = balance - 1 WHERE id = ?1`
	sqliteTransfer = `INSERT INTO transfers (ref, account, amount) VALUES (?1, ?2, 1)`
)

// sqliteBusiness is the business transaction, the same for both sides.
func sqliteBusiness(ctx context.Context, tx *sql.Tx, ref string, account int) error {
	if _, err := tx.ExecContext(ctx, sqliteSpend, account); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, sqliteTransfer, ref, account)
	return err
}

// sqliteDatabase keeps every side in a file of its own, in one folder.
type sqliteDatabase struct {
	dir  string
	next atomic.Int64
}

// openSQLite works beside path, in a new folder, and never touches path itself.
// An empty path is the folder for temporary files.
func openSQLite(path string) (*sqliteDatabase, error) {
	parent := path
	if path != "" {
		if info, err := os.Stat(path); err != nil || !info.IsDir() {
			parent = filepath.Dir(path)
		}
	}
	dir, err := os.MkdirTemp(parent, "kakutei-bench-*")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrStore, err)
	}
	return &sqliteDatabase{dir: dir}, nil
}

func (d *sqliteDatabase) Close() error { return os.RemoveAll(d.dir) }

func (d *sqliteDatabase) newPath() string {
	return filepath.Join(d.dir, fmt.Sprintf("%d.db", d.next.Add(1)))
}

func removeSQLite(path string) error {
	var errs []error
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (d *sqliteDatabase) Describe(ctx context.Context) (string, error) {
	path := d.newPath()
	db, err := sql.Open("sqlite", plainDSN(path))
	if err != nil {
		return "", err
	}
	defer db.Close()
	var version, journal string
	var synchronous int
	if err := db.QueryRowContext(ctx, `SELECT sqlite_version(), (SELECT * FROM pragma_journal_mode), (SELECT * FROM pragma_synchronous)`).
		Scan(&version, &journal, &synchronous); err != nil {
		return "", err
	}
	if journal != "wal" || synchronous != 2 {
		return "", fmt.Errorf("the file has journal_mode=%s and synchronous=%d: it would not be as durable as Kakutei's", journal, synchronous)
	}
	return fmt.Sprintf("SQLite %s, WAL, synchronous=FULL", version), removeSQLite(path)
}

// SyncTime is the median of fifty writes of a page, each made durable.
func (d *sqliteDatabase) SyncTime() (time.Duration, error) {
	f, err := os.CreateTemp(d.dir, "sync-*")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // the folder goes anyway
	defer f.Close()           //nolint:errcheck // it was only read or synced
	page := make([]byte, 4096)
	times := make([]time.Duration, 50)
	for i := range times {
		start := time.Now()
		if _, err := f.Write(page); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times[i] = time.Since(start)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}

func (d *sqliteDatabase) Protected(ctx context.Context) (Protected, error) {
	path := d.newPath()
	store, err := sqlitestore.Open(ctx, path, sqlitestore.Options{})
	if err != nil {
		return nil, err
	}
	if _, err := store.DB().ExecContext(ctx, sqliteBusinessTables, accounts); err != nil {
		return nil, errors.Join(err, store.Close(), removeSQLite(path))
	}
	return &sqliteProtected{store: store, path: path}, nil
}

type sqliteProtected struct {
	store *sqlitestore.Store
	path  string
}

func (p *sqliteProtected) Store() kakutei.Store { return p.store }

func (p *sqliteProtected) Business(ctx context.Context, ref string, account int) error {
	tx, err := sqlitestore.Tx(ctx)
	if err != nil {
		return err
	}
	return sqliteBusiness(ctx, tx, ref, account)
}

func (p *sqliteProtected) Counts(ctx context.Context) (c Counts, err error) {
	err = p.store.DB().QueryRowContext(ctx, sqliteKakuteiCounts).Scan(&c.Live, &c.Settled, &c.Transfers, &c.Spent)
	return c, err
}

func (p *sqliteProtected) Close() error { return errors.Join(p.store.Close(), removeSQLite(p.path)) }

func (d *sqliteDatabase) PlainWays() []PlainWay {
	return []PlainWay{
		{Name: "plain", Alone: true, Open: func(ctx context.Context, callers int) (Plain, error) {
			return openPlain(ctx, d.newPath(), callers)
		}},
		{Name: "plain, one connection", Open: func(ctx context.Context, _ int) (Plain, error) {
			return openPlain(ctx, d.newPath(), 1)
		}},
	}
}

// plainDSN is what guides to SQLite in Go advise: a busy timeout of five
// seconds, and transactions that take the writer's place when they begin.
func plainDSN(path string) string {
	q := url.Values{"_txlock": {"immediate"}, "_pragma": {"busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)"}}
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// sqlitePlain has connections that callers share by their number.
type sqlitePlain struct {
	db    *sql.DB
	path  string
	conns []*plainConn
}

// plainConn is one connection with its statements prepared.
type plainConn struct {
	mu                     sync.Mutex
	conn                   *sql.Conn
	insert, choose, update *sql.Stmt
}

func openPlain(ctx context.Context, path string, conns int) (_ *sqlitePlain, err error) {
	p := &sqlitePlain{path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.db, err = sql.Open("sqlite", plainDSN(path)); err != nil {
		return nil, err
	}
	for _, create := range []string{sqlitePlainTable, sqliteBusinessTables} {
		if _, err := p.db.ExecContext(ctx, create, accounts); err != nil {
			return nil, err
		}
	}
	for range conns {
		c := &plainConn{}
		p.conns = append(p.conns, c)
		if c.conn, err = p.db.Conn(ctx); err != nil {
			return nil, err
		}
		for query, stmt := range map[string]**sql.Stmt{
			sqlitePlainInsert: &c.insert, sqlitePlainSelect: &c.choose, sqlitePlainUpdate: &c.update,
		} {
			if *stmt, err = c.conn.PrepareContext(ctx, query); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// use has one caller at a time use a connection.
func (p *sqlitePlain) use(caller int, f func(c *plainConn) error) error {
	c := p.conns[caller%len(p.conns)]
	c.mu.Lock()
	defer c.mu.Unlock()
	return f(c)
}

func (p *sqlitePlain) Once(ctx context.Context, caller int, key string, hash []byte, fn func() ([]byte, error)) (result []byte, replayed bool, err error) {
	err = p.use(caller, func(c *plainConn) error {
		res, err := c.insert.ExecContext(ctx, scope, key, hash)
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		if err != nil || n == 1 {
			return err
		}
		var known []byte
		var status string
		if err := c.choose.QueryRowContext(ctx, scope, key).Scan(&known, &status, &result); err != nil {
			return err
		}
		switch replayed = true; {
		case !slices.Equal(known, hash):
			return errors.New("the key belongs to another request")
		case status != "COMPLETED":
			return errors.New("the operation is in flight")
		}
		return nil
	})
	if err != nil || replayed {
		return result, replayed, err
	}
	if result, err = fn(); err != nil {
		return nil, false, err
	}
	return result, false, p.use(caller, func(c *plainConn) error {
		_, err := c.update.ExecContext(ctx, scope, key, result)
		return err
	})
}

func (p *sqlitePlain) Business(ctx context.Context, caller int, ref string, account int) error {
	return p.use(caller, func(c *plainConn) error {
		tx, err := c.conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := sqliteBusiness(ctx, tx, ref, account); err != nil {
			return err
		}
		return tx.Commit()
	})
}

func (p *sqlitePlain) Load(ctx context.Context, keys []string, hash []byte, result func(key string) ([]byte, error)) error {
	return p.use(0, func(c *plainConn) error {
		tx, err := c.conn.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for _, key := range keys {
			r, err := result(key)
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, sqlitePlainLoad, scope, key, hash, r); err != nil {
				return err
			}
		}
		return tx.Commit()
	})
}

func (p *sqlitePlain) Counts(ctx context.Context) (c Counts, err error) {
	err = p.use(0, func(conn *plainConn) error {
		return conn.conn.QueryRowContext(ctx, sqlitePlainCounts).Scan(&c.Live, &c.Settled, &c.Transfers, &c.Spent)
	})
	return c, err
}

func (p *sqlitePlain) Close() error {
	var errs []error
	for _, c := range p.conns {
		if c.conn != nil {
			errs = append(errs, c.conn.Close())
		}
	}
	if p.db != nil {
		errs = append(errs, p.db.Close())
	}
	return errors.Join(append(errs, removeSQLite(p.path))...)
}
