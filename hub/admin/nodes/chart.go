package nodes

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/history"
)

// A figure is a kind of sample in people's units.
type figure struct {
	kind   history.Kind
	title  string
	unit   string  // unit of the axis
	times  float64 // converts a stored value to the unit
	digits int     // decimals
	worst  bool    // a step shows its highest value, not its mean
	from   float64 // where the axis begins; NaN: near the lowest
	least  float64 // the least span of the axis, in the unit
	most   float64 // where the axis ends; 0: near the highest
	limit  float64 // value of a horizontal line, drawn if it is in range; 0: none
	means  string  // an explanation, if the title needs one
}

// figures are in the order of the page.
var figures = []figure{
	{kind: history.CPU, title: "CPU", unit: "%", times: 100, most: 100, means: "of all processors"},
	{kind: history.Memory, title: "Memory", unit: "%", times: 100, most: 100, means: "in use"},
	{kind: history.Disk, title: "Disk", unit: "%", times: 100, most: 100, means: "in use, where containers are"},
	{kind: history.Temperature, title: "Temperature", unit: "°C", times: 1, from: math.NaN(), least: 20,
		limit: finding.HotCelsius, means: "of the hottest sensor; at 80 °C boards slow down"},
	{kind: history.Supply, title: "Supply voltage", unit: "V", times: 1, digits: 2, from: math.NaN(), least: .5},
	{kind: history.Silence, title: "Lease delay", unit: "s", times: 1, worst: true, least: 20,
		means: "longest between two signs of life"},
	{kind: history.Losses, title: "Leases lost", unit: "", times: 1, worst: true, least: 4,
		means: "of about 30 in 5 minutes"},
	{kind: history.RTT, title: "Round trip", unit: "ms", times: 1000, worst: true, least: 20,
		means: "from a status to its acknowledgement"},
	{kind: history.Pods, title: "Pods", unit: "", times: 1, least: 4, means: "placed here"},
}

// text writes a value with its unit.
func (f figure) text(v float64) string {
	s := strconv.FormatFloat(v, 'f', f.digits, 64)
	if f.unit == "" {
		return s
	}
	return s + " " + f.unit
}

// A point is one step of a chart, in the figure's unit; n 0: nothing is known.
type point struct {
	n             int
	low, mean, up float64
}

// A chart is one figure over time.
type chart struct {
	Title, Means string
	Now          string // the newest value; "": the present value is not known
	Summary      string
	Line, Band   string   // paths
	Limit        string   // a path; "": out of range
	Axis         []string // labels from the top
	Ticks        []string
}

// charts holds the charts of a node.
type charts struct {
	Title  string
	All    []chart
	Absent []string // titles of figures that the board does not have
	Ticks  []string
	Head   []string // number of rows of the table
	Rows   []chartRow
	Off    bool // the hub keeps no history
}

type chartRow struct {
	From  string
	Cells []string
}

const (
	chartSteps  = 144
	chartWidth  = 2 * chartSteps
	chartHeight = 96
	chartRows   = 24 // number of rows of the table
)

// chartsOf returns a node's charts over the last day or week. The window ends with the current step,
// so that a chart changes once per step.
func chartsOf(a *frame.Request, node string) charts {
	n := a.Node(node)
	c := charts{Off: a.History == nil}
	if n == nil || c.Off {
		return c
	}
	w := lookbackOf(a, measuredSince(a, n))
	if w.length > 7*24*time.Hour {
		w = lookbacks[3] // older figures are not kept
	}
	c.Title = "The last " + w.text
	slots := max(int(w.length/(chartSteps*history.Slot)), 1)
	step := time.Duration(slots) * history.Slot
	steps := int(w.length / step)
	end := a.Now.Truncate(step).Add(step)
	begin := end.Add(-w.length)
	words := a.History(n.UID, begin, steps*slots)
	for i := range 3 {
		c.Ticks = append(c.Ticks, begin.Add(time.Duration(i)*w.length/2).UTC().Format(w.scale))
	}
	c.Ticks[2] = "now"
	moment := func(i int) string {
		return strings.TrimSuffix(short(begin.Add(time.Duration(i)*step), w.length), ":00")
	}
	rows := min(chartRows, steps)
	cells := make([][]string, rows)
	for _, f := range figures {
		points, known := f.points(words, slots)
		if known == 0 {
			c.Absent = append(c.Absent, frame.InSentence(f.title))
			continue
		}
		one := f.draw(points)
		one.Ticks = c.Ticks
		one.Summary = f.summary(points, moment, step)
		if p := newestOf(points[steps-2:]); p.n > 0 {
			one.Now = f.text(f.of(p))
		}
		c.All = append(c.All, one)
		c.Head = append(c.Head, f.title)
		each := steps / rows
		for i := range cells {
			text := "–"
			if p := gathered(points[i*each : (i+1)*each]); p.n > 0 {
				text = f.text(f.of(p))
			}
			cells[i] = append(cells[i], text)
		}
	}
	if len(c.All) == 0 {
		c.Absent = nil
	}
	for i, row := range cells {
		if len(row) > 0 {
			c.Rows = append(c.Rows, chartRow{moment(i * steps / rows), row})
		}
	}
	return c
}

// measuredSince returns the time of the oldest known sample of the last day.
func measuredSince(a *frame.Request, n *corev1.Node) time.Time {
	const slots = int(24 * time.Hour / history.Slot)
	begin := a.Now.Truncate(history.Slot).Add(history.Slot - 24*time.Hour)
	for i, w := range a.History(n.UID, begin, slots) {
		for _, f := range figures {
			if _, ok := w.Value(f.kind); ok {
				return begin.Add(time.Duration(i) * history.Slot)
			}
		}
	}
	return a.Now
}

