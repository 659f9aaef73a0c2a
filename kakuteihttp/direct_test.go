package kakuteihttp_test

import (
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/kakutei-go/kakutei/kakuteihttp"
)

// directRequest is a request for ServeHTTP, without a connection.
func directRequest(key, body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set(kakuteihttp.Header, key)
	}
	return r
}

// discard is a ResponseWriter that counts.
type discard struct {
	header http.Header
	status int
	n      int64
}

func (d *discard) Header() http.Header { return d.header }
func (d *discard) WriteHeader(status int) {
	if d.status == 0 {
		d.status = status
	}
}

func (d *discard) Write(p []byte) (int, error) {
	d.WriteHeader(200)
	d.n += int64(len(p))
	return len(p), nil
}
