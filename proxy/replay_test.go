package proxy_test

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/proxy"
)

// Case 40: the status and what belongs to it come back as they were; only the
// header marks the replay.
func TestStatusesAreReplayed(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "/charges/7?a=b#c")
		w.Header().Set("ETag", `W/"abc"`)
		w.Header().Set("Cache-Control", "private")
		var status int
		fmt.Sscanf(r.URL.Path, "/%d", &status)
		w.WriteHeader(status)
		if status != 204 && status != 304 {
			fmt.Fprintf(w, `{"status":%d}`, status)
		}
	})
	f := newFront(t, up.URL, setup{})
	for _, status := range []int{200, 201, 202, 203, 204, 205, 303, 304, 307, 400, 404, 409, 410, 422, 451} {
		c := call{target: fmt.Sprintf("/%d", status), key: fmt.Sprintf("k%d", status)}
		first, second := f.send(c), f.send(c)
		wantFirst(t, first, status, first.body)
		wantReplay(t, second, status, first.body)
		assert.Equal(t, second.header.Get("Location"), "/charges/7?a=b#c", "Location")
		second.header.Del("Idempotent-Replayed")
		sameHeader(t, first.header, second.header)
	}
}

// sameHeader compares all but the date, line by line.
func sameHeader(t testing.TB, a, b http.Header) {
	t.Helper()
	a, b = a.Clone(), b.Clone()
	a.Del("Date")
	b.Del("Date")
	for name := range a {
		assert.True(t, slices.Equal(a[name], b[name]), "%s: first %q, replayed %q", name, a[name], b[name])
	}
	for name := range b {
		assert.True(t, a[name] != nil, "%s: only in the replay: %q", name, b[name])
	}
}

