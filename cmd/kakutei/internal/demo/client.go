package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const demoCredential = "Bearer acme-0123456789" // of an account that exists nowhere else

// order is what a client wants to pay. Sent again, it is the same request.
type order struct {
	key    string
	id     string
	amount int64
	fault  string // for the shop; see faultHeader
}

// answer is what the client of one request was told.
type answer struct {
	text       string // as in "409 in flight"
	status     int    // 0 for no answer
	charge     string // the id in a 201
	retryAfter time.Duration
	sent       time.Time // when the request had left; zero if it never did
	received   time.Time
}

// noAnswer is the text of an answer that did not come.
const noAnswer = "no answer"

// client sends orders to the shop. It opens a connection for each: net/http
// would by itself send a request with a key again when a reused one breaks, and
// the demo counts what it sends.
type client struct{ http http.Client }

func newClient() *client {
	return &client{http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// send sends o once.
func (c *client) send(ctx context.Context, url string, o order) (a answer) {
	var sent atomic.Pointer[time.Time]
	defer func() {
		a.received = time.Now()
		if t := sent.Load(); t != nil {
			a.sent = *t
		}
	}()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(info httptrace.WroteRequestInfo) {
		if now := time.Now(); info.Err == nil {
			sent.Store(&now)
		}
	}})
	body := fmt.Sprintf(`{"order":%q,"amount":%d}`, o.id, o.amount)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/charges", strings.NewReader(body))
	if err != nil {
		return answer{text: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", demoCredential)
	req.Header.Set("Idempotency-Key", o.key)
	if o.fault != "" {
		req.Header.Set(faultHeader, o.fault)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{text: noAnswer}
	}
	defer resp.Body.Close()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{text: noAnswer}
	}
	return read(resp, content)
}

// read puts a response into words.
func read(resp *http.Response, content []byte) answer {
	var fields struct{ ID, Type string }
	//nolint:errcheck // not every answer is JSON
	json.Unmarshal(content, &fields)
	a := answer{text: strconv.Itoa(resp.StatusCode), status: resp.StatusCode}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		a.retryAfter = time.Duration(seconds) * time.Second
	}
	switch _, problem, _ := strings.Cut(path.Base(fields.Type), "#"); {
	case resp.StatusCode == http.StatusCreated:
		a.charge = fields.ID
		if resp.Header.Get("Idempotent-Replayed") == "true" {
			a.text += " replayed"
		}
	case problem != "":
		a.text += " " + strings.ReplaceAll(problem, "-", " ")
	case resp.StatusCode == http.StatusUnprocessableEntity:
		a.text += " key reused"
	}
	return a
}

// begin sends o and does not wait for the answer.
func (c *client) begin(ctx context.Context, url string, o order) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- c.send(ctx, url, o) }()
	return answers
}

// burst sends o from n clients at once.
func (c *client) burst(ctx context.Context, url string, o order, n int) []answer {
	answers := make([]answer, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			<-start
			answers[i] = c.send(ctx, url, o)
		})
	}
	close(start)
	wg.Wait()
	return answers
}