// points combines words into steps.
func (f figure) points(words []history.Word, slots int) (points []point, known int) {
	points = make([]point, len(words)/slots)
	for i := range points {
		var each []point
		for _, w := range words[i*slots : (i+1)*slots] {
			if v, ok := w.Value(f.kind); ok {
				v *= f.times
				each = append(each, point{1, v, v, v})
				known++
			}
		}
		points[i] = gathered(each)
	}
	return points, known
}

// gathered combines several points into one.
func gathered(all []point) (p point) {
	sum := 0.
	for _, x := range all {
		if x.n == 0 {
			continue
		}
		if p.n == 0 {
			p.low, p.up = x.low, x.up
		}
		p.low, p.up = min(p.low, x.low), max(p.up, x.up)
		p.n += x.n
		sum += x.mean * float64(x.n)
	}
	if p.n > 0 {
		p.mean = sum / float64(p.n)
	}
	return p
}

// newestOf returns the last known point.
func newestOf(points []point) (p point) {
	for _, x := range points {
		if x.n > 0 {
			p = x
		}
	}
	return p
}

// of returns the value that a point shows.
func (f figure) of(p point) float64 {
	if f.worst {
		return p.up
	}
	return p.mean
}

// summary describes a chart in words.
func (f figure) summary(points []point, moment func(int) string, step time.Duration) string {
	low, high, unknown := -1, -1, 0
	for i, p := range points {
		if p.n == 0 {
			unknown++
			continue
		}
		if low < 0 || p.low < points[low].low {
			low = i
		}
		if high < 0 || p.up > points[high].up {
			high = i
		}
	}
	text := fmt.Sprintf("%s at %s", f.text(points[high].up), moment(high))
	if least := f.text(points[low].low); least == f.text(points[high].up) {
		text = "always " + least
	} else {
		text = fmt.Sprintf("lowest %s at %s, highest %s", least, moment(low), text)
	}
	if unknown > 1 {
		text += fmt.Sprintf("; not known for %s", duration.HumanDuration(time.Duration(unknown)*step))
	}
	return text
}

// axis returns the range of the scale: round values around the data.
func (f figure) axis(points []point) (from, to float64) {
	if f.most > 0 {
		return f.from, f.most
	}
	low, high := math.Inf(1), math.Inf(-1)
	for _, p := range points {
		if p.n > 0 {
			low, high = min(low, p.low), max(high, p.up)
		}
	}
	if !math.IsNaN(f.from) {
		return f.from, f.from + 2*rounded(max(high-f.from, f.least)/2)
	}
	half := rounded(max(high-low, f.least) / 2)
	from = math.Floor(low/half) * half
	if from+2*half < high {
		half = rounded(half * 1.01)
		from = math.Floor(low/half) * half
	}
	return from, from + 2*half
}

// rounded rounds up to the next number of 1, 2, 5, 10, 20, 50 …
func rounded(v float64) float64 {
	ten := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 2.5, 5} {
		if m*ten >= v*.999999 {
			return m * ten
		}
	}
	return 10 * ten
}

// draw makes the paths: a line through the values, and around it the band from the lowest to the
// highest value of each step. Unknown steps stay empty.
func (f figure) draw(points []point) chart {
	from, to := f.axis(points)
	y := func(v float64) int {
		return chartHeight - int(math.Round(chartHeight*min(max((v-from)/(to-from), 0), 1)))
	}
	c := chart{Title: f.title, Means: f.means}
	wide := chartWidth / len(points) // of each step
	for i := range 3 {
		digits := f.digits
		if v := to - float64(i)*(to-from)/2; digits == 0 && v != math.Trunc(v) {
			digits = 1
		}
		text := strconv.FormatFloat(to-float64(i)*(to-from)/2, 'f', digits, 64)
		c.Axis = append(c.Axis, strings.TrimSpace(text+" "+f.unit))
	}
	if f.limit > from && f.limit < to {
		c.Limit = fmt.Sprintf("M0 %dh%d", y(f.limit), chartWidth)
	}
	var line, band strings.Builder
	for i := 0; i < len(points); i++ {
		if points[i].n == 0 {
			continue
		}
		first := i
		at := y(f.of(points[i]))
		fmt.Fprintf(&line, "M%d %d", wide*i+wide/2, at)
		for ; i+1 < len(points) && points[i+1].n > 0; i++ {
			next := y(f.of(points[i+1]))
			fmt.Fprintf(&line, "l%d %d", wide, next-at)
			at = next
		}
		if i == first {
			line.WriteString("h0") // a dot
		}
		f.area(&band, points[first:i+1], first, wide, y)
	}
	c.Line, c.Band = line.String(), band.String()
	return c
}

// area draws the band of a run of points, unless it is as thin as the line.
func (f figure) area(b *strings.Builder, run []point, first, step int, y func(float64) int) {
	wide := false
	for _, p := range run {
		wide = wide || y(p.low)-y(p.up) > 2
	}
	if !wide || f.worst {
		return
	}
	at := y(run[0].up)
	fmt.Fprintf(b, "M%d %d", step*first+step/2, at)
	for _, p := range run[1:] {
		fmt.Fprintf(b, "l%d %d", step, y(p.up)-at)
		at = y(p.up)
	}
	for i := len(run) - 1; i >= 0; i-- {
		if x := y(run[i].low); i == len(run)-1 {
			fmt.Fprintf(b, "v%d", x-at)
			at = x
		} else {
			fmt.Fprintf(b, "l-%d %d", step, x-at)
			at = x
		}
	}
	b.WriteString("z")
}
