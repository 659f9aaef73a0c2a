package storetest

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/kakutei-go/kakutei"
)

// C13: results come back byte for byte.
func resultCases() []testCase {
	return []testCase{
		{title: "bodies", production: cases(23, 40), run: bodies},
		{title: "headers", production: cases(23, 39), run: headers},
		{title: "codes", production: cases(40), run: codes},
		{title: "omitted_bodies", production: cases(22), run: omittedBodies},
		{title: "large_body", production: cases(23), run: largeBody},
		{title: "kept_apart_from_the_caller", production: cases(28), run: keptApartFromTheCaller},
		{title: "only_success_has_a_result", run: onlySuccessHasAResult},
	}
}

// texts are what columns of text, JSON or a fixed character set do not keep, and
// what looks like nothing.
func texts() map[string][]byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return map[string][]byte{
		"nil": nil, "empty": {}, "null": []byte("null"), "zero": []byte("0"), "empty string": []byte(`""`), "empty list": []byte("[]"),
		"NUL": {0}, "NULs": {0, 0, 0}, "NUL inside": []byte("a\x00b"), "every byte": every, "not UTF-8": {0xff, 0xfe, 0xc0, 0x80},
		"half a rune": []byte("界")[:2], "surrogate": {0xed, 0xa0, 0x80}, "escapes": []byte(`\x00\u0000\\'"$1?%s`), "hex": []byte(`\xdeadbeef`),
		"space": []byte(" "), "spaces around": []byte("  a  \t\n"), "newlines": []byte("\r\n\n\r"), "BOM": []byte("\ufeff{}"),
		"order of members": []byte(`{"b":1,"a":2,"b":3}`), "number": []byte(`1e400`), "large number": []byte(`9007199254740993`), "JSON spaces": []byte("{ \"a\" :1 }\n"),
		"decomposed": []byte("e\u0301"), "NaN": []byte("NaN"), "true": []byte("true"),
	}
}

// roundTrip settles one operation for each result, in one batch, and reads each
// back in both ways on every handle.
func (h *harness) roundTrip(results map[string]kakutei.Result) {
	h.Helper()
	keys := make([]string, 0, len(results))
	for key := range results {
		keys = append(keys, key)
	}
	batch := make([]kakutei.Settlement, len(keys))
	for i, ref := range h.acquireAll(h.store, keys, "a", long) {
		batch[i] = kakutei.Settlement{Ref: ref, Status: kakutei.StatusSucceeded, Result: results[ref.Key]}
	}
	h.settleAll(h.store, batch)
	for _, s := range h.handles() {
		looked, err := h.tryLooks(s, h.idsOf(keys))
		if err != nil {
			h.Fatal(err)
		}
		for i, d := range h.claims(s, h.claimsOf(keys, "b", long)) {
			h.wantReplay(keys[i], d, results[keys[i]])
			if diff := resultDiff(looked[i].Record.Result, results[keys[i]]); looked[i].Err != nil || diff != "" {
				h.Errorf("%s, looked at: %v: %s", keys[i], looked[i].Err, diff)
			}
		}
	}
	for _, x := range batch { // alone, a result may take another way
		rec := h.look(h.other, x.ID)
		if diff := resultDiff(rec.Result, x.Result); rec.Status != kakutei.StatusSucceeded || diff != "" {
			h.Errorf("%s alone is %v: %s", x.Key, rec.Status, diff)
		}
	}
}

func bodies(h *harness) {
	results := make(map[string]kakutei.Result)
	for name, text := range texts() {
		results[name] = kakutei.Result{Code: 200, Header: []byte("h"), Body: text}
	}
	h.roundTrip(results)
}

func headers(h *harness) {
	results := make(map[string]kakutei.Result)
	for name, text := range texts() {
		results[name] = kakutei.Result{Code: 200, Header: text, Body: []byte("b")}
		results["same "+name] = kakutei.Result{Code: 200, Header: text, Body: text}
	}
	results["long header"] = kakutei.Result{Code: 200, Header: []byte(strings.Repeat("X: \x80\xff\r\n", 10_000))}
	h.roundTrip(results)
}

func codes(h *harness) {
	results := make(map[string]kakutei.Result)
	for _, code := range []int{0, 100, 200, 201, 202, 204, 303, 404, 409, 499, 500, 599} {
		results[fmt.Sprint(code)] = kakutei.Result{Code: code, Body: []byte(fmt.Sprint(code))}
	}
	results["nothing"] = kakutei.Result{}
	h.roundTrip(results)
}

func omittedBodies(h *harness) {
	h.roundTrip(map[string]kakutei.Result{
		"too-large": {Code: 200, Header: []byte("h"), Omitted: "too-large"},
		"hijacked":  {Omitted: "hijacked"},
		"kept":      {Code: 200, Body: []byte("b")},
	})
}

// largeBody: 4 MiB of random bytes, alone and with a neighbour.
func largeBody(h *harness) {
	random := h.random()
	large := func() []byte {
		b := make([]byte, 4<<20)
		for i := 0; i < len(b); i += 8 {
			for j, n := 0, random.Uint64(); j < 8; j++ {
				b[i+j] = byte(n >> (8 * j))
			}
		}
		return b
	}
	h.roundTrip(map[string]kakutei.Result{"alone": {Code: 200, Body: large()}})
	h.roundTrip(map[string]kakutei.Result{"first": {Code: 200, Body: large()}, "small": answer("small")})
}

// keptApartFromTheCaller: a store keeps what it was given at the call, not the
// caller's buffer, which a server uses again.
func keptApartFromTheCaller(h *harness) {
	res := kakutei.Result{Code: 200, Header: []byte("header"), Body: []byte("body")}
	want := kakutei.Result{Code: 200, Header: bytes.Clone(res.Header), Body: bytes.Clone(res.Body)}
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	h.settle(h.store, ref, kakutei.StatusSucceeded, res)
	for _, b := range [][]byte{res.Header, res.Body} {
		for i := range b {
			b[i] = '!'
		}
	}
	h.wantReplay("after the buffer was used again", h.claim(h.store, h.claimOf("key", "b", long)), want)
}

// onlySuccessHasAResult: what a failed or uncertain attempt said is no answer,
// and the success after it is not mixed up with it.
func onlySuccessHasAResult(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	h.settle(h.store, ref, kakutei.StatusFailed, answer("failed"))
	d := h.claim(h.store, h.claimOf("key", "b", long))
	h.wantDecision("after FAILED", d, kakutei.Acquired, 2)
	if diff := resultDiff(d.Result, kakutei.Result{}); diff != "" {
		h.Errorf("a claim that was acquired has a result: %s", diff)
	}
	ref = kakutei.Ref{ID: ref.ID, Owner: "b", Attempt: 2}
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("succeeded"))
	for _, s := range h.handles() {
		h.wantReplay("after SUCCEEDED", h.claim(s, h.claimOf("key", "c", long)), answer("succeeded"))
		h.wantRecord("after SUCCEEDED", ref, kakutei.StatusSucceeded)
	}
}
