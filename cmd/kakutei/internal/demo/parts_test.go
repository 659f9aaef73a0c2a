package demo

import (
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
)

// post sends a request to a handler and returns status and body.
func post(h http.Handler, target, body string, header ...string) (int, string) {
	r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	r.Header.Set("Authorization", demoCredential)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func TestProvider(t *testing.T) {
	t.Parallel()
	p := newProvider()
	const body = `{"order":"o","amount":100}`
	for _, test := range []struct {
		name, body, key string
		status          int
		want            string
	}{
		{"without a key", body, "", http.StatusCreated, `{"id":"ch_1","order":"o","amount":100}`},
		{"without a key again", body, "", http.StatusCreated, `{"id":"ch_2","order":"o","amount":100}`},
		{"with a key", body, "k", http.StatusCreated, `{"id":"ch_3","order":"o","amount":100}`},
		{"with the key again", body, "k", http.StatusCreated, `{"id":"ch_3","order":"o","amount":100}`},
		{"another body", `{"order":"o","amount":1}`, "k", http.StatusUnprocessableEntity, "the key belongs to the charge ch_3"},
		{"no amount", `{"order":"o"}`, "l", http.StatusBadRequest, "a charge has an order and an amount"},
	} {
		status, got := post(p, "/charges", test.body, "Idempotency-Key", test.key)
		assert.Equal(t, status, test.status, test.name+": status")
		assert.Equal(t, got, test.want, test.name)
	}
	server := httptest.NewServer(p)
	defer server.Close()
	charges, err := newLedger(server.URL).charges(t.Context(), "o")
	assert.NoError(t, err)
	assert.Equal(t, len(charges), 3, "charges in the ledger")
}

// TestNaive: the naive layer is not made of straw. One after the other, and
// after a restart, it does what it should.
func TestNaive(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "naive.db")
	runs, status := 0, http.StatusCreated
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		runs++
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write([]byte(`{}`)) //nolint:errcheck // a recorder
	})
	open := func() http.Handler {
		h, stop, err := protectNaively(t.Context(), handler, path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { assert.NoError(t, stop(t.Context())) })
		return h
	}
	send := func(h http.Handler, body, key string, wantStatus, wantRuns int, what string) {
		t.Helper()
		got, _ := post(h, "/charges", body, "Idempotency-Key", key)
		assert.Equal(t, got, wantStatus, what+": status")
		assert.Equal(t, runs, wantRuns, what+": runs")
	}
	h := open()
	send(h, "a", "k", http.StatusCreated, 1, "first")
	send(h, "a", "k", http.StatusCreated, 1, "retry")
	send(h, "b", "k", http.StatusUnprocessableEntity, 1, "another body")
	send(h, "a", "", http.StatusBadRequest, 1, "no key")
	send(open(), "a", "k", http.StatusCreated, 1, "retry after a restart")
	status = http.StatusBadGateway
	send(h, "a", "l", http.StatusBadGateway, 2, "failure")
	status = http.StatusCreated
	send(h, "a", "l", http.StatusCreated, 3, "retry of a failure")
	got, _ := post(h, "/charges", "a", "Idempotency-Key", "k", "Authorization", "Bearer somebody")
	assert.Equal(t, got, http.StatusUnauthorized, "a stranger: status")
}

func TestRelayKey(t *testing.T) {
	t.Parallel()
	key := relayKey(kakutei.ID{Scope: "a", Key: "bc"})
	assert.Equal(t, relayKey(kakutei.ID{Scope: "a", Key: "bc"}), key, "the same operation")
	assert.True(t, relayKey(kakutei.ID{Scope: "ab", Key: "c"}) != key, "another scope has the same key")
	assert.True(t, relayKey(kakutei.ID{Scope: "a", Key: "bd"}) != key, "another key has the same key")
}

func TestStory(t *testing.T) {
	t.Parallel()
	refused := answer{text: "409 in flight", status: http.StatusConflict}
	done := answer{text: "201", status: http.StatusCreated}
	var s story
	s.add("at once", refused, done, refused)
	s.add("retry", refused)
	s.add("retry", refused)
	s.add("retry", done)
	assert.Equal(t, s.String(), "at once: 201, 409 in flight ×2; retry: 409 in flight ×2, 201", "story")
	assert.Equal(t, story(nil).String(), "", "no story")
}

// testReport is a report with everything in it that can be shown.
func testReport() Report {
	cell := func(l layer, charges int, err error, fault string, answers ...answer) Cell {
		a := &act{stage: &stage{layer: l}, fault: fault}
		a.tell("retry", answers...)
		c := newCell(a, err)
		c.count(charges)
		return c
	}
	done := answer{text: "201", status: http.StatusCreated}
	uncertain := answer{text: "409 uncertain", status: http.StatusConflict}
	l := layers()
	return newReport([]Row{
		{"kill", "kill -9 after the charge", 1, []Cell{
			cell(l[0], 2, nil, "seen", done), cell(l[1], 1, nil, "seen", uncertain), cell(l[2], 1, nil, "seen", done),
		}},
		{"panic", "panic after the charge", 1, []Cell{
			cell(l[0], 1, noFault("nothing broke"), "", done), cell(l[1], 2, nil, "seen", done), cell(l[2], 1, errors.New("broken"), "seen"),
		}},
	}, time.Second, time.Minute)
}

func TestPrint(t *testing.T) {
	t.Parallel()
	for name, colour := range map[string]bool{"report.txt": false, "report-colour.txt": true} {
		var b bytes.Buffer
		assert.NoError(t, testReport().Print(&b, colour))
		golden(t, name, b.String())
		assert.Equal(t, strings.Contains(b.String(), "\x1b"), colour, name+": colour")
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	var lines bytes.Buffer
	p := steps{&Lines{W: &lines}, 7, 21}
	p.begin(1, "Kakutei, hold: something")
	p.Done("1 held")
	assert.Equal(t, lines.String(), " 8/21 Kakutei, hold: something: 1 held\n", "lines")

	var line output
	live := NewLive(&line)
	live.Step(8, 21, strings.Repeat("x", 100))
	live.Close()
	first, _, _ := strings.Cut(strings.TrimPrefix(line.String(), "\r\x1b[K"), "\r")
	assert.Equal(t, first, "[####----------] 0 s  "+strings.Repeat("x", 57), "live line")
	assert.True(t, strings.HasSuffix(line.String(), "\r\x1b[K"), "the line is left standing: %q", line.String())
}
