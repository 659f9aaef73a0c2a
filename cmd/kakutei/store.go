package main

import (
	"context"
	"strings"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/sqlitestore"
)

// closingStore is a store that the program opened and must close.
type closingStore interface {
	kakutei.Store
	Close() error
}

// storeHelp describes the forms of --store.
const storeHelp = "where the records are kept: sqlite:PATH"

// openStore opens what --store names.
func openStore(ctx context.Context, url string) (closingStore, error) {
	kind, rest, _ := strings.Cut(url, ":")
	switch kind {
	case "sqlite":
		if rest == "" {
			return nil, usagef("--store %q has no path; write sqlite:kakutei.db", url)
		}
		return sqlitestore.Open(ctx, rest, sqlitestore.Options{})
	}
	return nil, usagef("--store %q is unknown; write sqlite:PATH", url)
}
