// Package kakutei runs operations once: payments, transfers, orders, whatever
// must not happen twice because a client, a proxy or a queue sent it again.
//
// Idempotency is not a cache of responses. It is ownership of the execution: the
// database that holds the business data decides, in one place, who may run an
// operation now. An [Engine] claims the operation (scope and key) in a [Store],
// runs the function, and records how it ended. A duplicate that comes while it
// runs is told so, one that comes after gets the recorded answer, and one with
// another request under the same key is refused.
//
// An attempt holds a lease, which is renewed while it runs and expires when its
// process dies. What then becomes of the operation is for the author of the
// route to say, since only he knows whether the effect can be repeated: see
// [Recovery]. Whoever lost the lease can change nothing any more.
//
// [Do] is for queues, jobs and RPC. Package kakuteihttp has the middleware for
// net/http, and the program kakutei a reverse proxy for services in any language.
//
// # Errors
//
//	situation                                      error           HTTP
//	an operation, policy or option cannot work     ErrInvalid      400 or 500
//	another attempt is running                     ErrInFlight     409, Retry-After
//	the key belongs to another request             ErrMismatch     422
//	an earlier attempt ended without an answer     ErrUncertain    409
//	settled, but the answer was not kept           ErrNotRetained  409
//	this attempt ran and was overtaken             ErrLeaseLost    409, Retry-After
//	the store does not answer                      ErrUnavailable  503, Retry-After
//	the record cannot be read                      ErrCorrupt      500
//	a nested operation would wait for itself       ErrNested       500
//	the engine is shutting down                    ErrClosed       503, Retry-After
//
// Recorded answers are given with the status, header and body of the first one.
package kakutei
