package proxy_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/memstore"
	"github.com/kakutei-go/kakutei/proxy"
)

// FuzzRequests writes bytes to a server with the proxy behind it, twice. Nothing
// panics; the upstream gets each operation once; and whatever has a key and may
// have an effect comes to it protected.
func FuzzRequests(f *testing.F) {
	const head = "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\n"
	for _, seed := range []string{
		head + "Idempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}",
		head + "Idempotency-Key: \"k\"\r\nContent-Length: 2\r\n\r\n{}" + head + "Idempotency-Key: k\r\nContent-Length: 2\r\n\r\n{}",
		head + "Idempotency-Key: k\r\nTransfer-Encoding: chunked\r\nTrailer: Idempotency-Key\r\n\r\n2\r\n{}\r\n0\r\nIdempotency-Key: x\r\n\r\n",
		head + "Idempotency-Key: k\r\nConnection: Idempotency-Key, Kakutei-Attempt\r\nKakutei-Attempt: 7\r\nContent-Length: 0\r\n\r\n",
		head + "Idempotency-Key: k\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\nContent-Length: 0\r\n\r\n",
		head + "Idempotency-Key: k\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n",
		head + "Idempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
		head + "Idempotency-Key: a\r\nIdempotency-Key: b\r\nContent-Length: 0\r\n\r\n",
		head + "Idempotency-Key: k\r\nContent-Length: 10\r\n\r\nshort",
		head + "idempotency-key: k\r\nContent-Length: 0\r\n\r\nGET / HTTP/1.1\r\nHost: api\r\nIdempotency-Key: k\r\n\r\n",
		"PATCH /charges/%2F..//x?a=%zz HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n",
		"POST http://other/a|b HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n",
		"POST /a%2fb/%2e%2e/{id}/ HTTP/1.0\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n",
		"POST * HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n",
		"CONNECT api:80 HTTP/1.1\r\nHost: api\r\nIdempotency-Key: k\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"OPTIONS * HTTP/1.1\r\nHost: api\r\n\r\n", "\r\n\r\n", "\x16\x03\x01",
	} {
		f.Add([]byte(seed))
	}

	var mu sync.Mutex
	runs := map[kakutei.ID]int{}
	var t atomic.Pointer[testing.T] // of the input that is tried
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, r.Body)
		attempt := r.Header[proxy.AttemptHeader]
		if r.Method != http.MethodPost && r.Method != http.MethodPatch {
			if len(attempt) > 0 {
				t.Load().Errorf("%s has attempt %q", r.Method, attempt)
			}
			return
		}
		key, ok, err := kakuteihttp.ParseKey(r.Header, false)
		switch {
		case err != nil:
			t.Load().Errorf("a bad key reached the upstream: %q", r.Header[kakuteihttp.Header])
		case !ok:
			if len(attempt) > 0 {
				t.Load().Errorf("a request without a key has attempt %q", attempt)
			}
		case len(attempt) != 1 || attempt[0] != "1" && attempt[0] != "2": // 2: the client had left when the first was claimed
			t.Load().Errorf("a request with a key has attempt %q", attempt)
		case r.Header.Get("Upgrade") != "":
			t.Load().Errorf("a request with a key asks for an upgrade")
		default:
			mu.Lock()
			defer mu.Unlock()
			id := kakutei.ID{Scope: r.Header.Get("X-Account-Id"), Key: key}
			if runs[id]++; runs[id] > 1 {
				t.Load().Errorf("the upstream got %q twice", key)
			}
		}
	}))
	f.Cleanup(up.Close)
	target, err := url.Parse(up.URL)
	if err != nil {
		f.Fatal(err)
	}

	var handler atomic.Pointer[http.Handler]
	// Not TCP: ports would run out.
	socket := filepath.Join(f.TempDir(), "front")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		f.Fatal(err)
	}
	transport := &http.Transport{DisableCompression: true}
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		noPanic(t.Load(), *handler.Load()).ServeHTTP(w, r)
	}))
	front.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	front.Config.Protocols = new(http.Protocols)
	front.Config.Protocols.SetHTTP1(true)
	front.Config.Protocols.SetUnencryptedHTTP2(true)
	front.Listener.Close()
	front.Listener = listener
	front.Start()
	f.Cleanup(front.Close)

	f.Fuzz(func(tt *testing.T, input []byte) {
		t.Store(tt)
		mu.Lock()
		clear(runs)
		mu.Unlock()
		engine, err := kakutei.New(memstore.New(), kakutei.Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			tt.Fatal(err)
		}
		defer func() {
			if err := engine.Close(context.Background()); err != nil {
				tt.Error(err)
			}
		}()
		h, err := proxy.New(engine, proxy.Config{
			Upstream: target, Default: complete(proxy.Route{}), Logger: slog.New(slog.DiscardHandler), Transport: transport,
			Routes: completeAll([]proxy.Route{{Path: "/charges"}, {Method: "PATCH", Path: "/charges/{id}"}, {Path: "/a/"}}),
		})
		if err != nil {
			tt.Fatal(err)
		}
		handler.Store(&h)
		for range 2 {
			conn, err := net.Dial("unix", socket)
			if err != nil {
				tt.Fatal(err)
			}
			conn.Write(input)
			// What is asked last ends the connection, unless the input has it otherwise.
			io.WriteString(conn, "GET / HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n")
			conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if _, err := io.Copy(io.Discard, conn); err != nil {
				conn.(*net.UnixConn).CloseWrite()
				conn.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
					tt.Errorf("the server does not come to an end: %v", err)
				}
			}
			conn.Close()
		}
	})
}
