package storetest

import (
	"strings"

	"github.com/kakutei-go/kakutei"
)

// C3, first half: scope and key are compared byte for byte.
func identityCases() []testCase {
	return []testCase{
		{title: "pairs_are_not_joined", production: cases(10), run: pairsAreNotJoined},
		{title: "keys_are_bytes", production: cases(10), run: keysAreBytes},
		{title: "scopes_are_bytes", production: cases(10, 37), run: scopesAreBytes},
		{title: "longest_scope_and_key", production: cases(10), run: longestScopeAndKey},
		{title: "tenants_are_apart", production: cases(37), run: tenantsAreApart},
	}
}

// apart checks that all of the IDs are different operations: each is acquired
// in one batch with the others, settled with a result of its own, and found
// again by both handles.
func (h *harness) apart(ids []kakutei.ID) {
	h.Helper()
	claims := make([]kakutei.Claim, len(ids))
	settlements := make([]kakutei.Settlement, len(ids))
	for i, id := range ids {
		claims[i] = h.claimOf("", "a", long)
		claims[i].Scope, claims[i].Key = id.Scope, id.Key
		// One request for all: nothing but the identity tells them apart.
		claims[i].Fingerprint = kakutei.FingerprintOf([]byte("one request"))
		settlements[i] = kakutei.Settlement{
			Ref:    kakutei.Ref{ID: id, Owner: "a", Attempt: 1},
			Status: kakutei.StatusSucceeded, Result: answer(id.Scope + "\n" + id.Key),
		}
	}
	for i, d := range h.claims(h.store, claims) {
		if d.Err != nil || d.Outcome != kakutei.Acquired || d.Attempt != 1 {
			h.Errorf("%q: %v, attempt %d (%v); want acquired, attempt 1", ids[i], d.Outcome, d.Attempt, d.Err)
		}
	}
	if h.Failed() {
		return
	}
	h.settleAll(h.store, settlements)
	for _, s := range h.handles() {
		looked, err := h.tryLooks(s, ids)
		if err != nil {
			h.Fatal(err)
		}
		for i, d := range h.claims(s, claims) {
			if diff := resultDiff(d.Result, settlements[i].Result); d.Outcome != kakutei.Replay || diff != "" {
				h.Errorf("%q: %v: %s", ids[i], d.Outcome, diff)
			}
			if diff := resultDiff(looked[i].Record.Result, settlements[i].Result); looked[i].Err != nil || diff != "" {
				h.Errorf("%q: looked at: %v: %s", ids[i], looked[i].Err, diff)
			}
		}
	}
}

func (h *harness) idsOf(keys []string) []kakutei.ID {
	ids := make([]kakutei.ID, len(keys))
	for i, key := range keys {
		ids[i] = h.id(key)
	}
	return ids
}

// pairsAreNotJoined: a store that joins scope and key with any separator takes
// some of these for the same.
func pairsAreNotJoined(h *harness) {
	var ids []kakutei.ID
	for _, sep := range []string{":", "/", "|", " ", "-", "_", ",", ";", "\\", "'", "\"", "\u2028"} {
		left, right := "a", "b"+sep+"c"
		if sep > "~" { // not in a key
			right = "bc"
		}
		ids = append(ids,
			kakutei.ID{Scope: h.scope + left, Key: right},
			kakutei.ID{Scope: h.scope + left + sep + "b", Key: "c"})
	}
	ids = append(ids,
		kakutei.ID{Scope: h.scope + "x", Key: "yz"},
		kakutei.ID{Scope: h.scope + "xy", Key: "z"},
		kakutei.ID{Scope: h.scope + "p", Key: "q"},
		kakutei.ID{Scope: h.scope + "q", Key: "p"})
	h.apart(ids)
}

