// Package diff compares texts line by line, for YAML and boot configurations on the page. It parses
// neither.
package diff

import (
	"fmt"
	"strings"
)

// A Hunk is a place where two texts differ, with the lines around it.
type Hunk struct {
	Head  string // @@ -1,4 +1,5 @@
	Lines []Line
}

// A Line is a line of one of two texts, or of both.
type Line struct {
	Sign string // " ", "+" or "-"
	Text string
}

const (
	around = 3    // equal lines shown around a difference
	maxOps = 1500 // differing lines; texts with more count as entirely different
)

// Of returns the differences between a and b; nil if they are equal.
func Of(a, b string) []Hunk {
	return hunks(edits(Lines(a), Lines(b)))
}

// Lines splits a text into lines.
func Lines(s string) []string {
	if s = strings.TrimSuffix(s, "\n"); s == "" {
		return nil
	}
	return strings.Split(s, "\n")
}

// edits returns the shortest edit script from a to b, by Myers ("An O(ND) Difference Algorithm and Its
// Variations", 1986), without their common beginning and end.
func edits(a, b []string) []Line {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var out []Line
	for _, l := range a[:head] {
		out = append(out, Line{" ", l})
	}
	out = append(out, shortest(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, l := range a[len(a)-tail:] {
		out = append(out, Line{" ", l})
	}
	return out
}

func shortest(a, b []string) []Line {
	n, m := len(a), len(b)
	most := min(n+m, maxOps)
	reach := make([]int, 2*most+2) // the furthest x of diagonal k, at k+most
	var trace [][]int
	for d := 0; d <= most; d++ {
		trace = append(trace, append([]int(nil), reach[most-d:most+d+2]...))
		for k := -d; k <= d; k += 2 {
			x := 0
			if down := k == -d || k != d && reach[most+k-1] < reach[most+k+1]; down && d > 0 {
				x = reach[most+k+1]
			} else if d > 0 {
				x = reach[most+k-1] + 1
			}
			for x < n && x-k < m && a[x] == b[x-k] {
				x++
			}
			if reach[most+k] = x; x >= n && x-k >= m {
				return walk(a, b, trace)
			}
		}
	}
	var out []Line // too many differences
	for _, l := range a {
		out = append(out, Line{"-", l})
	}
	for _, l := range b {
		out = append(out, Line{"+", l})
	}
	return out
}

// walk follows the found path backwards. trace[d] holds the reach of the diagonals -d to d+1 before
// step d.
func walk(a, b []string, trace [][]int) []Line {
	var back []Line
	x, y := len(a), len(b)
	for d := len(trace) - 1; d > 0; d-- {
		was := func(k int) int { return trace[d][k+d] }
		k := x - y
		from := k - 1
		if k == -d || k != d && was(k-1) < was(k+1) {
			from = k + 1
		}
		x0 := was(from) // where the step ended, before equal lines
		if from == k-1 {
			x0++
		}
		for x > x0 {
			x, y = x-1, y-1
			back = append(back, Line{" ", a[x]})
		}
		if from == k-1 {
			x--
			back = append(back, Line{"-", a[x]})
		} else {
			y--
			back = append(back, Line{"+", b[y]})
		}
	}
	for x > 0 && y > 0 {
		x, y = x-1, y-1
		back = append(back, Line{" ", a[x]})
	}
	for i, j := 0, len(back)-1; i < j; i, j = i+1, j-1 {
		back[i], back[j] = back[j], back[i]
	}
	return back
}

// hunks leaves out equal lines, except a few around differences.
func hunks(all []Line) (out []Hunk) {
	near := make([]bool, len(all))
	for i, l := range all {
		if l.Sign != " " {
			for j := max(0, i-around); j <= min(len(all)-1, i+around); j++ {
				near[j] = true
			}
		}
	}
	old, new := 1, 1
	for i := 0; i < len(all); {
		if !near[i] {
			old, new, i = old+1, new+1, i+1
			continue
		}
		var h Hunk
		a, b := old, new
		for ; i < len(all) && near[i]; i++ {
			h.Lines = append(h.Lines, all[i])
			if all[i].Sign != "+" {
				old++
			}
			if all[i].Sign != "-" {
				new++
			}
		}
		h.Head = fmt.Sprintf("@@ -%d,%d +%d,%d @@", a, old-a, b, new-b)
		out = append(out, h)
	}
	return out
}
