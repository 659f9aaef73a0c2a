package dbtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kakutei-go/kakutei/internal/assert"
)

// echo serves lines: it answers each with its name and the line.
func echo(t *testing.T, name string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				data := make([]byte, 4096)
				for {
					n, err := conn.Read(data)
					if err != nil {
						return
					}
					if _, err := io.WriteString(conn, name+":"+string(data[:n])); err != nil {
						return
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends a text and returns what comes back within a while.
func ask(conn net.Conn, text string, within time.Duration) (string, error) {
	if _, err := io.WriteString(conn, text); err != nil {
		return "", err
	}
	_ = conn.SetReadDeadline(time.Now().Add(within))
	data := make([]byte, 4096)
	n, err := conn.Read(data)
	return string(data[:n]), err
}

const (
	soon = 100 * time.Millisecond // for what must not come
	late = 10 * time.Second       // for what must come
)

func TestSwitchPointAndCut(t *testing.T) {
	t.Parallel()
	sw := NewSwitch(t, echo(t, "a"))
	conn := dial(t, sw.Addr())
	got, err := ask(conn, "x", late)
	assert.NoError(t, err)
	assert.Equal(t, got, "a:x", "answer")

	sw.Point(echo(t, "b"))
	got, _ = ask(conn, "x", late)
	assert.Equal(t, got, "a:x", "answer on the old connection")
	assert.Equal(t, sw.Links(), 1, "connections")
	assert.Equal(t, sw.Cut(), 1, "connections cut")
	if got, err := ask(conn, "x", late); err == nil {
		t.Errorf("a cut connection answers %q", got)
	}
	got, _ = ask(dial(t, sw.Addr()), "x", late)
	assert.Equal(t, got, "b:x", "answer on a new connection")

	sw.Point("")
	if got, err := ask(dial(t, sw.Addr()), "x", late); err == nil {
		t.Errorf("a switch that leads nowhere answers %q", got)
	}
	assert.Equal(t, sw.Accepted(), 3, "accepted")
}

func TestSwitchBlackholeAndDelay(t *testing.T) {
	t.Parallel()
	sw := NewSwitch(t, echo(t, "a"))
	conn := dial(t, sw.Addr())
	sw.Blackhole()
	_, err := ask(conn, "x", soon)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	fresh := dial(t, sw.Addr())
	_, err = ask(fresh, "y", soon)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded)
	sw.Restore()
	got, _ := ask(conn, "", late)
	assert.Equal(t, got, "a:x", "answer after the partition")
	got, _ = ask(fresh, "", late)
	assert.Equal(t, got, "a:y", "answer after the partition")

	const delay = 30 * time.Millisecond
	sw.Delay(delay)
	began := time.Now()
	got, _ = ask(conn, "z", late)
	assert.Equal(t, got, "a:z", "answer")
	assert.True(t, time.Since(began) >= 2*delay, "a round trip took %v", time.Since(began))
}

func TestSwitchPassesTheEnd(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		text, _ := io.ReadAll(conn) // until the client has ended its side
		_, _ = conn.Write(bytes.ToUpper(text))
		_ = conn.Close()
	}()
	conn := dial(t, NewSwitch(t, ln.Addr().String()).Addr())
	_, _ = io.WriteString(conn, strings.Repeat("x", 100_000))
	_ = conn.(*net.TCPConn).CloseWrite()
	text, err := io.ReadAll(conn)
	assert.NoError(t, err)
	assert.Equal(t, len(text), 100_000, "bytes that came back")
}

func TestFaultPlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		fault  Fault
		chunks []string
		pass   string
		fired  bool
	}{
		{"next byte", Fault{}, []string{"abc"}, "", true},
		{"after bytes", Fault{After: 4}, []string{"abc", "def"}, "abcd", true},
		{"after exactly all", Fault{After: 3}, []string{"abc"}, "abc", true},
		{"not so many", Fault{After: 7}, []string{"abc", "def"}, "abcdef", false},
		{"match", Fault{Match: "Commit"}, []string{"xx COMMIT yy"}, "xx ", true},
		{"match and bytes", Fault{Match: "commit", After: 8}, []string{"xx commit yy"}, "xx commit y", true},
		{"match across reads", Fault{Match: "commit"}, []string{"xx com", "mit yy"}, "xx com", true},
		{"second match", Fault{Match: "ab", Skip: 1}, []string{"ab", "a", "b", "ab"}, "aba", true},
		{"no match", Fault{Match: "ab"}, []string{"a", "cb"}, "acb", false},
		{"other way", Fault{Direction: ToClient}, []string{"abc"}, "abc", false},
		{"all of it", Fault{Match: "b", Action: LoseReply}, []string{"abc"}, "abc", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			sw := NewSwitch(t, "")
			b, l := sw.Break(c.fault), &link{}
			var passed string
			for _, chunk := range c.chunks {
				pass, then := b.meet(l, ToServer, []byte(chunk))
				passed += string(pass)
				assert.Equal(t, then != 0, b.fired, "something happens")
				if b.fired {
					break
				}
			}
			assert.Equal(t, b.Disarm(), c.fired, "fired")
			assert.Equal(t, passed, c.pass, "passed on")
		})
	}
}

func TestFaultThatDoesNotHappenFailsTheTest(t *testing.T) {
	t.Parallel()
	for disarm, want := range map[bool]string{false: "the fault did not happen", true: ""} {
		tb := &fakeTB{TB: t}
		tb.run(func(tb testing.TB) {
			b := NewSwitch(tb, "").Break(Fault{Match: "never"})
			if disarm {
				b.Disarm()
			}
		})
		assert.True(t, strings.HasPrefix(tb.failed, want) && (tb.failed == "") == (want == ""), "failed with %q", tb.failed)
	}
}

// The three things that a client cannot tell apart when a commit breaks.
func TestCommitFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault Fault
		rows  string
	}{
		{"request lost", Fault{Match: "commit"}, "0"},
		{"half a request", Fault{Match: "commit", After: 4}, "0"},
		{"reply lost", Fault{Match: "commit", Action: LoseReply}, "1"},
		{"silence before", Fault{Match: "commit", Action: Stall}, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := Shared(t)
			db := s.Database()
			db.Exec("CREATE TABLE t (n int)")
			sw := NewSwitch(t, s.Addr())
			conn := connect(t, PostgresDSN(sw.Addr(), db.Name))
			fault := sw.Break(c.fault)
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "INSERT INTO t VALUES (1)"); err != nil {
				t.Fatal(err)
			}
			patient := late
			if c.fault.Action == Stall {
				patient = soon
			}
			ctx, cancel := context.WithTimeout(t.Context(), patient)
			defer cancel()
			err = tx.Commit(ctx)
			assert.True(t, err != nil, "the client was told that it committed")
			assert.True(t, fault.Fired(), "the fault did not fire")
			if c.fault.Action == Stall {
				assert.True(t, errors.Is(err, context.DeadlineExceeded), "commit: %v", err)
			}
			if c.fault.Action != Stall {
				assert.True(t, ctx.Err() == nil, "the client was left waiting")
			}
			assert.Equal(t, db.Query("SELECT count(*) FROM t"), c.rows, "rows")
		})
	}
}

func BenchmarkDatabase(b *testing.B) {
	s := Shared(b)
	for b.Loop() {
		s.Database()
	}
}

func BenchmarkPostgres(b *testing.B) {
	for b.Loop() {
		s := Postgres(b, PostgresOptions{})
		b.StopTimer()
		assert.NoError(b, s.close())
		b.StartTimer()
	}
}
