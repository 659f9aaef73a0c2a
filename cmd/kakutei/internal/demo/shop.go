package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/sqlitestore"
)

// shop sells things. Its charges are made by a payment provider.
type shop struct {
	provider string // URL
	// relay passes the key of the operation on to the provider, which then
	// recognises a charge that it has made already.
	relay bool
}

// charge answers POST /charges. It knows nothing of retries.
func (s *shop) charge(w http.ResponseWriter, r *http.Request) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, s.provider+"/charges", r.Body)
	if err != nil {
		http.Error(w, "the request cannot be made", http.StatusInternalServerError)
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if attempt := kakutei.FromContext(r.Context()); s.relay && attempt != nil {
		req.Header.Set("Idempotency-Key", relayKey(attempt.ID()))
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil { // charged or not: nobody here knows, and a 5xx says so
		http.Error(w, "the provider did not answer", http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	receipt, err := io.ReadAll(resp.Body)
	if err != nil {
		http.Error(w, "the provider did not answer", http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(resp.StatusCode) // 201, with the charge
	w.Write(receipt)               //nolint:errcheck // the client is gone; it will ask again
}

// relayKey is the key that the provider sees: the same in every attempt of one
// operation, also after a restart, and another one for every tenant.
func relayKey(id kakutei.ID) string {
	return fmt.Sprintf("%x", kakutei.FingerprintOf([]byte(id.Scope), []byte(id.Key)).Sum)
}

// accountOf says whose request it is, by a credential that was given to one
// account. A key means nothing outside of its account.
func accountOf(r *http.Request) (string, error) {
	if r.Header.Get("Authorization") != demoCredential {
		return "", kakuteihttp.ErrUnauthenticated
	}
	return "acme", nil
}

// protect puts Kakutei in front of handler: a store, an engine, and a middleware
// for the route. stop ends what was started.
func protect(ctx context.Context, handler http.Handler, path string, lease time.Duration, recovery kakutei.Recovery) (_ http.Handler, stop func(context.Context) error, err error) {
	store, err := sqlitestore.Open(ctx, path, sqlitestore.Options{})
	if err != nil {
		return nil, nil, err
	}
	engine, err := kakutei.New(store, kakutei.Options{Lease: lease})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	stop = func(ctx context.Context) error { return errors.Join(engine.Close(ctx), store.Close()) }

	middleware, err := kakuteihttp.Middleware(engine, accountOf, kakuteihttp.Options{
		Recovery: recovery, // the one thing that only the author of the route can know
		Required: true,
	})
	if err != nil {
		return nil, nil, errors.Join(err, stop(ctx))
	}
	return middleware(handler), stop, nil
}
