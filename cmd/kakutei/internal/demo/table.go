package demo

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Print writes the report for people. Colour is for terminals.
func (r Report) Print(w io.Writer, colour bool) error {
	var b strings.Builder
	paint := painter(colour)
	r.table(&b, paint)
	r.told(&b)
	b.WriteString("\n" + wrap(r.explanation(), 80) + "\n")
	for _, problem := range r.Problems {
		b.WriteString("\n" + paint(red, "PROBLEM") + " " + problem + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

const (
	red   = "31;1"
	green = "32"
)

func painter(colour bool) func(code, text string) string {
	if !colour {
		return func(_, text string) string { return text }
	}
	return func(code, text string) string { return "\x1b[" + code + "m" + text + "\x1b[0m" }
}

// table writes how much was charged.
func (r Report) table(b *strings.Builder, paint func(code, text string) string) {
	const titleWidth, cellWidth = 38, 13
	b.WriteString("Charges in the ledger of the payment provider, for one order each\n\n")
	for line, last := range [2]string{"right", ""} {
		heading := pad("", titleWidth)
		for _, l := range layers() {
			heading += pad(l.heading[line], cellWidth)
		}
		b.WriteString(strings.TrimRight(heading+last, " ") + "\n")
	}
	for i, row := range r.Scenarios {
		b.WriteString(pad(fmt.Sprintf("%d %s", i+1, row.Title), titleWidth))
		for _, c := range row.Cells {
			code := green
			if c.Double || c.Problem != "" {
				code = red
			}
			text := c.text()
			b.WriteString(paint(code, text) + pad("", cellWidth-utf8.RuneCountInString(text)))
		}
		fmt.Fprintf(b, "%d\n", row.Right)
	}
}

// text is what the table says.
func (c Cell) text() string {
	text := fmt.Sprint(c.Charges)
	switch {
	case c.Problem != "" && !c.FaultSeen:
		text += " NO FAULT"
	case c.Double:
		text += " DOUBLE"
	case c.Problem != "":
		text += " BROKEN"
	case c.Held:
		text += " held"
	}
	return text
}

// told writes what the clients heard.
func (r Report) told(b *strings.Builder) {
	b.WriteString("\nWhat the clients were told\n")
	for i, row := range r.Scenarios {
		fmt.Fprintf(b, "\n%d %s\n", i+1, row.Title)
		for _, c := range row.Cells {
			b.WriteString(pad("", 2) + pad(c.layer.title, 22) + c.Told.String() + "\n")
		}
	}
}

// explanation says what was seen, as it was seen.
func (r Report) explanation() string {
	type sum struct{ charges, doubles int }
	sums := make(map[string]sum)
	for _, row := range r.Scenarios {
		for _, c := range row.Cells {
			s := sums[c.Layer]
			s.charges += c.Charges
			if c.Double {
				s.doubles++
			}
			sums[c.Layer] = s
		}
	}
	orders := len(r.Scenarios)
	var text strings.Builder
	fmt.Fprintf(&text, "The naive layer looks for a stored response, runs the handler if there is none, and stores what it answered. "+
		"In between nobody owns the order, so it charged more than once in %d of %d situations: %d charges for %d orders. ",
		sums[layerNaive].doubles, orders, sums[layerNaive].charges, orders)
	if doubles := sums[layerHold].doubles + sums[layerRelay].doubles; doubles > 0 {
		fmt.Fprintf(&text, "KAKUTEI CHARGED MORE THAN ONCE in %d: that must not happen. ", doubles)
	} else {
		text.WriteString("Kakutei claims the order in its store before anything runs, and charged nothing twice. ")
	}
	text.WriteString("Whether a server that died had charged, no store can know, so the shop chooses. " +
		"Hold: the order is not run again before somebody has looked, as where the table says \"held\" (at most one charge). " +
		"Rerun, with the key relayed: it runs again, and the provider knows the charge by its key (exactly one). " +
		"Such a provider would help the naive shop, too, if that relayed its keys. " +
		"How each fault showed is in the output of --json. Read on in docs/guarantees.md.")
	return text.String()
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
}

// wrap breaks text into lines of at most width runes.
func wrap(text string, width int) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
		case column+1+n > width:
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
