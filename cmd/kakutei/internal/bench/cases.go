package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/kakutei-go/kakutei"
)

// The cases.
const (
	caseFirst         = "first"
	caseReplay        = "replay"
	caseTransactional = "transactional"
)

// CaseNames returns what can be measured.
func CaseNames() []string { return []string{caseFirst, caseReplay, caseTransactional} }

// benchCase is one kind of work, done by several sides; the first is what the
// others are compared with.
type benchCase struct {
	name, title string
	sides       []side
}

// side is one way to do the work of a case.
type side struct {
	name string
	// kakutei tells that an error of this side is Kakutei's.
	kakutei bool
	// crowd tells that the side is only of interest with several callers.
	crowd bool
	open  func(ctx context.Context, callers int) (*session, error)
}

// session is a side at work, on a database of its own.
type session struct {
	do func(ctx context.Context, caller, n int) error
	// check compares what the database holds with what was done. An operation
	// that failed may have come to its effect or not.
	check func(ctx context.Context, ok, failed int64) error
	close func() error
}

func (c benchCase) sidesFor(callers int) []side {
	if callers > 1 {
		return c.sides
	}
	var out []side
	for _, s := range c.sides {
		if !s.crowd {
			out = append(out, s)
		}
	}
	return out
}

func casesOf(db Database) []benchCase {
	ways := db.PlainWays()
	first := benchCase{name: caseFirst, title: "First runs: own the key, run a function that does nothing, record its result"}
	replay := benchCase{name: caseReplay, title: "Replays: the key again, answered with the recorded result"}
	transactional := benchCase{name: caseTransactional, title: "Transactional mode, against the same business transaction without any key"}
	for _, w := range ways {
		first.sides = append(first.sides, side{w.Name, false, !w.Alone, plainFirst(w)})
		transactional.sides = append(transactional.sides, side{w.Name, false, !w.Alone, plainBusiness(w)})
	}
	replay.sides = []side{
		{ways[0].Name, false, false, plainReplay(ways[0])},
		{"kakutei, from the store", true, false, kakuteiReplay(db, kakutei.NoReplayMemory)},
		{"kakutei, from memory", true, false, kakuteiReplay(db, 1<<30)},
	}
	first.sides = append(first.sides, side{"kakutei", true, false, kakuteiFirst(db)})
	transactional.sides = append(transactional.sides, side{"kakutei", true, false, kakuteiBusiness(db)})
	return []benchCase{first, replay, transactional}
}

// receipt is what the function that does nothing returns.
type receipt struct {
	ID       string `json:"id"`
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
	Status   string `json:"status"`
}

func receiptOf(key string) receipt {
	return receipt{ID: key, Amount: 1200, Currency: "EUR", Status: "succeeded"}
}

func encodedReceipt(key string) ([]byte, error) { return json.Marshal(receiptOf(key)) }

// scope and requestHash are those of every operation here.
const scope = "bench"

var request = kakutei.FingerprintOf([]byte(`{"amount":1200,"currency":"EUR"}`))

var (
	errWrongResult = errors.New("the result is that of another operation")
	errNotReplayed = errors.New("a key that was settled has run again")
	errReplayed    = errors.New("a key that was never used was replayed")
)

// keysEach is how many keys every caller replays, again and again.
const keysEach = 16

// keyOf returns the n-th key of a caller: text like a UUID, in no order.
func keyOf(caller, n int) string {
	a := mix(uint64(caller)<<40 | uint64(n))
	b := mix(a)
	return fmt.Sprintf("%08x-%04x-%04x-%04x-%012x", a>>32, a>>16&0xffff, a&0xffff, b>>48, b&0xffffffffffff)
}

