// Package pgstore keeps Kakutei's records in PostgreSQL, 13 or newer: the store
// for production. It has two doors to the same SQL: [New] takes a pgx pool, and
// [NewDB] a database/sql pool with any driver.
//
// The store never makes its tables by itself: see [Migrate]. Reads go through
// the pool that it is given, which must lead to the primary: a standby may be
// behind, and what it does not know yet would run again.
package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kakutei-go/kakutei"
)

// Options configures a [Store]. The zero value is the default.
type Options struct {
	// Schema is the schema that the tables are in. Default "public".
	Schema string
	// Prefix is put before the names of all tables: "billing_" makes
	// billing_idempotency_keys. Default none.
	Prefix string
}

// Store implements [kakutei.Store], [kakutei.Transactor] and [kakutei.Retainer].
type Store struct {
	door  door
	names names
	sql   statements
}

// New returns a store on a pgx pool. It fails if the tables are not there or
// have another version than this program expects.
//
// Behind PgBouncer in transaction mode, give the pool
// pgx.QueryExecModeCacheDescribe or QueryExecModeExec: pgx's default keeps
// prepared statements on connections that PgBouncer hands to others.
func New(ctx context.Context, pool *pgxpool.Pool, opts Options) (*Store, error) {
	if pool == nil {
		return nil, errors.New("pgstore: the pool is nil")
	}
	return open(ctx, pgxDoor{pool}, opts)
}

// NewDB returns a store on a database/sql pool, with pgx's stdlib, lib/pq or any
// other driver. Through pgx a claim costs one round trip, as with [New]; other
// drivers cannot send several statements at once and need five.
func NewDB(ctx context.Context, db *sql.DB, opts Options) (*Store, error) {
	if db == nil {
		return nil, errors.New("pgstore: the pool is nil")
	}
	return open(ctx, sqlDoor{db}, opts)
}

