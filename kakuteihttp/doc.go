// Package kakuteihttp gives net/http handlers idempotency keys.
//
//	protect, err := kakuteihttp.Middleware(engine, accountOf, kakuteihttp.Options{
//		Recovery: kakutei.Rerun, Required: true,
//	})
//	mux.Handle("POST /charges", protect(http.HandlerFunc(charge)))
//
// docs/protocol.md describes what clients see: the header, the answers, and the
// problem documents.
package kakuteihttp
