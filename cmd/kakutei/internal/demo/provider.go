package demo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// usualDelay is how long the provider usually takes to answer.
const usualDelay = 300 * time.Millisecond

// charge is one entry of the provider's ledger: money that was taken.
type charge struct {
	ID     string `json:"id"`
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
}

// provider is the payment provider. It charges at once and answers later, as
// providers do, and recognises a charge by its Idempotency-Key, if it gets one.
type provider struct {
	mu     sync.Mutex
	ledger []charge
	byKey  map[string]keyedCharge
	delays map[string]time.Duration // of the next answer for an order
}

// keyedCharge is a charge that was made with a key, and what was asked for.
type keyedCharge struct {
	charge charge
	body   []byte
}

func newProvider() http.Handler {
	p := &provider{byKey: make(map[string]keyedCharge), delays: make(map[string]time.Duration)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.create)
	mux.HandleFunc("GET /orders/{order}/charges", p.list)
	mux.HandleFunc("PUT /orders/{order}/delay", p.setDelay)
	return mux
}

func (p *provider) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	var wanted charge
	if err == nil {
		err = json.Unmarshal(body, &wanted)
	}
	if err != nil || wanted.Order == "" || wanted.Amount <= 0 {
		http.Error(w, "a charge has an order and an amount", http.StatusBadRequest)
		return
	}
	made, delay, err := p.take(wanted, r.Header.Get("Idempotency-Key"), body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	select {
	case <-time.After(delay):
		writeJSON(w, http.StatusCreated, made)
	case <-r.Context().Done(): // nobody is left to answer; the money is taken all the same
	}
}

// take enters the charge into the ledger, unless the key says that it is there.
func (p *provider) take(wanted charge, key string, body []byte) (made charge, delay time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.byKey[key]; ok {
		if !bytes.Equal(known.body, body) {
			return charge{}, 0, fmt.Errorf("the key belongs to the charge %s", known.charge.ID)
		}
		return known.charge, 0, nil
	}
	made = charge{ID: fmt.Sprintf("ch_%d", len(p.ledger)+1), Order: wanted.Order, Amount: wanted.Amount}
	p.ledger = append(p.ledger, made)
	if key != "" {
		p.byKey[key] = keyedCharge{charge: made, body: body}
	}
	delay = usualDelay
	if d, ok := p.delays[wanted.Order]; ok {
		delete(p.delays, wanted.Order)
		delay = d
	}
	return made, delay, nil
}

// list answers with the charges of an order, for the demo to count.
func (p *provider) list(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	charges := []charge{}
	for _, c := range p.ledger {
		if c.Order == r.PathValue("order") {
			charges = append(charges, c)
		}
	}
	writeJSON(w, http.StatusOK, charges)
}

// setDelay lets the demo say how long the next charge of an order takes.
func (p *provider) setDelay(w http.ResponseWriter, r *http.Request) {
	delay, err := time.ParseDuration(r.URL.Query().Get("for"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delays[r.PathValue("order")] = delay
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client is gone
}