func open(ctx context.Context, d door, opts Options) (*Store, error) {
	n, err := opts.names()
	if err != nil {
		return nil, err
	}
	s := &Store{door: d, names: n, sql: newStatements(n)}
	if err := s.checkVersion(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// names are the quoted names of the tables.
type names struct {
	schema, prefix string
}

var identifier = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

const maxPrefixBytes = 20 // so that the names of partitions stay within 63 bytes

func (o Options) names() (names, error) {
	n := names{schema: o.Schema, prefix: o.Prefix}
	if n.schema == "" {
		n.schema = "public"
	}
	if !identifier.MatchString(n.schema) || len(n.schema) > 63 {
		return n, fmt.Errorf("%w: pgstore: schema %q; use letters, digits and underscores", kakutei.ErrInvalid, n.schema)
	}
	if n.prefix != "" && !identifier.MatchString(n.prefix) || len(n.prefix) > maxPrefixBytes {
		return n, fmt.Errorf("%w: pgstore: prefix %q; use at most %d letters, digits and underscores", kakutei.ErrInvalid, n.prefix, maxPrefixBytes)
	}
	return n, nil
}

// bare returns the name of a table without its schema.
func (n names) bare(table string) string { return n.prefix + "idempotency_" + table }

// table returns the quoted name of a table.
func (n names) table(table string) string {
	return pgx.Identifier{n.schema, n.bare(table)}.Sanitize()
}

// fill puts the names of the tables into a statement.
func (n names) fill(query string) string {
	return strings.NewReplacer(
		"{{keys}}", n.table("keys"), "{{results}}", n.table("results"), "{{maintenance}}", n.table("maintenance"),
		"{{keys_failed}}", pgx.Identifier{n.bare("keys_failed")}.Sanitize(),
		"{{results_settled}}", pgx.Identifier{n.bare("results_settled")}.Sanitize(),
	).Replace(query)
}

// statements are the queries with the names in them.
type statements struct {
	look, claim, secondLook, take, hold, renew, renewWait, settle, end, fence string
}

func newStatements(n names) statements {
	return statements{
		look: n.fill(queryLook), claim: n.fill(queryClaim), secondLook: n.fill(querySecondLook), take: n.fill(queryTake),
		hold: n.fill(queryHold), renew: n.fill(queryRenew), renewWait: n.fill(queryRenewWait), settle: n.fill(querySettle), end: n.fill(queryEnd),
		fence: n.fill(queryFence),
	}
}

const (
	// maxTries bounds how often a claim starts again when others change its
	// record under its eyes, and how often a refused transaction is repeated.
	maxTries = 8
	// blockedLeft is what is said to be left of the lease of an operation that
	// somebody's open transaction holds.
	blockedLeft = time.Second
)

// SQLSTATE codes.
const (
	codeSerialization  = "40001"
	codeDeadlock       = "40P01"
	codeLockTimeout    = "55P03"
	codeNoPartition    = "23514" // check_violation: no partition for the row
	codeUndefinedTable = "42P01"
	codeNoSchema       = "3F000"
	codeDuplicateTable = "42P07"
	codeDuplicateObj   = "42710"

	codeFailedTransaction = "25P02"
)

// sqlState returns the SQLSTATE of err, from whatever driver.
func sqlState(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	var other interface{ SQLState() string } // lib/pq
	if errors.As(err, &other) {
		return other.SQLState()
	}
	return ""
}

// isConflict reports whether the database refused a transaction for the sake of
// another one.
func isConflict(err error) bool {
	state := sqlState(err)
	return state == codeSerialization || state == codeDeadlock
}

// Look implements [kakutei.Store].
func (s *Store) Look(ctx context.Context, ids []kakutei.ID) ([]kakutei.Looked, error) {
	out := make([]kakutei.Looked, len(ids))
	scopes, keys, asked := make([]string, 0, len(ids)), make([]string, 0, len(ids)), make([]int, 0, len(ids))
	for i, id := range ids {
		if usable(id) {
			scopes, keys, asked = append(scopes, id.Scope), append(keys, id.Key), append(asked, i)
		}
	}
	err := s.run(ctx, statement{query: s.sql.look, args: []any{scopes, keys}, scan: func(rows rows) error {
		n, rec, err := scanRecord(rows)
		if err != nil && !errors.Is(err, kakutei.ErrCorrupt) {
			return err
		}
		i := asked[n]
		// A result goes before a live row that a crash between two commits left.
		if out[i].Record.Status != kakutei.StatusSucceeded {
			out[i] = kakutei.Looked{Record: rec, Err: err}
		}
		return nil
	}})
	if err != nil {
		return nil, fmt.Errorf("pgstore: look: %w", err)
	}
	return out, nil
}

// usable reports whether there can be a record of id at all: the database would
// refuse the whole statement for the sake of one that it cannot even compare.
func usable(id kakutei.ID) bool {
	return kakutei.ValidateScope(id.Scope) == nil && kakutei.ValidateKey(id.Key) == nil
}

// scanRecord reads a row of queryLook or queryClaim. A row without a status is
// one that was inserted; it comes back as StatusNone with its owner.
func scanRecord(rows rows) (i int, rec kakutei.Record, err error) {
	var (
		ordinal, leftMillis int64
		stored              sql.NullString
		hash                []byte
		result              kakutei.Result
	)
	err = rows.Scan(&ordinal, &stored, &hash, &rec.Attempt, &rec.Owner, &leftMillis, &result.Code, &result.Header, &result.Body, &result.Omitted)
	i = int(ordinal) - 1
	if err != nil || !stored.Valid {
		return i, rec, err
	}
	status, isResult := strings.CutPrefix(stored.String, "r")
	if !isResult {
		status = strings.TrimPrefix(stored.String, "k")
	}
	if rec.Status, err = kakutei.ParseStatus(status); err == nil && isResult != (rec.Status == kakutei.StatusSucceeded) {
		err = fmt.Errorf("%w: status %q in the wrong table", kakutei.ErrCorrupt, status)
	}
	if err != nil {
		return i, kakutei.Record{}, err
	}
	if rec.Fingerprint, err = kakutei.ParseFingerprint(hash); err != nil {
		return i, kakutei.Record{}, err
	}
	switch rec.Status {
	case kakutei.StatusProcessing:
		rec.Left = time.Duration(leftMillis) * time.Millisecond
	case kakutei.StatusSucceeded:
		rec.Result = result
	}
	return i, rec, nil
}
