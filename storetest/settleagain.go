package storetest

import (
	"fmt"

	"github.com/kakutei-go/kakutei"
)

// C11: settling again, alike, by the same owner and attempt is a success
// without effect. It is what lets a settlement whose reply was lost be sent again.
func settleAgainCases() []testCase {
	return []testCase{
		{title: "alike_is_a_success", production: cases(25, 27), run: alikeIsASuccess},
		{title: "sent_twice_at_once", production: cases(25), run: sentTwiceAtOnce},
		{title: "otherwise_is_refused", run: otherwiseIsRefused},
		{title: "first_result_stands", run: firstResultStands},
		{title: "alike_by_another_is_refused", production: cases(15), run: alikeByAnotherIsRefused},
	}
}

func alikeIsASuccess(h *harness) {
	for _, status := range endings() {
		for _, lease := range []struct {
			name string
			make func(key, owner string) kakutei.Ref
		}{
			{"live", func(key, owner string) kakutei.Ref { return h.acquire(h.store, h.claimOf(key, owner, long)) }},
			{"expired", h.expired},
		} {
			ref := lease.make(status.String()+" "+lease.name, "a")
			h.settle(h.store, ref, status, answer("a"))
			h.keeps("the same settlement again", ref.ID, func() {
				for range 2 {
					for _, s := range h.handles() {
						h.settle(s, ref, status, answer("a"))
					}
				}
			})
			h.wantRecord("settled again and again", ref, status)
		}
	}
}

// sentTwiceAtOnce: a sender that gave up may overtake its own first sending. In
// a batch with others, too.
func sentTwiceAtOnce(h *harness) {
	random := h.random()
	h.repeat(5, func(round int) {
		for _, status := range endings() {
			keys := keysOf(fmt.Sprintf("%v-%d", status, round), 4)
			batch := make([]kakutei.Settlement, len(keys))
			for i, ref := range h.acquireAll(h.store, keys, "a", long) {
				batch[i] = kakutei.Settlement{Ref: ref, Status: status, Result: answer(ref.Key)}
			}
			orders := make([][]kakutei.Settlement, 6)
			for i := range orders {
				orders[i] = shuffled(random, batch)
			}
			together(len(orders), func(i int) {
				errs, err := h.trySettles(h.handle(i), orders[i])
				for _, err := range append(errs, err) {
					if err != nil {
						h.Errorf("sending %d as %v: %v", i, status, err)
					}
				}
			})
			for _, x := range batch {
				h.wantRecord("sent six times", x.Ref, status)
			}
		}
	})
}

func otherwiseIsRefused(h *harness) {
	for _, first := range endings() {
		ref := h.acquire(h.store, h.claimOf(first.String(), "a", long))
		h.settle(h.store, ref, first, answer("first"))
		for _, second := range endings() {
			if second == first {
				continue
			}
			h.keeps(fmt.Sprintf("%v, then %v,", first, second), ref.ID, func() {
				for _, s := range h.handles() {
					h.wantLost(fmt.Sprintf("%v, then %v", first, second), h.trySettle(s, ref, second, answer("second")))
				}
			})
		}
	}
}

// firstResultStands: what clients may have seen already does not change, even if
// the same attempt says something else later. Whether it is told so is open.
func firstResultStands(h *harness) {
	ref := h.acquire(h.store, h.claimOf("key", "a", long))
	h.settle(h.store, ref, kakutei.StatusSucceeded, answer("first"))
	h.keeps("another result", ref.ID, func() {
		for _, s := range h.handles() {
			for _, second := range []kakutei.Result{answer("second"), {}} {
				if err := h.trySettle(s, ref, kakutei.StatusSucceeded, second); err != nil {
					h.wantLost("another result", err)
				}
			}
		}
	})
	h.wantReplay("at the end", h.claim(h.other, h.claimOf("key", "b", long)), answer("first"))
}

// alikeByAnotherIsRefused: that somebody has settled so is no answer to one who
// has not.
func alikeByAnotherIsRefused(h *harness) {
	for _, status := range endings() {
		ref := h.acquire(h.store, h.claimOf(status.String(), "a", long))
		h.settle(h.store, ref, status, answer("a"))
		otherOwner, otherAttempt := ref, ref
		otherOwner.Owner, otherAttempt.Attempt = "b", 2
		h.keeps("a stranger", ref.ID, func() {
			for _, s := range h.handles() {
				h.wantLost(status.String()+" by another owner", h.trySettle(s, otherOwner, status, answer("a")))
				h.wantLost(status.String()+" by another attempt", h.trySettle(s, otherAttempt, status, answer("a")))
			}
		})
	}
}
