package memstore

import (
	"context"
	"errors"
	"sync"

	"github.com/kakutei-go/kakutei"
)

// Tx stands for a business transaction: what it sets becomes visible with the
// result of its attempt, or never.
type Tx struct {
	store *Store
	ref   kakutei.Ref

	mu       sync.Mutex
	writes   map[string]string
	conflict bool
	over     bool
}

type txKey struct{}

// TxFrom returns the transaction of the attempt that ctx belongs to, or nil.
func TxFrom(ctx context.Context) *Tx {
	tx, _ := ctx.Value(txKey{}).(*Tx)
	return tx
}

// Begin implements [kakutei.Transactor].
func (s *Store) Begin(_ context.Context, ref kakutei.Ref) (kakutei.Transaction, error) {
	return &Tx{store: s, ref: ref, writes: make(map[string]string)}, nil
}

// Set writes a value.
func (tx *Tx) Set(key, value string) {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.writes[key] = value
}

// Refuse makes the transaction fail as databases fail one for the sake of
// another: its commit answers [kakutei.ErrConflict].
func (tx *Tx) Refuse() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.conflict = true
}

// Context implements [kakutei.Transaction].
func (tx *Tx) Context(ctx context.Context) context.Context {
	return context.WithValue(ctx, txKey{}, tx)
}

// Commit implements [kakutei.Transaction].
func (tx *Tx) Commit(ctx context.Context, x kakutei.Settlement) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.over {
		return errors.New("memstore: the transaction has ended")
	}
	tx.over = true
	if tx.conflict {
		return kakutei.ErrConflict
	}
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	tx.store.init()
	// To settle again alike is a success, but not one that the writes of a
	// second run may be committed with.
	if tx.store.holder(x.Ref) == nil {
		return kakutei.ErrLeaseLost
	}
	if err := tx.store.settle(x); err != nil {
		return err
	}
	for k, v := range tx.writes {
		tx.store.committed[k] = v
	}
	return nil
}

// Rollback implements [kakutei.Transaction].
func (tx *Tx) Rollback() error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.over = true
	return nil
}

// Exclusive implements [kakutei.Transaction].
func (tx *Tx) Exclusive() bool { return false }

// Conflicted implements [kakutei.Transaction].
func (tx *Tx) Conflicted() bool {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	return tx.conflict
}

// Get returns what transactions have committed under key.
func (s *Store) Get(key string) (value string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok = s.committed[key]
	return value, ok
}
