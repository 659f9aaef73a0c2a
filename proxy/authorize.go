package proxy

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
)

const authorizeTimeout = 5 * time.Second

// forwardAuthorization returns a check that asks target whether the caller of a
// request may have a recorded answer: a GET with the headers of the request, and
// what the request was for in X-Forwarded-Method, -Host and -Uri.
func forwardAuthorization(target string) (func(*http.Request) error, error) {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%w: the URL to authorize replays must be an http or https URL", kakutei.ErrInvalid)
	}
	client := &http.Client{
		Transport:     newTransport(),
		Timeout:       authorizeTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(r *http.Request) error {
		ask, err := http.NewRequestWithContext(r.Context(), http.MethodGet, u.String(), nil)
		if err != nil {
			return err
		}
		ask.Header = r.Header.Clone()
		for _, name := range []string{
			"Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Keep-Alive", "Proxy-Connection",
			"Te", "Trailer", "Transfer-Encoding", "Upgrade", kakuteihttp.Header,
		} {
			ask.Header.Del(name)
		}
		(&httputil.ProxyRequest{In: r, Out: ask}).SetXForwarded()
		ask.Header.Set("X-Forwarded-Method", r.Method)
		ask.Header.Set("X-Forwarded-Uri", r.URL.RequestURI())
		resp, err := client.Do(ask)
		if err != nil {
			return fmt.Errorf("%w: ask for authorization: %w", kakutei.ErrUnavailable, err)
		}
		_ = resp.Body.Close() // only the status counts
		switch {
		case resp.StatusCode/100 == 2:
			return nil
		case resp.StatusCode == http.StatusUnauthorized:
			return kakuteihttp.ErrUnauthenticated
		case resp.StatusCode >= 500:
			return fmt.Errorf("%w: authorization answered %d", kakutei.ErrUnavailable, resp.StatusCode)
		}
		return fmt.Errorf("authorization answered %d", resp.StatusCode)
	}, nil
}
