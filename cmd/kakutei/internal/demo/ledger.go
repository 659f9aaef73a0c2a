package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// confirmTime is how long the provider may take to confirm a charge.
const confirmTime = 10 * time.Second

// ledger asks the provider's process.
type ledger struct {
	url  string
	http http.Client
	// patience is how long a confirmation may take.
	patience time.Duration
}

func newLedger(url string) *ledger {
	return &ledger{url: url, http: http.Client{Timeout: confirmTime}, patience: confirmTime}
}

// charges returns what was charged for an order.
func (l *ledger) charges(ctx context.Context, orderID string) (charges []charge, err error) {
	content, err := l.ask(ctx, http.MethodGet, "/orders/"+orderID+"/charges")
	if err != nil {
		return nil, err
	}
	return charges, json.Unmarshal(content, &charges)
}

// delay lets the next charge for an order be answered so much later.
func (l *ledger) delay(ctx context.Context, orderID string, d time.Duration) error {
	_, err := l.ask(ctx, http.MethodPut, "/orders/"+orderID+"/delay?for="+d.String())
	return err
}

// confirm waits until the provider has charged for an order, and returns the charge.
func (l *ledger) confirm(ctx context.Context, orderID string) (made charge, err error) {
	limited, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()
	err = until(limited, func() (bool, error) {
		charges, err := l.charges(limited, orderID)
		if len(charges) > 0 {
			made = charges[0]
		}
		return len(charges) > 0, err
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = noFault("the provider charged nothing within %v", l.patience)
	}
	return made, err
}

func (l *ledger) ask(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, l.url+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := l.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the provider: %w", err)
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("the provider answered %s to %s %s", resp.Status, method, path)
	}
	return content, err
}
