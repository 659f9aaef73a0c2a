package storetest

import (
	"errors"

	"github.com/kakutei-go/kakutei"
)

// transactionMutants are faults of transactions.
func transactionMutants() []mutant {
	// settle is the second half of a commit, without its checks.
	settle := func(tx *trialTx, x kakutei.Settlement) error {
		err := tx.s.settle(x)
		if err == nil {
			tx.s.locked(func(s *trial) {
				for _, name := range tx.rows {
					s.rows[name] = true
				}
			})
		}
		return err
	}
	return []mutant{
		{"the row is there before the commit", fault{write: func(tx *trialTx, name string) {
			tx.s.locked(func(s *trial) { s.rows[name] = true })
		}}, []string{"C18/commit_shows_both", "C18/rollback_undoes_all(case_4)", "C18/lost_before_writing(case_15)", "C18/visible_together"}},
		{"the row is committed though the lease is lost", fault{commit: func(tx *trialTx, x kakutei.Settlement) error {
			err := tx.s.settle(x)
			tx.s.locked(func(s *trial) {
				for _, name := range tx.rows {
					s.rows[name] = true
				}
			})
			return err
		}}, []string{"C18/lost_before_writing(case_15)", "C18/lost_after_writing(case_15)", "C18/held_or_ended_is_not_committed(case_17)"}},
		{"a settlement alike commits the row of a second run", fault{commit: func(tx *trialTx, x kakutei.Settlement) error {
			if tx.over {
				return errors.New("over")
			}
			return settle(tx, x)
		}}, []string{"C18/settled_is_not_written_again(case_25)"}},
		{"what was rolled back can be committed", fault{commit: settle}, []string{"C18/rolled_back_is_not_committed"}},
		{"the result is there before the row", fault{commit: func(tx *trialTx, x kakutei.Settlement) error {
			err := tx.s.settle(x)
			pause()
			return errors.Join(err, settle(tx, x))
		}}, []string{"C18/visible_together"}},
		{"the row is there before the result", fault{commit: func(tx *trialTx, x kakutei.Settlement) error {
			tx.s.locked(func(s *trial) {
				for _, name := range tx.rows {
					s.rows[name] = true
				}
			})
			pause()
			return tx.s.settle(x)
		}}, []string{"C18/visible_together"}},
		{"a refused transaction is committed", fault{commit: func(tx *trialTx, x kakutei.Settlement) error {
			tx.refused = false
			return tx.commit(x)
		}}, []string{"C18/refused_by_the_database(case_26)"}},
		{"a rollback fails the attempt", fault{rollback: func(tx *trialTx) {
			if tx.over {
				return
			}
			_ = tx.s.settle(kakutei.Settlement{Ref: tx.ref, Status: kakutei.StatusFailed})
		}}, []string{"C18/rollback_undoes_all(case_4)", "C18/nothing_written"}},
		{"nothing is settled where nothing was written", fault{commit: func(tx *trialTx, x kakutei.Settlement) error {
			if len(tx.rows) == 0 {
				return nil
			}
			return tx.commit(x)
		}}, []string{"C18/nothing_written"}},
		{"a commit takes the rows of all", fault{
			write: func(tx *trialTx, name string) {
				tx.s.locked(func(s *trial) { s.unsaved = append(s.unsaved, name) })
			},
			commit: func(tx *trialTx, x kakutei.Settlement) error {
				tx.s.locked(func(s *trial) { tx.rows, s.unsaved = s.unsaved, nil })
				return tx.commit(x)
			},
		}, []string{"C18/many_at_once"}},
		{"an open transaction makes claims fail", fault{
			write: func(tx *trialTx, name string) {
				tx.rows = append(tx.rows, name)
				tx.s.locked(func(s *trial) { s.unsaved = append(s.unsaved, name) })
			},
			claim: func(s *trial, c kakutei.Claim) (d kakutei.Decision) {
				var open bool
				s.locked(func(s *trial) { open = len(s.unsaved) > 0 })
				if open {
					return kakutei.Decision{Err: kakutei.ErrUnavailable}
				}
				return s.claim(c)
			},
		}, []string{"C18/blocks_nobody(case_49)"}},
		{"a cancelled commit keeps the row alone", fault{ended: func(_ *trial, call any) {
			if tx, ok := call.(*trialTx); ok {
				tx.s.locked(func(s *trial) {
					for _, name := range tx.rows {
						s.rows[name] = true
					}
				})
			}
		}}, []string{"C18/cancelled_commit(case_25)"}},
		{"a commit refuses what has expired", fault{commit: func(tx *trialTx, x kakutei.Settlement) error {
			if expired(tx.s.record(x.ID)) {
				return kakutei.ErrLeaseLost
			}
			return tx.commit(x)
		}}, []string{"C18/expired_is_still_held"}},
	}
}
