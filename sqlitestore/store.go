// Package sqlitestore keeps Kakutei's records in a SQLite file, embedded in the
// process: the store that needs no set-up. It is durable (WAL, synchronous=FULL)
// and several processes of one machine may share a file.
//
// SQLite has one writer at a time. The store makes that its strength: what many
// callers want written goes into one transaction with one sync to disk, while
// readers have connections of their own and wait for nobody. For the same
// reason a transactional handler keeps every other write of the file waiting
// from its first call of [Tx] until it ends.
//
// The file must be on a local disk: SQLite's locks do not work on network file
// systems.
package sqlitestore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/coalesce"
)

//go:embed schema/*.sql
var schema embed.FS

// versionTable is where the version of the schema is kept. A business that
// shares the file may have migrations of its own.
const versionTable = "idempotency_schema"

const (
	// busyMillis is how long SQLite itself waits for another process's
	// transaction. It is short, and tried again while the caller has time:
	// SQLite's own waits grow to a tenth of a second, and a process that writes
	// without pause would then hardly ever let another one in.
	busyMillis = 10
	// maxGroup bounds how many calls share one transaction.
	maxGroup = 64
	// maxRetention bounds the days that a look-up goes through: with 400 of them
	// it takes milliseconds.
	maxRetention = 400 * 24 * time.Hour
	// readers is how many look-ups may run at once.
	readers = 4
	// maxRaces bounds how often a start may find that another one was faster.
	maxRaces = 20
	// openTimeout bounds how long a start waits for another one's migration.
	openTimeout = 30 * time.Second
)

// Options configures a [Store]. There is nothing to set yet.
type Options struct{}

// Store implements [kakutei.Store], [kakutei.Transactor] and [kakutei.Retainer].
type Store struct {
	path   string
	write  *sql.DB // one connection
	read   *sql.DB
	record *sql.Stmt // queryRecord on read
	writes writeStatements
	groups *coalesce.Group[*job, error]

	// holder is the attempt whose transaction the writer's connection is in.
	holder atomic.Pointer[transaction]
	// day holds the name of the newest table of a day that is known to exist: a
	// transaction that made or found it was committed.
	day atomic.Value
	// now returns the database's clock within a transaction; tests shift it.
	now func(ctx context.Context, tx *sql.Tx) (int64, error)
}

// writeStatements are prepared once, on the writer's connection.
type writeStatements struct {
	now, record, insert, take, hold, renew, remove, end *sql.Stmt
}

// Open opens the file at path, makes it if there is none, and brings its schema
// up to date; starts of several processes at once are safe. A file of a newer
// schema, one that is no database and one that cannot be written are refused.
func Open(ctx context.Context, path string, _ Options) (*Store, error) {
	switch {
	case path == "":
		return nil, errors.New("sqlite: the path of the database file is empty")
	case strings.ContainsRune(path, 0):
		return nil, fmt.Errorf("sqlite: the path %q holds a NUL: SQLite would take what stands before it", path)
	case strings.HasPrefix(path, ":memory:"):
		return nil, errors.New("sqlite: a database in memory is lost with the process; give the path of a file, or use memstore in tests")
	}
	absolute, err := fromRoot(path)
	if err != nil {
		return nil, fmt.Errorf("sqlite: open %q: %w", path, err)
	}
	s := &Store{path: absolute}
	s.now = s.clock
	if err := s.open(ctx); err != nil {
		_ = s.Close() // the first error is the one to report
		return nil, fmt.Errorf("sqlite: open %q: %w", path, explain(err))
	}
	s.groups = coalesce.New(maxGroup, s.runGroup)
	return s, nil
}

func (s *Store) open(ctx context.Context) (err error) {
	connector, err := sqlite.NewConnector(dsn(s.path, "immediate", "synchronous(FULL)"))
	if err != nil {
		return err
	}
	s.write = sql.OpenDB(guarded{connector, s})
	s.write.SetMaxOpenConns(1)
	s.write.SetMaxIdleConns(1)
	if err := s.migrate(ctx); err != nil {
		return err
	}
	// That somebody else is writing is an answer too: the file can be written.
	if _, err := s.write.ExecContext(ctx, queryWritable); err != nil && !isBusy(err) {
		return err
	}
	if s.read, err = sql.Open("sqlite", dsn(s.path, "deferred", "query_only(1)")); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s.prepare(ctx)
}

