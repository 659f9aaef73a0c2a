package sqlitestore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/storetest"
)

// The contract, C1 to C18, on two stores that share a file.
func TestStore(t *testing.T) {
	t.Parallel()
	f := factory()
	if raceDetector {
		f.Soak = 50 * time.Millisecond
	}
	storetest.Run(t, f)
}

func factory() storetest.Factory {
	return storetest.Factory{
		Open: func(t *testing.T) kakutei.Store { return open(t, newFile(t)) },
		Reopen: func(t *testing.T, s kakutei.Store) kakutei.Store {
			return open(t, s.(*Store).path)
		},
		Corrupt: func(t *testing.T, s kakutei.Store, id kakutei.ID, status string, fingerprint []byte) {
			forced(t, s.(*Store), `INSERT INTO idempotency_keys (scope, idempotency_key, request_method, request_path, request_hash, status, attempt,
				owner, node, actor, trace_id, locked_until, created_at, claimed_at, updated_at)
			VALUES (?, ?, 'POST', '/', ?, ?, 1, 'nobody', '', '', '', 2, 1, 1, 1)`, id.Scope, id.Key, fingerprint, status)
		},
		Dump: func(t *testing.T, s kakutei.Store, id kakutei.ID) string { return dumpID(t, s.(*Store), id) },
		ClaimUncommitted: func(t *testing.T, s kakutei.Store, c kakutei.Claim) func() {
			tx, err := raw(t, s.(*Store).path).Begin()
			if err != nil {
				t.Fatal(err)
			}
			exec1(t, tx, queryInsert, c.Scope, c.Key, c.Method, c.Path, c.Fingerprint.Bytes(), c.Owner, c.Node, c.Actor, c.TraceID, 1, 60000)
			return func() { tx.Rollback() }
		},
		Backdate: func(t *testing.T, s kakutei.Store, id kakutei.ID, age time.Duration) {
			backdate(t, s.(*Store), id, age)
		},
		Business: func(t *testing.T, s kakutei.Store) storetest.Business {
			db := s.(*Store)
			exec1(t, db.DB(), "CREATE TABLE business (name TEXT PRIMARY KEY) WITHOUT ROWID")
			return storetest.Business{
				Write: func(ctx context.Context, name string) error {
					tx, err := Tx(ctx)
					if err != nil {
						return err
					}
					_, err = tx.ExecContext(ctx, "INSERT INTO business VALUES (?)", name)
					return err
				},
				Exists: func(ctx context.Context, name string) (there bool, err error) {
					err = db.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT * FROM business WHERE name = ?)", name).Scan(&there)
					return there, err
				},
				// There is no Refuse: who has the writer is never refused for the
				// sake of another.
			}
		},
	}
}

// backdate makes what is known about an operation older. A result moves to the
// day that it is then of.
func backdate(t *testing.T, s *Store, id kakutei.ID, age time.Duration) {
	t.Helper()
	ms := age.Milliseconds()
	unchecked := raw(t, s.path)
	exec1(t, unchecked, "PRAGMA ignore_check_constraints = ON")
	exec1(t, unchecked, `UPDATE idempotency_keys SET created_at = created_at - ?3, claimed_at = claimed_at - ?3, updated_at = updated_at - ?3
		WHERE scope = ?1 AND idempotency_key = ?2`, id.Scope, id.Key, ms)
	err := s.do(within(t), func(ctx context.Context, tx *group) error {
		days, err := tx.days(ctx)
		if err != nil {
			return err
		}
		old := dayTable(tx.now - ms)
		if err := tx.makeDay(ctx, old); err != nil {
			return err
		}
		for _, day := range days {
			if day == old {
				continue
			}
			for _, q := range []string{
				"INSERT INTO " + old + " SELECT * FROM " + day + " WHERE scope = ?1 AND idempotency_key = ?2",
				"DELETE FROM " + day + " WHERE scope = ?1 AND idempotency_key = ?2",
			} {
				if _, err := tx.ExecContext(ctx, q, id.Scope, id.Key); err != nil {
					return err
				}
			}
		}
		_, err = tx.ExecContext(ctx, fmt.Sprintf("UPDATE %s SET created_at = created_at - ?3, claimed_at = claimed_at - ?3, completed_at = completed_at - ?3 WHERE scope = ?1 AND idempotency_key = ?2", old), id.Scope, id.Key, ms)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
