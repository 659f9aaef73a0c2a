package storetest

import (
	"fmt"
	"time"

	"github.com/kakutei-go/kakutei"
)

// snapshot is all that can be seen of a record.
type snapshot struct {
	rec  kakutei.Record
	err  error
	dump string
	// from and to enclose the moment of the look.
	from, to time.Time
}

func (h *harness) snapshot(id kakutei.ID) snapshot {
	var s snapshot
	s.from = time.Now()
	s.rec, s.err = h.tryLook(h.store, id)
	s.to = time.Now()
	if h.factory.Dump != nil {
		s.dump = h.factory.Dump(h.T, h.store, id)
	}
	return s
}

// diff says how a later snapshot differs.
func (s snapshot) diff(later snapshot) string {
	a, b := s.rec, later.rec
	switch {
	case (s.err == nil) != (later.err == nil):
		return fmt.Sprintf("looking at it answered %v, and now %v", s.err, later.err)
	case a.Status != b.Status:
		return fmt.Sprintf("it was %v and is %v", a.Status, b.Status)
	case a.Attempt != b.Attempt || a.Owner != b.Owner:
		return fmt.Sprintf("it was held by %q, attempt %d, and is by %q, attempt %d", a.Owner, a.Attempt, b.Owner, b.Attempt)
	case a.Fingerprint != b.Fingerprint:
		return "its fingerprint is another"
	case s.dump != later.dump:
		return fmt.Sprintf("the database held\n\t%s\nand holds\n\t%s", s.dump, later.dump)
	}
	if d := resultDiff(b.Result, a.Result); d != "" {
		return "its result has changed: " + d
	}
	if a.Status != kakutei.StatusProcessing {
		return ""
	}
	// A lease that was neither extended nor cut has lost just the time that has
	// gone by between the two looks.
	const rounding = 50 * time.Millisecond
	gone := a.Left - b.Left
	if least, most := later.from.Sub(s.to)-rounding, later.to.Sub(s.from)+rounding; gone < least || gone > most {
		return fmt.Sprintf("%v of its lease were left, and %v after %v", a.Left, b.Left, later.from.Sub(s.to))
	}
	return ""
}

// keeps runs f, which is to leave the record of id as it is.
func (h *harness) keeps(what string, id kakutei.ID, f func()) {
	h.Helper()
	before := h.snapshot(id)
	f()
	if d := before.diff(h.snapshot(id)); d != "" {
		h.Errorf("%s changed the record: %s", what, d)
	}
}
