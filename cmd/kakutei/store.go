package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/pgstore"
	"github.com/kakutei-go/kakutei/sqlitestore"
)

// openedStore is a store that the program opened and must close.
type openedStore interface {
	kakutei.Transactor
	kakutei.Retainer
	Close() error
}

// storeHelp describes the forms of --store.
const storeHelp = "where the records are kept: sqlite:PATH, or postgres://USER@HOST/DATABASE"

// storeURL is a parsed --store.
type storeURL struct {
	kind string // "sqlite" or "postgres"
	rest string // the path, or the URL for the driver
	pg   pgstore.Options
}

// parseStore reads --store. For PostgreSQL, kakutei_schema and kakutei_prefix in
// the query say where the tables are; everything else is for the driver, as
// default_query_exec_mode=cache_describe behind PgBouncer.
func parseStore(s string) (storeURL, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "sqlite":
		if rest == "" {
			return storeURL{}, usagef("--store %q has no path; write sqlite:kakutei.db", s)
		}
		if strings.HasPrefix(rest, ":memory:") {
			return storeURL{}, usagef("--store %q would be lost with the process; write sqlite:kakutei.db", s)
		}
		return storeURL{kind: "sqlite", rest: rest}, nil
	case "postgres", "postgresql":
		u, err := url.Parse(s)
		if err != nil {
			return storeURL{}, usagef("--store is not a URL such as postgres://user@localhost/database") // the text may hold a password
		}
		q := u.Query()
		out := storeURL{kind: "postgres", pg: pgstore.Options{Schema: q.Get("kakutei_schema"), Prefix: q.Get("kakutei_prefix")}}
		q.Del("kakutei_schema")
		q.Del("kakutei_prefix")
		u.RawQuery = q.Encode()
		out.rest = u.String()
		return out, nil
	}
	return storeURL{}, usagef("--store is unknown; write sqlite:PATH or postgres://USER@HOST/DATABASE")
}

// pool returns a pool of PostgreSQL connections.
func (u storeURL) pool(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(u.rest)
	if err != nil {
		return nil, usagef("--store: %v", err)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}

// openStore opens what --store names.
func openStore(ctx context.Context, s string) (openedStore, error) {
	u, err := parseStore(s)
	if err != nil {
		return nil, err
	}
	if u.kind == "sqlite" {
		return sqlitestore.Open(ctx, u.rest, sqlitestore.Options{})
	}
	pool, err := u.pool(ctx)
	if err != nil {
		return nil, err
	}
	store, err := pgstore.New(ctx, pool, u.pg)
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("open the store: %w", err)
	}
	return pooledStore{store, pool}, nil
}

// pooledStore closes its pool with it.
type pooledStore struct {
	*pgstore.Store
	pool *pgxpool.Pool
}

// Close closes the pool.
func (s pooledStore) Close() error {
	s.pool.Close()
	return nil
}