// fromRoot makes a path independent of the working directory: connections are
// opened again at any time, and must find the same file. It leaves ".." to the
// file system, which knows about symbolic links.
func fromRoot(path string) (string, error) {
	if filepath.IsAbs(path) {
		return path, nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return wd + string(filepath.Separator) + path, nil
}

func dsn(path, txlock, pragma string) string {
	q := url.Values{"_txlock": {txlock}, "_pragma": {
		// First of all: switching to WAL needs a moment alone with the file.
		fmt.Sprintf("busy_timeout(%d)", busyMillis), "journal_mode(WAL)", pragma,
	}}
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: q.Encode()}).String()
}

// migrate brings the schema up to date. Processes that start together race for
// it; who loses finds it done.
func (s *Store) migrate(ctx context.Context) error {
	files, err := fs.Sub(schema, "schema")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := retryBusy(ctx, func() error { return s.write.QueryRowContext(ctx, queryProbe).Scan(new(int)) }); err != nil {
		return err
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.write, files,
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return err
	}
	for races := 0; ; {
		current, target, err := provider.GetVersions(ctx)
		if err == nil && current > target {
			return fmt.Errorf("the file has schema version %d and this program knows up to %d: it was written by a newer version; use that, or another file", current, target)
		}
		if err == nil && current == target {
			return nil
		}
		if err == nil {
			_, err = provider.Up(ctx)
		}
		if err == nil {
			continue
		}
		if !isBusy(err) {
			races++
		}
		// Who lost a race finds the schema made when it looks again. If it does
		// not, the tables that are in the way are not Kakutei's.
		if !isRace(err) || races > maxRaces || !wait(ctx) {
			return fmt.Errorf("bring the schema up to date: %w", err)
		}
	}
}

func (s *Store) prepare(ctx context.Context) error {
	for _, p := range []struct {
		db    *sql.DB
		stmt  **sql.Stmt
		query string
	}{
		{s.read, &s.record, queryRecord},
		{s.write, &s.writes.now, queryNow},
		{s.write, &s.writes.record, queryRecord},
		{s.write, &s.writes.insert, queryInsert},
		{s.write, &s.writes.take, queryTake},
		{s.write, &s.writes.hold, queryHold},
		{s.write, &s.writes.renew, queryRenew},
		{s.write, &s.writes.remove, queryRemove},
		{s.write, &s.writes.end, queryEnd},
	} {
		err := retryBusy(ctx, func() (err error) {
			*p.stmt, err = p.db.PrepareContext(ctx, p.query)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// DB returns the connection that writes, for making business tables and for
// writes outside of operations. It is a single one: a transaction on it keeps
// the store's own writes waiting.
func (s *Store) DB() *sql.DB { return s.write }

// Close closes the file. The engine must be closed before.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// Look implements [kakutei.Store].
func (s *Store) Look(ctx context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	out := make([]kakutei.Looked, len(ids))
	for i, id := range ids {
		rec, err := scanRecord(s.record.QueryRowContext(ctx, id.Scope, id.Key))
		switch {
		case err == nil:
			out[i].Record = rec
		case errors.Is(err, kakutei.ErrCorrupt):
			out[i].Err = err
		default:
			return nil, fmt.Errorf("sqlite: look: %w", err)
		}
	}
	return out, nil
}

// scanRecord reads a row of queryRecord; no row is the zero Record.
func scanRecord(row *sql.Row) (kakutei.Record, error) {
	var (
		status, owner string
		hash          []byte
		attempt       int64
		left, code    sql.NullInt64 // code is NULL in a live row
		result        kakutei.Result
	)
	err := row.Scan(&status, &hash, &attempt, &owner, &left, &code, &result.Header, &result.Body, &result.Omitted)
	if errors.Is(err, sql.ErrNoRows) {
		return kakutei.Record{}, nil
	}
	if err != nil {
		return kakutei.Record{}, err
	}
	rec := kakutei.Record{Attempt: attempt, Owner: owner}
	if rec.Status, err = kakutei.ParseStatus(status); err != nil {
		return kakutei.Record{}, err
	}
	if rec.Fingerprint, err = kakutei.ParseFingerprint(hash); err != nil {
		return kakutei.Record{}, err
	}
	if code.Valid != (rec.Status == kakutei.StatusSucceeded) {
		return kakutei.Record{}, fmt.Errorf("%w: status %v in the wrong table", kakutei.ErrCorrupt, rec.Status)
	}
	switch rec.Status {
	case kakutei.StatusProcessing:
		// What no claim can write (NULL, a lease of years) is held if it is there
		// all the same.
		const most = int64(kakutei.MaxLease / time.Millisecond)
		rec.Left = time.Duration(max(min(left.Int64, most), -most)) * time.Millisecond
		if !left.Valid {
			rec.Left = time.Second
		}
	case kakutei.StatusSucceeded:
		rec.Result = result
		rec.Result.Code = int(code.Int64)
	}
	return rec, nil
}
