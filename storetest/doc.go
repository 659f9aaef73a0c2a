// Package storetest is the conformance suite of the Store contract, C1 to C18
// in the comment of [kakutei.Store]. Every store of this module passes it, and
// it is what a store made elsewhere is to be measured by:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Factory{Open: open, Reopen: reopen})
//	}
//
// Each case is a subtest named by the number of the contract that it tests and
// by the numbers of the production cases of which it shows the store's part, as
// in C8/takeover_one_winner(case_16). [Cases] lists them all; the example of
// that function shows the list, and a test keeps it complete.
//
// What one handle on one database cannot show, the [Factory] is asked for:
// another handle, a damaged record, a transaction with business writes. A case
// whose means are missing is skipped, and says so.
//
// What the suite cannot see from outside is left to the tests of each store: a
// process killed in mid-commit, a connection cut, a standby promoted. Case 5
// (the database defaults to REPEATABLE READ or SERIALIZABLE), case 46 (its time
// zone is another) and case 50 (a pooler in front) are this suite run once more,
// with an Open that sets the scene.
package storetest
