package kakuteihttp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"html/template"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kakutei-go/kakutei"
)

// shapes are handlers that write their answers in different ways.
func shapes() map[string]http.HandlerFunc {
	flush := func(w http.ResponseWriter) { w.(http.Flusher).Flush() }
	page := template.Must(template.New("").Parse(`{{"<"}}!DOCTYPE html>{{range .}}<p>{{.}}</p>{{end}}`))
	return map[string]http.HandlerFunc{
		"text":               func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") },
		"html in one piece":  func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html><body>x</body></html>") },
		"html in two pieces": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<"); io.WriteString(w, "html>") },
		"template":           func(w http.ResponseWriter, _ *http.Request) { page.Execute(w, []int{1, 2, 3}) },
		"image in pieces": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "\x89PN")
			io.WriteString(w, "G\r\n\x1a\n")
		},
		"typed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintln(w, `{"a":1}`)
		},
		"typed with nothing": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "<html>")
		},
		"typed as empty": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "")
			io.WriteString(w, "<html>")
		},
		"encoded": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, "<html>")
			z.Close()
		},
		"large": func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				w.Write(bytes.Repeat([]byte("0123456789"), 100))
			}
		},
		"declared": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "he")
			io.WriteString(w, "llo")
		},
		"declared, not a number": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "five")
			io.WriteString(w, "hello")
		},
		"declared 0": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "0")
			w.WriteHeader(201)
		},
		"flushed first": func(w http.ResponseWriter, _ *http.Request) { flush(w); io.WriteString(w, "<html>") },
		"flushed between": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "<h")
			flush(w)
			io.WriteString(w, "tml>")
		},
		"flushed, empty": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202); flush(w) },
		"chunked explicitly": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Transfer-Encoding", "chunked")
			w.Header().Set("Content-Type", "text/x-y") // with HTTP/1.1 and this coding net/http would not look for one
			io.WriteString(w, "x")
		},
		"empty 201": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201) },
		"204":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) },
		"205":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(205) },
		"304": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Etag", `"x"`)
			w.WriteHeader(304)
		},
		"999":      func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(499); io.WriteString(w, "odd") },
		"redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusSeeOther) },
		"error":    func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", 404) },
		"lines": func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Add("Vary", "Accept")
			h.Add("Vary", "Origin, Accept-Language")
			h["x-small"] = []string{"kept as it is"}
			h.Set("X-Empty", "")
			if r.ProtoMajor == 1 { // over HTTP/2 net/http drops the one and does not trim the other
				h.Set("X-Spaces", "  a  b  ")
				h.Set("X-Breaks", "a\r\nInjected: b")
			}
			h.Set("Bad Name", "x")
			h.Set("X-Latin1", "caf\xe9")
			h.Set("Content-Disposition", `attachment; filename="a, b; c.pdf"; filename*=UTF-8''%e2%82%ac.pdf`)
			h.Add("Link", `</a>; rel="x"`)
			h.Add("Link", `</b>; rel="y, z"`)
			w.WriteHeader(201)
		},
		"trailer announced": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-Unset")
			io.WriteString(w, "body")
			w.Header().Set("X-Sum", "1")
		},
		"trailer announced, flushed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Add("Trailer", "X-Sum")
			w.Header().Add("Trailer", "X-Other")
			io.WriteString(w, "body")
			flush(w)
			w.Header().Add("X-Sum", "1")
			w.Header().Add("X-Sum", "2")
			w.Header().Set("X-Other", "3")
		},
		"trailer by prefix, flushed": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "body")
			flush(w)
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		},
		"trailer by prefix, large": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(make([]byte, 10000))
			w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		},
		"trailer, no body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			w.WriteHeader(200)
			w.Header().Set("X-Sum", "1")
		},
	}
}

