package kakuteihttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/memstore"
)

// accountOf tells whose request it is, as a service does from its session or
// from a verified credential.
func accountOf(r *http.Request) (string, error) {
	user, password, _ := r.BasicAuth()
	if user != "acme" || password != "secret" {
		return "", kakuteihttp.ErrUnauthenticated
	}
	return user, nil
}

var charged int

// charge is an ordinary handler: it knows nothing of keys.
func charge(w http.ResponseWriter, r *http.Request) {
	amount, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, "send it again", http.StatusBadRequest)
		return
	}
	charged++
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, "charge %d of %s", charged, amount)
}

func ExampleMiddleware() {
	engine, err := kakutei.New(memstore.New(), kakutei.Options{}) // in earnest: a store on your database
	if err != nil {
		log.Fatal(err)
	}
	protect, err := kakuteihttp.Middleware(engine, accountOf, kakuteihttp.Options{Recovery: kakutei.Hold, Required: true})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /charges", protect(http.HandlerFunc(charge)))
	server := httptest.NewServer(mux) // in earnest: an http.Server

	send(server.URL+"/charges", `"8e03978e-40d5"`, "100 EUR")
	send(server.URL+"/charges", `"8e03978e-40d5"`, "100 EUR") // as after a timeout
	send(server.URL+"/charges", `"8e03978e-40d5"`, "999 EUR") // a mistake of the client

	server.Close()
	if err := engine.Close(context.Background()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 201 charge 1 of 100 EUR
	// 201 charge 1 of 100 EUR (replayed)
	// 422 application/problem+json
}

func send(url, key, body string) {
	req, err1 := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	req.SetBasicAuth("acme", "secret")
	req.Header.Set(kakuteihttp.Header, key)
	resp, err2 := http.DefaultClient.Do(req)
	if err := errors.Join(err1, err2); err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		log.Print(err)
	case resp.StatusCode >= 400:
		fmt.Println(resp.StatusCode, resp.Header.Get("Content-Type"))
	case resp.Header.Get("Idempotent-Replayed") == "true":
		fmt.Println(resp.StatusCode, string(answer), "(replayed)")
	default:
		fmt.Println(resp.StatusCode, string(answer))
	}
}
