package sqlitestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei"
)

// forced runs a statement whatever the schema's CHECKs say.
func forced(t *testing.T, s *Store, query string, args ...any) {
	t.Helper()
	conn, err := s.write.Conn(within(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, q := range []string{"PRAGMA ignore_check_constraints = ON", query, "PRAGMA ignore_check_constraints = OFF"} {
		var arg []any
		if q == query {
			arg = args
		}
		res, err := conn.ExecContext(within(t), q, arg...)
		if err != nil {
			t.Fatalf("%s: %v", q, err)
		}
		if n, err := res.RowsAffected(); q == query && (err != nil || n != 1) {
			t.Fatalf("%s changed %d rows, %v", q, n, err)
		}
	}
}

// Case 24: what a newer version, or damage, has left is not run, not replayed,
// and stays as it is. What stands beside it is not affected.
func TestUnreadableRecords_case_24(t *testing.T) {
	t.Parallel()
	good := opOf("k").Fingerprint.Bytes()
	for _, x := range []struct {
		name  string
		table string
		set   string
		arg   any
	}{
		{"live, unknown status", "idempotency_keys", "status = ?", "SUSPENDED"},
		{"live, empty status", "idempotency_keys", "status = ?", ""},
		{"live, status in small letters", "idempotency_keys", "status = ?", "processing"},
		{"live, status NONE", "idempotency_keys", "status = ?", "NONE"},
		{"live, SUCCEEDED without a result", "idempotency_keys", "status = ?", "SUCCEEDED"},
		{"live, fingerprint of version 2", "idempotency_keys", "request_hash = ?", append([]byte{2}, good[1:]...)},
		{"live, fingerprint of version 0", "idempotency_keys", "request_hash = ?", append([]byte{0}, good[1:]...)},
		{"live, short fingerprint", "idempotency_keys", "request_hash = ?", good[:10]},
		{"live, empty fingerprint", "idempotency_keys", "request_hash = ?", []byte{}},
		{"live, long fingerprint", "idempotency_keys", "request_hash = ?", append(bytes.Clone(good), 0)},
		{"result, unknown status", "results", "status = ?", "REVERSED"},
		{"result, empty status", "results", "status = ?", ""},
		{"result, status in small letters", "results", "status = ?", "succeeded"},
		{"result, UNCERTAIN", "results", "status = ?", "UNCERTAIN"},
		{"result, fingerprint of version 2", "results", "request_hash = ?", append([]byte{2}, good[1:]...)},
		{"result, short fingerprint", "results", "request_hash = ?", good[:32]},
		{"result, empty fingerprint", "results", "request_hash = ?", []byte{}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, newFile(t))
			done(t, s, "left neighbour")
			claims(t, s, claimOf("k", "me", short), kakutei.Acquired, 1)
			table := x.table
			if table == "results" {
				settle(t, s, success(refOf("k", "me", 1)))
				table = column(t, s.read, queryDays)[0]
			}
			forced(t, s, "UPDATE "+table+" SET "+x.set+" WHERE idempotency_key = 'k'", x.arg)
			before := dump(t, s, "k")
			time.Sleep(short + 5*time.Millisecond)
			ctx := within(t)
			for _, recovery := range []kakutei.Recovery{kakutei.Rerun, kakutei.Hold, kakutei.Transactional} {
				c := claimOf("k", "other", long)
				c.Recovery = recovery
				out, err := s.Claim(ctx, []kakutei.Claim{claimOf("left neighbour", "other", long), c, claimOf("right neighbour", "other", long)})
				if err != nil {
					t.Fatal(err)
				}
				if !errors.Is(out[1].Err, kakutei.ErrCorrupt) {
					t.Errorf("%v: the claim came to %v, %v", recovery, out[1].Outcome, out[1].Err)
				}
				if out[0].Err != nil || out[0].Outcome != kakutei.Replay || out[2].Err != nil || out[2].Outcome != kakutei.Acquired {
					t.Errorf("the neighbours came to %v %v, %v %v", out[0].Outcome, out[0].Err, out[2].Outcome, out[2].Err)
				}
			}
			// The same answer from within the transaction, past the look before it.
			c := claimOf("k", "other", long)
			if err := s.do(ctx, func(ctx context.Context, tx *group) error {
				d, err := tx.claim(ctx, c)
				if err == nil && !errors.Is(d.Err, kakutei.ErrCorrupt) {
					t.Errorf("the claim in the transaction came to %v, %v", d.Outcome, d.Err)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			if !strings.Contains(x.name, "version 2") { // Look does not compare; a version to come is for the caller to judge
				if out, err := s.Look(ctx, []kakutei.ID{idOf("left neighbour"), idOf("k")}); err != nil || out[0].Err != nil || !errors.Is(out[1].Err, kakutei.ErrCorrupt) {
					t.Errorf("looking at it answers %v, %v", out, err)
				}
			}
			// Who does not hold it changes nothing.
			for _, status := range []kakutei.Status{kakutei.StatusSucceeded, kakutei.StatusFailed, kakutei.StatusUncertain} {
				if err := trySettle(ctx, s, kakutei.Settlement{Ref: refOf("k", "other", 2), Status: status}); err == nil {
					t.Errorf("somebody else settled it as %v", status)
				}
			}
			if after := dump(t, s, "k"); after != before {
				t.Errorf("the record was\n%s\nand is\n%s", before, after)
			}
		})
	}
}

// A fingerprint of a version that the caller can compute matches (case 35).
func TestOlderFingerprint_case_35(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	old := kakutei.Fingerprint{Version: 7, Sum: [32]byte{1, 2, 3}}
	for _, key := range []string{"live", "settled"} {
		c := claimOf(key, "me", long)
		c.Fingerprint = old
		claims(t, s, c, kakutei.Acquired, 1)
	}
	settle(t, s, success(refOf("settled", "me", 1)))
	for key, want := range map[string]kakutei.Outcome{"live": kakutei.InFlight, "settled": kakutei.Replay} {
		c := claimOf(key, "other", long)
		c.FingerprintFunc = func(version uint8) (kakutei.Fingerprint, bool) { return old, version == 7 }
		claims(t, s, c, want, 1)
		c.FingerprintFunc = func(uint8) (kakutei.Fingerprint, bool) {
			return kakutei.Fingerprint{Version: 7, Sum: [32]byte{9}}, true
		}
		claims(t, s, c, kakutei.Mismatch, 1)
	}
}

// The database itself refuses a second success of one operation on one day,
// whatever the code above it does.
func TestSecondSuccessIsRefused(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	done(t, s, "k")
	day := column(t, s.read, queryDays)[0]
	_, err := s.DB().Exec("INSERT INTO " + day + " SELECT * FROM " + day)
	if code(err) != 19 { // SQLITE_CONSTRAINT
		t.Errorf("a second success was written: %v", err)
	}
	exec1(t, s.DB(), "UPDATE "+day+" SET status = 'FAILED'")
	exec1(t, s.DB(), "INSERT INTO "+day+" SELECT * FROM "+day)
	if got := value(t, s.read, "SELECT count(*) FROM "+day); got != "2" {
		t.Errorf("of failed attempts there are %s", got)
	}
}

// Of a failed attempt the code is kept, for the audit, and not the answer.
func TestFailedAttemptIsAudited(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	claims(t, s, claimOf("k", "me", long), kakutei.Acquired, 1)
	x := success(refOf("k", "me", 1))
	x.Status, x.Result = kakutei.StatusFailed, kakutei.Result{Code: 503, Header: []byte("h"), Body: []byte("b"), Omitted: "o"}
	settle(t, s, x)
	const query = `SELECT status || ' ' || attempt || ' ' || owner || ' ' || node || ' ' || actor || ' ' || trace_id || ' ' || request_method || ' ' || request_path || ' ' ||
		response_code || ' ' || ifnull(response_headers, 'none') || ' ' || ifnull(response_body, 'none') || ' ' || (omitted = '') || ' ' ||
		(created_at <= claimed_at AND claimed_at <= completed_at AND completed_at - created_at < 60000) FROM idempotency_results`
	if got, want := value(t, s.read, query), "FAILED 1 me test somebody 4bf92f3577b34da6a3ce929d0e0e4736 POST /charges 503 none none 1 1"; got != want {
		t.Errorf("the audit trail is %q, want %q", got, want)
	}
}

// Case 23 and C13: what was recorded comes back byte for byte.
func TestResultBytes_case_23(t *testing.T) {
	t.Parallel()
	s := open(t, newFile(t))
	big := make([]byte, 4<<20)
	r := random(t)
	for i := range big {
		big[i] = byte(r.Uint32())
	}
	for i, body := range [][]byte{nil, {}, []byte("null"), []byte("0"), []byte(`""`), []byte("[]"), {0}, {0, 0, 0}, {0xff, 0xfe, 0xc3, 0x28}, []byte("a\x00b"), big} {
		key := fmt.Sprint("k", i)
		claims(t, s, claimOf(key, "me", long), kakutei.Acquired, 1)
		want := kakutei.Result{Code: 200 + i, Header: body[:min(len(body), 100)], Body: body, Omitted: strings.Repeat("x", i%2)}
		settle(t, s, kakutei.Settlement{Ref: refOf(key, "me", 1), Status: kakutei.StatusSucceeded, Result: want})
		got := claims(t, s, claimOf(key, "other", long), kakutei.Replay, 1).Result
		if got.Code != want.Code || !bytes.Equal(got.Header, want.Header) || !bytes.Equal(got.Body, want.Body) || got.Omitted != want.Omitted {
			t.Errorf("%d: code %d, %d bytes of header, %d of body, omitted %q", i, got.Code, len(got.Header), len(got.Body), got.Omitted)
		}
	}
}