// Case 23: bodies come back byte for byte.
func TestBodiesAreReplayed(t *testing.T) {
	t.Parallel()
	random := make([]byte, 4<<20)
	rand.Read(random)
	for name, body := range map[string]string{
		"empty": "", "null": "null", "zero": "0", "quotes": `""`, "list": "[]", "space": " ", "newline": "\n", "NUL": "\x00", "many NUL": strings.Repeat("\x00", 1000),
		"invalid UTF-8": "\xff\xfe\x80", "half a rune": "\xe2\x82", "random": string(random), "CRLF": "a\r\n\r\nb", "unicode": "caf\u00e9 \U0001F600",
		"order": `{"b":1,"a":2,"b":3}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, chunked := range []bool{false, true} {
				up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/octet-stream")
					if chunked {
						http.NewResponseController(w).Flush()
					}
					io.WriteString(w, body)
				})
				f := newFront(t, up.URL, setup{})
				wantSame(t, f.send(call{key: "k"}), body, "")
				wantSame(t, f.send(call{key: "k"}), body, "true")
				a, err := do(http2Client(t), call{key: "k"}.request(t, f.url))
				assert.NoError(t, err)
				wantSame(t, a, body, "true")
				up.wantRuns(t, 1)
			}
		})
	}
}

// wantSame is for bodies that are better not printed.
func wantSame(t testing.TB, a answer, body, replayed string) {
	t.Helper()
	assert.Equal(t, a.status, 200, "status")
	assert.True(t, a.body == body, "the body has %d bytes, or others than the %d it should", len(a.body), len(body))
	assert.Equal(t, a.header.Get("Idempotent-Replayed"), replayed, "mark of a replay")
	assert.Equal(t, a.header.Get("Content-Length"), fmt.Sprint(len(body)), "Content-Length")
	assert.Equal(t, a.header.Get("Content-Type"), "application/octet-stream", "media type")
}

// Case 39: header lines come back as lines, whatever is in them; what belongs
// to a connection, a moment or a client does not come back.
func TestHeadersAreReplayed(t *testing.T) {
	t.Parallel()
	const old = "Mon, 01 Jun 2020 00:00:00 GMT"
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h["Vary"] = []string{"Accept", "Origin, Accept-Language"}
		h["Set-Cookie"] = []string{"a=b; Expires=Tue, 01 Dec 2026 10:00:00 GMT", "c=d, e=f"}
		h.Set("Content-Disposition", `attachment; filename="a, b.pdf"; filename*=UTF-8''caf%C3%A9`)
		h["Link"] = []string{`</a>; rel="next", </b>; rel="prev"`, "</c>"}
		h.Set("X-Empty", "")
		h.Set("X-Bytes", "caf\xc3\xa9 \xff")
		h.Set("Date", old)
		h.Set("Connection", "X-Hop")
		h.Set("X-Hop", "of this connection")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("Proxy-Authenticate", "Basic")
		h.Set("Www-Authenticate", "Basic")
		h.Set("Idempotent-Replayed", "false")
		h.Set("Content-Type", "text/plain")
		io.WriteString(w, "body")
	})
	f := newFront(t, up.URL, setup{})
	first := f.send(call{key: "k"})
	assert.True(t, slices.Equal(first.header["Set-Cookie"], []string{"a=b; Expires=Tue, 01 Dec 2026 10:00:00 GMT", "c=d, e=f"}), "cookies of the first answer: %q", first.header["Set-Cookie"])
	assert.Equal(t, first.header.Get("Date"), old, "the first answer's date")
	for _, client := range []*http.Client{plainClient, http2Client(t)} {
		replay, err := do(client, call{key: "k"}.request(t, f.url))
		assert.NoError(t, err)
		wantReplay(t, replay, 200, "body")
		for _, name := range []string{"Vary", "Content-Disposition", "Link", "X-Empty", "X-Bytes", "Content-Type"} {
			assert.True(t, len(first.header[name]) > 0, "%s is missing in the first answer", name)
			assert.True(t, slices.Equal(replay.header[name], first.header[name]), "%s: got %q, want %q", name, replay.header[name], first.header[name])
		}
		for _, name := range []string{"Set-Cookie", "X-Hop", "Keep-Alive", "Proxy-Authenticate", "Www-Authenticate", "Transfer-Encoding"} {
			assert.Equal(t, len(replay.header[name]), 0, name+" lines in the replay")
		}
		date, err := http.ParseTime(replay.header.Get("Date"))
		assert.NoError(t, err)
		assert.True(t, time.Since(date) < time.Hour, "the replay's date is %v", date)
	}
	for _, name := range []string{"X-Hop", "Keep-Alive"} {
		assert.Equal(t, len(first.header[name]), 0, name+" lines in the first answer")
	}
}

// Compressed bodies pass as they are, and nobody asks for compression but the client.
func TestCompressionIsUntouched(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	zw := gzip.NewWriter(&packed)
	io.WriteString(zw, strings.Repeat("charged ", 1000))
	zw.Close()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			io.WriteString(w, "plain, asked for "+r.Header.Get("Accept-Encoding"))
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "text/plain")
		w.Write(packed.Bytes())
	})
	f := newFront(t, up.URL, setup{})
	for _, replayed := range []string{"", "true"} {
		a := f.send(call{key: "k"}.with("Accept-Encoding", "gzip"))
		assert.True(t, a.body == packed.String(), "the body is not what the upstream sent")
		assert.Equal(t, a.header.Get("Content-Encoding"), "gzip", "Content-Encoding")
		assert.Equal(t, a.header.Get("Idempotent-Replayed"), replayed, "mark of a replay")
		assert.Equal(t, f.send(call{key: "plain"}).body, "plain, asked for ", "without Accept-Encoding")
		assert.Equal(t, f.send(call{method: "GET"}).body, "plain, asked for ", "GET without Accept-Encoding")
	}
}

// Trailers come with the first answer and with every replay, announced or not.
func TestTrailersAreReplayed(t *testing.T) {
	t.Parallel()
	for _, announced := range []bool{true, false} {
		up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			prefix := http.TrailerPrefix
			if announced {
				w.Header().Set("Trailer", "X-Checksum, X-Count")
				prefix = ""
			}
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "body")
			http.NewResponseController(w).Flush()
			w.Header().Set(prefix+"X-Checksum", "abc, def")
			w.Header().Add(prefix+"X-Count", "1")
			w.Header().Add(prefix+"X-Count", "2")
		})
		f := newFront(t, up.URL, setup{})
		for i, client := range []*http.Client{plainClient, plainClient, http2Client(t)} {
			a, err := do(client, call{key: "k"}.request(t, f.url))
			assert.NoError(t, err)
			assert.Equal(t, a.body, "body", "body")
			what := fmt.Sprintf(" of answer %d, announced=%v", i, announced)
			assert.Equal(t, a.trailer.Get("X-Checksum"), "abc, def", "X-Checksum"+what)
			assert.Equal(t, fmt.Sprint(a.trailer["X-Count"]), "[1 2]", "X-Count"+what)
			assert.Equal(t, a.header.Get("X-Checksum"), "", "X-Checksum among the headers"+what)
		}
		up.wantRuns(t, 1)
	}
}

// Case 39: an answer that comes in pieces is kept back until it is recorded.
func TestChunkedAnswersAreKeptBack(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "first ")
		http.NewResponseController(w).Flush()
		g.pass()
		io.WriteString(w, "second")
	})
	f := newFront(t, up.URL, setup{})
	conn, r := exchange(t, f.addr, "POST /charges HTTP/1.1\r\nHost: api\r\nX-Account-Id: acme\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n\r\n")
	g.awaitStart(t)
	conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	_, err := r.Peek(1)
	assert.True(t, err != nil, "a part of the answer came before it was recorded")
	assert.Equal(t, f.status("k"), kakutei.StatusProcessing, "record")
	conn.SetReadDeadline(time.Now().Add(patience))
	g.open()
	wantFirst(t, readAnswer(t, r), 200, "first second")
	wantReplay(t, f.send(call{key: "k"}), 200, "first second")
}

// An event stream is passed on as it comes, and replayed as a whole.
func TestEventStream(t *testing.T) {
	t.Parallel()
	for _, mediaType := range []string{"text/event-stream", "text/event-stream; charset=utf-8", "Text/Event-Stream", `text/event-stream;charset="utf-8"`} {
		next := make(chan string)
		up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			for event := range next {
				io.WriteString(w, event)
				http.NewResponseController(w).Flush()
			}
		})
		f := newFront(t, up.URL, setup{})
		resp := make(chan *http.Response, 1)
		go func() {
			r, err := plainClient.Do(call{key: "k"}.request(t, f.url))
			if err != nil {
				t.Error(err)
			}
			resp <- r
		}()
		next <- "data: 1\n\n"
		var got *http.Response
		select {
		case got = <-resp:
		case <-time.After(5 * time.Second):
			t.Errorf("%s: the stream does not come", mediaType)
			close(next)
			continue
		}
		buf := make([]byte, 9)
		for i := 1; i < 4; i++ {
			_, err := io.ReadFull(got.Body, buf)
			assert.NoError(t, err)
			assert.Equal(t, string(buf), fmt.Sprintf("data: %d\n\n", i), "event, while the stream goes on")
			a := f.send(call{key: "k"})
			wantProblem(t, a, 409, "in-flight")
			if i < 3 {
				next <- fmt.Sprintf("data: %d\n\n", i+1)
			}
		}
		close(next)
		rest, err := io.ReadAll(got.Body)
		assert.NoError(t, err)
		assert.Equal(t, string(rest), "", "the rest")
		got.Body.Close()
		eventually(t, "the stream is recorded", func() bool { return f.status("k") == kakutei.StatusSucceeded })
		a := f.send(call{key: "k"})
		wantReplay(t, a, 200, "data: 1\n\ndata: 2\n\ndata: 3\n\n")
		assert.Equal(t, a.header.Get("Content-Type"), mediaType, "media type of the replay")
		up.wantRuns(t, 1)
	}
}

// Case 22: an answer over the limit reaches the first client whole; the retry
// is told that it was not kept; nothing runs again.
func TestAnswersTooLarge(t *testing.T) {
	t.Parallel()
	const limit = 1000
	body := strings.Repeat("0123456789", limit/10) + "x"
	for _, chunked := range []bool{false, true} {
		up := newUpstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("X-Kept", "no")
			if !chunked {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			for part := range slices.Chunk([]byte(body), 300) {
				w.Write(part)
				http.NewResponseController(w).Flush()
			}
		})
		f := newFront(t, up.URL, setup{route: proxy.Route{MaxResponseBytes: limit}})
		wantFirst(t, f.send(call{key: "k"}), 200, body)
		for range 2 {
			a := f.send(call{key: "k"})
			wantProblem(t, a, 409, "result-not-retained")
			assert.Equal(t, a.header.Get("X-Kept"), "", "a header of the answer that was not kept")
			assert.Equal(t, a.header.Get("Retry-After"), "", "Retry-After")
		}
		up.wantRuns(t, 1)
		exact := newFront(t, up.URL, setup{route: proxy.Route{MaxResponseBytes: limit + 1}})
		wantFirst(t, exact.send(call{key: "k"}), 200, body)
		wantReplay(t, exact.send(call{key: "k"}), 200, body)
	}
}
