package demo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Told is one answer that clients were given, at one point of a scenario.
type Told struct {
	When   string `json:"when"`
	Answer string `json:"answer"`
	Times  int    `json:"times"`
}

// story is what clients were told, from the beginning of a scenario to its end.
type story []Told

// add appends answers that came together, in the order of their status. Who was told the same again and again
// is told so in one entry.
func (s *story) add(when string, answers ...answer) {
	from := max(len(*s)-1, 0)
	answers = slices.Clone(answers)
	slices.SortStableFunc(answers, func(x, y answer) int { return cmp.Compare(x.status, y.status) })
	for _, a := range answers {
		i := from
		for i < len(*s) && ((*s)[i].When != when || (*s)[i].Answer != a.text) {
			i++
		}
		if i == len(*s) {
			*s = append(*s, Told{When: when, Answer: a.text})
		}
		(*s)[i].Times++
	}
}

// String tells the story in one line.
func (s story) String() string {
	var b strings.Builder
	for i, t := range s {
		switch {
		case i == 0:
			b.WriteString(t.When + ": ")
		case t.When != s[i-1].When:
			b.WriteString("; " + t.When + ": ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(t.Answer)
		if t.Times > 1 {
			fmt.Fprintf(&b, " ×%d", t.Times)
		}
	}
	return b.String()
}
