package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/kakutei-go/kakutei"
)

// newTransport returns the transport that is used unless another one is given.
func newTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.Proxy = nil // where to go is given; it is not reached through a proxy of the environment
	t.MaxIdleConnsPerHost = 256
	t.DisableCompression = true // bodies pass as they are
	return t
}

// errNotSent: no connection was had, so no byte of the request has left.
var errNotSent = errors.New("the request was not sent")

// once sends a protected request at most once. net/http would send one with an
// Idempotency-Key and without a body again by itself when a reused connection
// breaks; whether that is right is for the route's recovery to say.
type once struct{ base http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t once) RoundTrip(r *http.Request) (*http.Response, error) {
	// A transport that tells nothing of its connections may have sent it.
	var asked, connected atomic.Bool
	trace := &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	if kakutei.FromContext(r.Context()) != nil && (r.Body == nil || r.Body == http.NoBody) {
		// A body that is empty, but not known to be, is not sent again.
		r.Body = io.NopCloser(eof{})
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil && asked.Load() && !connected.Load() {
		return nil, fmt.Errorf("%w: %w", errNotSent, err)
	}
	return resp, err
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }
