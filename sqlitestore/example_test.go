package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/sqlitestore"
)

// A transfer moves money within the file that Kakutei's records are in. The
// business writes and the recorded answer are committed together: however often
// the transfer is sent, and whatever dies in between, it happens once.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	store, err := sqlitestore.Open(ctx, filepath.Join(dir, "bank.db"), sqlitestore.Options{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	engine, err := kakutei.New(store, kakutei.Options{})
	if err != nil {
		panic(err)
	}
	defer engine.Close(ctx) //nolint:errcheck // nothing runs any more
	if _, err := store.DB().ExecContext(ctx, `
		CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL CHECK (balance >= 0));
		INSERT INTO accounts VALUES ('alice', 100), ('bob', 0)`); err != nil {
		panic(err)
	}

	type receipt struct{ Balance int }
	transfer := func(key string, amount int) {
		op := kakutei.Operation{
			Scope: "alice", Key: key, // the scope is who calls, the key is from the client
			Fingerprint: kakutei.FingerprintOf(fmt.Append(nil, "transfer to bob ", amount)),
		}
		got, err := kakutei.Do(ctx, engine, op, kakutei.Policy{Recovery: kakutei.Transactional}, func(ctx context.Context) (receipt, error) {
			var r receipt
			tx, err := sqlitestore.Tx(ctx)
			if err != nil {
				return r, err
			}
			if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + ? WHERE name = 'bob'", amount); err != nil {
				return r, err
			}
			// An error undoes what was written before it.
			err = tx.QueryRowContext(ctx, "UPDATE accounts SET balance = balance - ? WHERE name = 'alice' RETURNING balance", amount).Scan(&r.Balance)
			return r, err
		})
		switch {
		case errors.Is(err, kakutei.ErrMismatch):
			fmt.Println(key, "refused: another transfer under the same key")
		case err != nil:
			fmt.Println(key, "failed, nothing was moved")
		default:
			fmt.Println(key, "done,", got.Balance, "are left")
		}
	}
	transfer("key-1", 60)
	transfer("key-1", 60) // sent again
	transfer("key-1", 40)
	transfer("key-2", 60)
	transfer("key-3", 40)
	var bob int
	if err := store.DB().QueryRowContext(ctx, "SELECT balance FROM accounts WHERE name = 'bob'").Scan(&bob); err != nil {
		panic(err)
	}
	fmt.Println("bob has", bob)
	// Output:
	// key-1 done, 40 are left
	// key-1 done, 40 are left
	// key-1 refused: another transfer under the same key
	// key-2 failed, nothing was moved
	// key-3 done, 0 are left
	// bob has 100
}