// mix is the finalizer of SplitMix64: one to one, so keys differ where their
// numbers do.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func plainFirst(w PlainWay) func(context.Context, int) (*session, error) {
	return func(ctx context.Context, callers int) (*session, error) {
		p, err := w.Open(ctx, callers)
		if err != nil {
			return nil, err
		}
		hash := request.Bytes()
		return &session{
			do: func(ctx context.Context, caller, n int) error {
				key := keyOf(caller, n)
				_, replayed, err := p.Once(ctx, caller, key, hash, func() ([]byte, error) { return encodedReceipt(key) })
				if err == nil && replayed {
					err = errReplayed
				}
				return err
			},
			check: func(ctx context.Context, ok, failed int64) error { return checkFirst(ctx, p.Counts, ok, failed) },
			close: p.Close,
		}, nil
	}
}

func plainReplay(w PlainWay) func(context.Context, int) (*session, error) {
	return func(ctx context.Context, callers int) (*session, error) {
		p, err := w.Open(ctx, callers)
		if err != nil {
			return nil, err
		}
		keys := replayKeys(callers)
		hash := request.Bytes()
		if err := p.Load(ctx, keys, hash, encodedReceipt); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		return &session{
			do: func(ctx context.Context, caller, n int) error {
				key := keyOf(caller, n%keysEach)
				result, replayed, err := p.Once(ctx, caller, key, hash, func() ([]byte, error) { return nil, errNotReplayed })
				if err != nil {
					return err
				}
				if !replayed {
					return errNotReplayed
				}
				// The caller of the plain way decodes it, as kakutei.Do does.
				var r receipt
				if err := json.Unmarshal(result, &r); err != nil {
					return err
				}
				if r != receiptOf(key) {
					return errWrongResult
				}
				return nil
			},
			check: func(ctx context.Context, _, _ int64) error { return checkReplay(ctx, p.Counts, len(keys)) },
			close: p.Close,
		}, nil
	}
}

func plainBusiness(w PlainWay) func(context.Context, int) (*session, error) {
	return func(ctx context.Context, callers int) (*session, error) {
		p, err := w.Open(ctx, callers)
		if err != nil {
			return nil, err
		}
		return &session{
			do: func(ctx context.Context, caller, n int) error {
				return p.Business(ctx, caller, keyOf(caller, n), accountOf(caller, n))
			},
			check: func(ctx context.Context, ok, failed int64) error {
				_, err := checkBusiness(ctx, p.Counts, ok, failed)
				return err
			},
			close: p.Close,
		}, nil
	}
}

func accountOf(caller, n int) int { return int(mix(uint64(caller)<<40|uint64(n)) % accounts) }

func replayKeys(callers int) []string {
	var keys []string
	for caller := range callers {
		for n := range keysEach {
			keys = append(keys, keyOf(caller, n))
		}
	}
	return keys
}

// protected is an engine on a database of its own.
type protected struct {
	Protected
	engine *kakutei.Engine
	ran    atomic.Int64
}

