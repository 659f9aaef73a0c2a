package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what was measured. Its JSON is for machines.
type Report struct {
	Machine      Machine       `json:"machine"`
	Rounds       int           `json:"rounds"`
	Seconds      float64       `json:"seconds_each"`
	Measurements []Measurement `json:"measurements"`
}

// Machine is what it was measured on.
type Machine struct {
	Database string `json:"database"`
	Platform string `json:"platform"`
	CPUs     int    `json:"cpus"`
	Go       string `json:"go"`
	// SyncMicros is the median time to make a page durable on the disk.
	SyncMicros float64 `json:"sync_us,omitempty"`
}

// String returns it in one line.
func (m Machine) String() string {
	s := fmt.Sprintf("%s; %s, %s, %s", m.Database, m.Platform, count(m.CPUs, "CPU"), m.Go)
	if m.SyncMicros > 0 {
		s += fmt.Sprintf("; a page is durable after %s", duration(m.SyncMicros))
	}
	return s
}

// Measurement is one case at one number of callers.
type Measurement struct {
	Case    string `json:"case"`
	Title   string `json:"title"`
	Callers int    `json:"callers"`
	Sides   []Side `json:"sides"`
}

// Side is what one side did. Numbers without a list are medians of the rounds.
type Side struct {
	Name      string  `json:"name"`
	PerSecond float64 `json:"per_second"`
	P50Micros float64 `json:"p50_us"`
	P99Micros float64 `json:"p99_us"`
	// MaxMicros is the longest of all rounds.
	MaxMicros float64   `json:"max_us"`
	Rounds    []float64 `json:"per_second_by_round"`
	// Ratio compares the rate with the first side's in the same round.
	Ratio       float64   `json:"ratio"`
	RatioRounds []float64 `json:"ratio_by_round"`
	// Operations and Errors are of all rounds, with what warmed up.
	Operations int64  `json:"operations"`
	Errors     int64  `json:"errors"`
	FirstError string `json:"first_error,omitempty"`
	// Wrong is what the database held that it should not.
	Wrong string `json:"wrong,omitempty"`

	kakutei bool
}

// Failed tells that a side did something wrong, or that Kakutei had errors. The
// errors of the plain way are a result like others.
func (r *Report) Failed() bool {
	for _, m := range r.Measurements {
		for _, s := range m.Sides {
			if s.Wrong != "" || s.kakutei && s.Errors > 0 {
				return true
			}
		}
	}
	return false
}

func summarize(c benchCase, callers int, sides []side, results [][]turn) Measurement {
	m := Measurement{Case: c.name, Title: c.title, Callers: callers}
	for i, turns := range results {
		s := Side{Name: sides[i].name, kakutei: sides[i].kakutei}
		var p50, p99 []float64
		for round, t := range turns {
			s.Rounds = append(s.Rounds, t.perSecond)
			if base := results[0][round].perSecond; base > 0 {
				s.RatioRounds = append(s.RatioRounds, t.perSecond/base)
			}
			p50 = append(p50, micros(t.latency.quantile(0.50)))
			p99 = append(p99, micros(t.latency.quantile(0.99)))
			s.MaxMicros = max(s.MaxMicros, micros(t.latency.max))
			s.Operations += t.total
			s.Errors += t.errors
			if s.FirstError == "" && t.firstError != nil {
				s.FirstError = t.firstError.Error()
			}
			if s.Wrong == "" {
				s.Wrong = t.wrong
			}
		}
		s.PerSecond, s.P50Micros, s.P99Micros, s.Ratio = median(s.Rounds), median(p50), median(p99), median(s.RatioRounds)
		m.Sides = append(m.Sides, s)
	}
	return m
}

// line is the measurement in short, for the progress.
func (m Measurement) line() string {
	parts := make([]string, len(m.Sides))
	for i, s := range m.Sides {
		parts[i] = fmt.Sprintf("%s %s/s", s.Name, thousands(s.PerSecond))
		if i > 0 {
			parts[i] += fmt.Sprintf(" (×%.2f)", s.Ratio)
		}
	}
	return fmt.Sprintf("%s, %s: %s", m.Case, count(m.Callers, "caller"), strings.Join(parts, ", "))
}

// WriteJSON writes v for machines.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	fmt.Fprintf(w, "%s\n", r.Machine)
	fmt.Fprintf(w, "%s of %gs for each side, in turn; medians. ×: the median, and the range, of the ratios within each round.\n",
		count(r.Rounds, "round"), r.Seconds)
	var notes []string
	for i, m := range r.Measurements {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		if i == 0 || r.Measurements[i-1].Case != m.Case {
			fmt.Fprintf(w, "\n%s\n", m.Title)
		}
		fmt.Fprintf(t, "%s\tper second\tp50\tp99\tlongest\t× %s\trange\terrors\t\n", count(m.Callers, "caller"), m.Sides[0].Name)
		for i, s := range m.Sides {
			ratio, span := "", ""
			if i > 0 && len(s.RatioRounds) > 0 {
				ratio = fmt.Sprintf("%.2f", s.Ratio)
				span = fmt.Sprintf("%.2f–%.2f", slices.Min(s.RatioRounds), slices.Max(s.RatioRounds))
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n", s.Name, thousands(s.PerSecond),
				duration(s.P50Micros), duration(s.P99Micros), duration(s.MaxMicros), ratio, span, s.Errors)
			if s.Errors > 0 {
				notes = append(notes, fmt.Sprintf("%s, %s, %s: %d errors for %d operations, the first: %s",
					m.Case, count(m.Callers, "caller"), s.Name, s.Errors, s.Operations, s.FirstError))
			}
			if s.Wrong != "" {
				notes = append(notes, fmt.Sprintf("%s, %s, %s: WRONG: %s", m.Case, count(m.Callers, "caller"), s.Name, s.Wrong))
			}
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(notes) == 0 {
		notes = []string{"no errors; the databases held what was done"}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(notes, "\n"))
	return err
}

// median returns the middle of xs, 0 if there are none.
func median(xs []float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(xs))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// duration writes microseconds with three digits.
func duration(us float64) string {
	switch {
	case us <= 0:
		return "–"
	case us < 1000:
		return fmt.Sprintf("%.3g µs", us)
	case us < 999_500:
		return fmt.Sprintf("%.3g ms", us/1000)
	}
	return fmt.Sprintf("%.3g s", us/1e6)
}

// thousands writes a count with separators.
func thousands(x float64) string {
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
