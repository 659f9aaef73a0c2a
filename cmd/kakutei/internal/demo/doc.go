// Package demo is the command "kakutei demo": the same trouble for a shop behind
// the usual idempotency layer, and for one behind Kakutei, with the charges counted
// where it matters, in the ledger of the payment provider.
//
// Three processes take part, all of this binary and all on the loopback: the
// demo itself, which plays the clients and breaks things; a payment provider,
// which keeps its ledger whatever happens to others; and the shop's server,
// which is killed.
//
//	shop.go       the shop and its protection by Kakutei: how the library is used
//	naive.go      the usual layer, a cache of responses
//	layer.go      which of the two stands before the shop
//	provider.go   the payment provider
//	scenarios.go  what goes wrong, step by step
//
// A scenario whose fault did not happen proves nothing, and is reported as such.
package demo
