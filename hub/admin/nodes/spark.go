package nodes

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/history"
)

// A spark is a line of how much of a resource was used in each of the last 24 full hours, from 0 to
// 100 %. A flat line is not drawn. Sparks are comparable.
type spark struct {
	Said string // in words; "": nothing is known
	Line string // a path
}

const sparkHeight = 12

// sparks draws the history of a node's figures that are shares of a whole.
func sparks(a *frame.Request, n *corev1.Node, all ...*spark) {
	if a.History == nil {
		return
	}
	const slots = int(time.Hour / history.Slot)
	begin := a.Now.Truncate(time.Hour).Add(-barHours * time.Hour)
	words := a.History(n.UID, begin, barHours*slots)
	for i, s := range all {
		if points, known := figures[i].points(words, slots); known > 0 {
			*s = figures[i].spark(points)
		}
	}
}

func (f figure) spark(points []point) (s spark) {
	var line strings.Builder
	total := gathered(points)
	at, open, low, high := 0, false, sparkHeight, 0
	for i, p := range points {
		y := sparkHeight - int(sparkHeight*min(max(p.mean/f.most, 0), 1)+.5)
		if p.n > 0 {
			low, high = min(low, y), max(high, y)
		}
		switch {
		case p.n == 0:
		case open:
			fmt.Fprintf(&line, "l%d %d", barStep, y-at)
		default:
			fmt.Fprintf(&line, "M%d %dh0", barStep*i+barStep/2, y)
		}
		at, open = y, p.n > 0
	}
	if high > low {
		s.Line = line.String()
	}
	s.Said = fmt.Sprintf("%s %s, last 24 hours: lowest %s, mean %s, highest %s", f.title, f.means, f.text(total.low),
		f.text(total.mean), f.text(total.up))
	return s
}
