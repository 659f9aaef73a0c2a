package kakuteihttp_test

import (
	"fmt"
	"testing"
)

// wantAnswer checks an answer that the handler has given in this call.
func wantAnswer(t testing.TB, r *reply, status int, body string) {
	t.Helper()
	if r.err != nil {
		t.Fatalf("the answer broke off: %v", r.err)
	}
	if r.status != status || r.body != body {
		t.Errorf("got %d %.200q, want %d %.200q", r.status, r.body, status, body)
	}
	if _, marked := r.header["Idempotent-Replayed"]; marked {
		t.Errorf("the first answer is marked as replayed")
	}
}

// wantReplay checks a recorded answer.
func wantReplay(t testing.TB, r *reply, status int, body string) {
	t.Helper()
	if r.err != nil {
		t.Fatalf("the replay broke off: %v", r.err)
	}
	if r.status != status || r.body != body {
		t.Errorf("got %d %.200q, want the replay of %d %.200q", r.status, r.body, status, body)
	}
	if !r.replayed() {
		t.Errorf("the replay is not marked: %v", r.header)
	}
}

// wantProblem checks a refusal by the name of its type.
func wantProblem(t testing.TB, r *reply, status int, name string) {
	t.Helper()
	if r.err != nil {
		t.Fatalf("the answer broke off: %v", r.err)
	}
	if r.status != status || r.problem() != name {
		t.Errorf("got %d %q (%.200s), want %d %q", r.status, r.problem(), r.body, status, name)
	}
	if r.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the problem may be stored: %v", r.header)
	}
}

// wantRetryAfter checks a number of seconds between 1 and limit.
func wantRetryAfter(t testing.TB, r *reply, limit int) {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(r.header.Get("Retry-After"), &n); err != nil || n < 1 || n > limit || len(r.header["Retry-After"]) != 1 {
		t.Errorf("Retry-After is %q, want 1 to %d", r.header["Retry-After"], limit)
	}
}
