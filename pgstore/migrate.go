package pgstore

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/kakutei-go/kakutei"
)

//go:embed schema/*.sql
var schema embed.FS

// migration is one file of schema/, with the names of the tables in it.
type migration struct {
	version int64
	name    string
	sql     string
}

func (n names) migrations() ([]migration, error) {
	files, err := fs.Glob(schema, "schema/*.sql")
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var out []migration
	for _, file := range files {
		content, err := schema.ReadFile(file)
		if err != nil {
			return nil, err
		}
		number, _, _ := strings.Cut(path.Base(file), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("schema file %s: %w", file, err)
		}
		out = append(out, migration{version: version, name: path.Base(file), sql: n.fill(string(content))})
	}
	return out, nil
}

// SchemaVersion is where a database stands, and where this program wants it.
type SchemaVersion struct {
	// Current is 0 if the tables are not there.
	Current, Wanted int64
}

// Migrate makes the tables, or brings them up to date. Processes that start
// together may all call it: one does the work, the others wait for it. It needs
// the right to create tables in the schema; a store in use does not.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	return MigrateDB(ctx, db, opts)
}

// MigrateDB is [Migrate] through database/sql.
func MigrateDB(ctx context.Context, db *sql.DB, opts Options) error {
	n, err := opts.names()
	if err != nil {
		return err
	}
	provider, err := n.provider(db)
	if err != nil {
		return fmt.Errorf("pgstore: migrate: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("pgstore: migrate: %w", err)
	}
	s := &Store{door: sqlDoor{db}, names: n, sql: newStatements(n)}
	if err := s.makePartitions(ctx); err != nil {
		return fmt.Errorf("pgstore: migrate: %w", err)
	}
	return nil
}

// MigrationSQL returns the statements of all migrations, for those who run them
// with a tool of their own, and who then also record the version with the last
// statement.
func MigrationSQL(opts Options) (string, error) {
	n, err := opts.names()
	if err != nil {
		return "", err
	}
	migrations, err := n.migrations()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(fmt.Sprintf(queryVersionTable, n.table("schema")) + ";\n\n")
	for _, m := range migrations {
		fmt.Fprintf(&b, "-- %s\n\n%s\n%s;\n\n", m.name, m.sql, fmt.Sprintf(queryRecordVersion, n.table("schema"), m.version))
	}
	return b.String(), nil
}

// provider returns goose's runner of the migrations. Its lock is a row, not an
// advisory lock of the session: those do not work through PgBouncer.
func (n names) provider(db *sql.DB) (*goose.Provider, error) {
	migrations, err := n.migrations()
	if err != nil {
		return nil, err
	}
	var steps []*goose.Migration
	for _, m := range migrations {
		up := func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, m.sql)
			return err
		}
		steps = append(steps, goose.NewGoMigration(m.version, &goose.GoFunc{RunTx: up}, nil))
	}
	locker, err := lock.NewPostgresTableLocker(lock.WithTableName(n.schema + "." + n.bare("schema_lock")))
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, nil,
		goose.WithGoMigrations(steps...), goose.WithDisableGlobalRegistry(true),
		goose.WithTableName(n.schema+"."+n.bare("schema")), goose.WithLocker(locker), goose.WithLogger(goose.NopLogger()))
}

// Version returns where the schema of a database stands.
func Version(ctx context.Context, pool *pgxpool.Pool, opts Options) (SchemaVersion, error) {
	n, err := opts.names()
	if err != nil {
		return SchemaVersion{}, err
	}
	return (&Store{door: pgxDoor{pool}, names: n}).version(ctx)
}

func (s *Store) version(ctx context.Context) (v SchemaVersion, err error) {
	migrations, err := s.names.migrations()
	if err != nil {
		return v, err
	}
	v.Wanted = migrations[len(migrations)-1].version
	err = s.door.query(ctx, statement{query: fmt.Sprintf(queryVersion, s.names.table("schema")), scan: func(r rows) error { return r.Scan(&v.Current) }})
	switch sqlState(err) {
	case codeUndefinedTable, codeNoSchema:
		return v, nil
	}
	return v, err
}

// checkVersion refuses a database that this program cannot work with.
func (s *Store) checkVersion(ctx context.Context) error {
	v, err := s.version(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("pgstore: read the version of the schema: %w", err)
	case v.Current < v.Wanted:
		return fmt.Errorf("%w: pgstore: the tables in schema %q have version %d and this program needs %d; run \"kakutei migrate up\" or pgstore.Migrate", kakutei.ErrInvalid, s.names.schema, v.Current, v.Wanted)
	case v.Current > v.Wanted:
		return fmt.Errorf("%w: pgstore: the tables in schema %q have version %d and this program knows up to %d: a newer version is in use; use that", kakutei.ErrInvalid, s.names.schema, v.Current, v.Wanted)
	}
	return nil
}