func openProtected(ctx context.Context, db Database, replayBytes int64) (*protected, error) {
	store, err := db.Protected(ctx)
	if err != nil {
		return nil, err
	}
	engine, err := kakutei.New(store.Store(), kakutei.Options{
		ReplayMemoryBytes: replayBytes,
		// What goes wrong is an operation's error, and counted.
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return &protected{Protected: store, engine: engine}, nil
}

func (p *protected) close() error {
	return errors.Join(p.engine.Close(context.Background()), p.Close())
}

// once runs the operation of key through kakutei.Do and verifies its answer.
func (p *protected) once(ctx context.Context, key string, recovery kakutei.Recovery, work func(ctx context.Context) error) error {
	op := kakutei.Operation{Scope: scope, Key: key, Fingerprint: request}
	r, err := kakutei.Do(ctx, p.engine, op, kakutei.Policy{Recovery: recovery}, func(ctx context.Context) (receipt, error) {
		p.ran.Add(1)
		if work != nil {
			if err := work(ctx); err != nil {
				return receipt{}, err
			}
		}
		return receiptOf(key), nil
	})
	if err == nil && r != receiptOf(key) {
		err = errWrongResult
	}
	return err
}

func kakuteiFirst(db Database) func(context.Context, int) (*session, error) {
	return func(ctx context.Context, _ int) (*session, error) {
		p, err := openProtected(ctx, db, 0)
		if err != nil {
			return nil, err
		}
		return &session{
			do: func(ctx context.Context, caller, n int) error {
				return p.once(ctx, keyOf(caller, n), kakutei.Rerun, nil)
			},
			check: func(ctx context.Context, ok, failed int64) error {
				if ran := p.ran.Load(); ran < ok || ran > ok+failed {
					return fmt.Errorf("%d functions ran for %d operations and %d failures", ran, ok, failed)
				}
				return checkFirst(ctx, p.Counts, ok, failed)
			},
			close: p.close,
		}, nil
	}
}

func kakuteiReplay(db Database, replayBytes int64) func(context.Context, int) (*session, error) {
	return func(ctx context.Context, callers int) (*session, error) {
		p, err := openProtected(ctx, db, replayBytes)
		if err != nil {
			return nil, err
		}
		keys := replayKeys(callers)
		if err := each(keys, 64, func(key string) error { return p.once(ctx, key, kakutei.Rerun, nil) }); err != nil {
			return nil, errors.Join(err, p.close())
		}
		return &session{
			do: func(ctx context.Context, caller, n int) error {
				return p.once(ctx, keyOf(caller, n%keysEach), kakutei.Rerun, nil)
			},
			check: func(ctx context.Context, _, _ int64) error {
				if ran := p.ran.Load(); ran != int64(len(keys)) {
					return fmt.Errorf("%d functions ran for %d keys", ran, len(keys))
				}
				return checkReplay(ctx, p.Counts, len(keys))
			},
			close: p.close,
		}, nil
	}
}

func kakuteiBusiness(db Database) func(context.Context, int) (*session, error) {
	return func(ctx context.Context, _ int) (*session, error) {
		p, err := openProtected(ctx, db, 0)
		if err != nil {
			return nil, err
		}
		return &session{
			do: func(ctx context.Context, caller, n int) error {
				key := keyOf(caller, n)
				return p.once(ctx, key, kakutei.Transactional, func(ctx context.Context) error {
					return p.Business(ctx, key, accountOf(caller, n))
				})
			},
			check: func(ctx context.Context, ok, failed int64) error {
				c, err := checkBusiness(ctx, p.Counts, ok, failed)
				if err == nil && (c.Settled != c.Transfers || c.Live > failed) {
					err = fmt.Errorf("%d results and %d live keys for %d transfers", c.Settled, c.Live, c.Transfers)
				}
				return err
			},
			close: p.close,
		}, nil
	}
}

func checkFirst(ctx context.Context, counts func(context.Context) (Counts, error), ok, failed int64) error {
	c, err := counts(ctx)
	if err == nil && (c.Settled < ok || c.Settled+c.Live > ok+failed || c.Live > failed) {
		err = fmt.Errorf("%d results and %d live keys for %d operations and %d failures", c.Settled, c.Live, ok, failed)
	}
	return err
}

func checkReplay(ctx context.Context, counts func(context.Context) (Counts, error), keys int) error {
	c, err := counts(ctx)
	if err == nil && (c.Settled != int64(keys) || c.Live != 0) {
		err = fmt.Errorf("%d results and %d live keys for %d keys", c.Settled, c.Live, keys)
	}
	return err
}

func checkBusiness(ctx context.Context, counts func(context.Context) (Counts, error), ok, failed int64) (Counts, error) {
	c, err := counts(ctx)
	if err == nil && (c.Transfers != c.Spent || c.Transfers < ok || c.Transfers > ok+failed) {
		err = fmt.Errorf("%d transfers and %d spent for %d operations and %d failures", c.Transfers, c.Spent, ok, failed)
	}
	return c, err
}