// TestAsWithoutMiddleware is case 39: the first answer is that of the handler
// alone, but for a Content-Length where it had none; and the replay is the first
// answer, but for what is not replayed.
func TestAsWithoutMiddleware(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		all := shapes()
		s := (&site{http2: http2, handler: func(w http.ResponseWriter, r *http.Request) { all[r.Header.Get("Shape")](w, r) }}).start(t)
		for name := range all {
			t.Run(name, func(t *testing.T) {
				c := call{header: http.Header{"Shape": {name}}}
				bare := s.do(c)
				c.key = fmt.Sprintf("%q", name)
				first, again := s.do(c), s.do(c)
				for what, r := range map[string]*reply{"bare": bare, "first": first, "replay": again} {
					if r.err != nil {
						t.Fatalf("%s: %v", what, r.err)
					}
				}
				compare(t, "the first answer, against the bare handler", first, bare)
				if first.replayed() || !again.replayed() {
					t.Errorf("marks: first %v, replay %v", first.replayed(), again.replayed())
				}
				again.header.Del("Idempotent-Replayed")
				compare(t, "the replay, against the first answer", again, first)
			})
		}
		for line := range strings.Lines(s.log.String()) {
			if !strings.Contains(line, "invalid Content-Length") {
				t.Errorf("the server's log says: %s", line)
			}
		}
	})
}

func compare(t *testing.T, what string, got, want *reply) {
	t.Helper()
	if got.status != want.status || got.body != want.body {
		t.Errorf("%s: got %d %.100q, want %d %.100q", what, got.status, got.body, want.status, want.body)
	}
	a, b := maps.Clone(got.header), maps.Clone(want.header)
	for _, h := range []http.Header{a, b} {
		if h.Get("Date") == "" {
			t.Errorf("%s: no Date", what)
		}
		delete(h, "Date")
	}
	if len(b["Content-Length"]) == 0 {
		delete(a, "Content-Length")
	}
	if !maps.EqualFunc(a, b, slices.Equal) {
		t.Errorf("%s: header\n got %q\nwant %q", what, a, b)
	}
	for name, values := range got.trailer { // announced, but not set
		if len(values) == 0 {
			delete(got.trailer, name)
		}
	}
	for name, values := range want.trailer {
		if len(values) == 0 {
			delete(want.trailer, name)
		}
	}
	if !maps.EqualFunc(got.trailer, want.trailer, slices.Equal) {
		t.Errorf("%s: trailer\n got %q\nwant %q", what, got.trailer, want.trailer)
	}
}

type outerValue struct{}

// TestRequestAsWithoutMiddleware is case 31: but for its body, which is at hand
// as a whole, the handler gets the request that it would get otherwise.
func TestRequestAsWithoutMiddleware(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, http2 bool) {
		var got []string
		mux := http.NewServeMux()
		s := &site{http2: http2, outer: func(h http.Handler) http.Handler {
			mux.Handle("POST /tickets/{id}", h)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), outerValue{}, "of the outside")))
			})
		}}
		s.handler = func(_ http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			h := maps.Clone(r.Header)
			delete(h, "Idempotency-Key")
			got = append(got, fmt.Sprint(r.Method, r.URL, r.RequestURI, r.Host, r.Proto, h, string(body), err, r.ContentLength,
				r.PathValue("id"), r.Pattern, r.TLS != nil, r.Trailer, r.RemoteAddr != "",
				r.Context().Value(outerValue{}), r.Context().Value(http.ServerContextKey) != nil, kakutei.FromContext(r.Context()) == nil))
		}
		s.start(t)
		for _, c := range []call{
			{path: "/tickets/a%2Fb?x=1&y=2", body: "some body"},
			{path: "/tickets/empty"},
			{path: "/tickets/form", body: "a=1&b=2", header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}},
		} {
			got = nil
			s.do(c)
			c.key = "k-" + c.path[9:10]
			s.do(c)
			if len(got) != 2 || got[1] != strings.TrimSuffix(got[0], "true")+"false" {
				t.Errorf("with a key:\n%v\nwithout:\n%v", got[1:], got[:1])
			}
		}
	})
}
