package proxy_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/memstore"
	"github.com/kakutei-go/kakutei/proxy"
)

// An API that knows nothing of keys, and the proxy in front of it.
func Example() {
	charges := 0
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d", charges)
	}))
	defer api.Close()
	upstream, err := url.Parse(api.URL)
	if err != nil {
		fmt.Println(err)
		return
	}

	engine, err := kakutei.New(memstore.New(), kakutei.Options{}) // in production: sqlitestore or pgstore
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(context.Background())
	scope, err := proxy.ParseScope("header:X-Account-Id", proxy.ScopeOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler, err := proxy.New(engine, proxy.Config{
		Upstream: upstream,
		Default:  proxy.Route{Scope: scope, Recovery: kakutei.Rerun},
		Routes:   []proxy.Route{{Method: "POST", Path: "/refunds", Scope: scope, Recovery: kakutei.Hold, Required: true}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	front := httptest.NewServer(handler)
	defer front.Close()

	for range 2 {
		r, err := http.NewRequest(http.MethodPost, front.URL+"/charges", strings.NewReader("{}"))
		if err != nil {
			fmt.Println(err)
			return
		}
		r.Header.Set("X-Account-Id", "acme")
		r.Header.Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
		a, err := do(http.DefaultClient, r)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d %s, replayed: %q\n", a.status, a.body, a.header.Get("Idempotent-Replayed"))
	}
	// Output:
	// 201 charge 1, replayed: ""
	// 201 charge 1, replayed: "true"
}