// keysAreBytes: every printable character alone, and the texts that collations,
// column affinities, patterns and quoting take for something else.
func keysAreBytes(h *harness) {
	var keys []string
	var all strings.Builder
	for c := byte(0x20); c < 0x7f; c++ {
		keys = append(keys, string(rune(c)))
		all.WriteByte(c)
	}
	keys = append(keys, all.String(),
		"Ab", "aB", "AB", "ab", "a ", " a", "a  ", "  ", // case and padding
		"01", "1.0", "1e0", "+1", " 1", "1 ", "0x1", "1e3", "1000", "1000.0", // numbers
		"true", "TRUE", "null", "NULL", "NaN", "inf", "9007199254740992", "9007199254740993",
		"a%", "a_", "a?", "a*", "a[b]", "%%", "__", // patterns
		"\\\\", "''", "\"\"", "\\'", "\\0", "\\n", "--", "/*", "$1", ":a", "@a", "{}", // quoting
		"2026-01-01", "2026-01-01 00:00:00", // dates
	)
	h.apart(h.idsOf(keys))
}

// scopesAreBytes: a scope is UTF-8, where more than case can be folded.
func scopesAreBytes(h *harness) {
	var ids []kakutei.ID
	for _, scope := range []string{
		"", " ", "tenant", "Tenant", "tenant ", " tenant", "tenant  ",
		"テナント", "ﾃﾅﾝﾄ", "てなんと", "はは", "ハハ", "ぱぱ", "ばば", // width, kana, voice marks
		"\u00e9", "e\u0301", "e", "E", "\u00c9", // composed, decomposed, bare
		"straße", "strasse", "STRASSE", "ſ", "s", // expansions
		"i", "I", "ı", "İ", // Turkish
		"😀", "😁", "🏳️", "🏳", // beyond the basic plane, variation selectors
		"ab", "a\u200bb", "a\u00adb", "a\u00a0b", "a b", // what is not seen
		"1", "01", "1.0", "a%b", "a_b", "a\\b", "a'b", "a\"b", "\u0085", "\ufeff", "\ufffd", "\uffff", "\U0010ffff",
	} {
		ids = append(ids, kakutei.ID{Scope: h.scope + "/" + scope, Key: "key"})
	}
	h.apart(ids)
}

// longestScopeAndKey: the longest ones are kept whole. An index over a prefix
// takes those that differ at the end for the same.
func longestScopeAndKey(h *harness) {
	fill := func(prefix, with, last string, bytes int) string {
		n := bytes - len(prefix) - len(last)
		s := strings.Repeat(with, n/len(with))
		return prefix + s + strings.Repeat("x", n-len(s)) + last
	}
	scopes := []string{
		fill(h.scope, "s", "", kakutei.MaxScopeBytes),
		fill(h.scope, "s", "t", kakutei.MaxScopeBytes),
		fill(h.scope, "s", "", kakutei.MaxScopeBytes-1),
		fill(h.scope, "界", "", kakutei.MaxScopeBytes),
		fill(h.scope, "界", "t", kakutei.MaxScopeBytes),
		fill(h.scope, "😀", "", kakutei.MaxScopeBytes),
	}
	keys := []string{
		fill("", "k", "", kakutei.MaxKeyBytes),
		fill("", "k", "l", kakutei.MaxKeyBytes),
		fill("", "k", " ", kakutei.MaxKeyBytes),
		fill("", "k", "", kakutei.MaxKeyBytes-1),
	}
	var ids []kakutei.ID
	for _, scope := range scopes {
		for _, key := range keys {
			ids = append(ids, kakutei.ID{Scope: scope, Key: key})
		}
	}
	h.apart(ids)
}

// tenantsAreApart: another tenant's key blocks nothing, shows nothing, and
// cannot be written to.
func tenantsAreApart(h *harness) {
	mine := h.claimOf("key", "a", long)
	theirs := mine
	theirs.Scope += "/tenant-2"
	ref := h.acquire(h.store, mine)
	if rec := h.look(h.store, theirs.ID()); rec.Status != kakutei.StatusNone {
		h.Errorf("the other tenant sees %v", rec.Status)
	}
	stranger := ref
	stranger.Scope = theirs.Scope
	h.keeps("another tenant", ref.ID, func() {
		h.wantLost("renewal", h.tryRenew(h.store, stranger, 2*long))
		h.wantLost("settlement", h.trySettle(h.store, stranger, kakutei.StatusSucceeded, answer("theirs")))
	})
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("mine"))
	h.wantDecision("the other tenant's claim", h.claim(h.other, theirs), kakutei.Acquired, 1)
	h.wantReplay("the same tenant's claim", h.claim(h.other, mine), answer("mine"))
}
