package nodes

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/history"
)

func constant(figures map[history.Kind]float64) func(types.UID, time.Time, int) []history.Word {
	s := history.Nothing()
	for k, v := range figures {
		s[k] = v
	}
	return func(_ types.UID, _ time.Time, n int) []history.Word {
		return slices.Repeat([]history.Word{history.Pack(s)}, n)
	}
}

func chartRequest(span string, now time.Time,
	remembered func(types.UID, time.Time, int) []history.Word) *frame.Request {
	m := admintest.New(admintest.Node("pi-1", "oslo", nil))
	a := admintest.Ask(m.Snapshot(), now, map[string]string{"span": span})
	a.History = remembered
	return a
}

// drawn returns the points of each line of a path.
func drawn(t *testing.T, path string) (lines [][][2]int) {
	t.Helper()
	if rest := regexp.MustCompile(`M\d+ \d+|l-?\d+ -?\d+|[hv]-?\d+|z`).ReplaceAllString(path, ""); rest != "" {
		t.Fatalf("a path has %q", rest)
	}
	var x, y int
	for _, each := range regexp.MustCompile(`[Ml]-?\d+ -?\d+`).FindAllString(path, -1) {
		a, b, _ := strings.Cut(each[1:], " ")
		dx, _ := strconv.Atoi(a)
		dy, _ := strconv.Atoi(b)
		if each[0] == 'M' {
			lines, x, y = append(lines, nil), dx, dy
		} else {
			x, y = x+dx, y+dy
		}
		lines[len(lines)-1] = append(lines[len(lines)-1], [2]int{x, y})
	}
	return lines
}

func TestAGapIsNoLine(t *testing.T) {
	for _, span := range []string{"", "7d"} {
		c := chartsOf(chartRequest(span, admintest.Now, admintest.SampleHistory), "pi-1")
		if len(c.All) != 8 || !slices.Equal(c.Absent, []string{"supply voltage"}) {
			t.Fatalf("span %q: %d charts, absent %q", span, len(c.All), c.Absent)
		}
		for _, one := range c.All {
			lines := drawn(t, one.Line)
			want := 2
			if span == "7d" { // 40 minutes are less than a step
				want = 1
			}
			if len(lines) != want {
				t.Errorf("span %q: %s has %d lines", span, one.Title, len(lines))
			}
			for _, line := range lines {
				for i, p := range line {
					if p[0] < 0 || p[0] > chartWidth || p[1] < 0 || p[1] > chartHeight || i > 0 &&
						p[0]-line[i-1][0] != 2 {
						t.Fatalf("span %q: %s goes through %v", span, one.Title, p)
					}
				}
			}
			if one.Now == "" || !strings.Contains(one.Summary, "not known for") {
				t.Errorf("span %q: %s, %s", span, one.Now, one.Summary)
			}
			if (one.Title == "Temperature") != (one.Limit != "") {
				t.Errorf("span %q: a limit of %s: %q", span, one.Title, one.Limit)
			}
		}
	}
}

func TestAChartSaysWhatItShows(t *testing.T) {
	for _, c := range []struct {
		kind              history.Kind
		is                float64
		title, now, words string
		axis              string
	}{
		{history.CPU, .12, "CPU", "12 %", "always 12 %", "100 % 50 % 0 %"},
		{history.Temperature, 84, "Temperature", "84 °C", "always 84 °C", "100 °C 90 °C 80 °C"},
		{history.Temperature, -3, "Temperature", "-3 °C", "always -3 °C", "10 °C 0 °C -10 °C"},
		{history.Supply, 5.1, "Supply voltage", "5.11 V", "always 5.11 V", "5.50 V 5.25 V 5.00 V"},
		{history.Silence, 10.3, "Lease delay", "10 s", "always 10 s", "20 s 10 s 0 s"},
		{history.Silence, 1400, "Lease delay", "1374 s", "always 1374 s", "2000 s 1000 s 0 s"},
		{history.Losses, 0, "Leases lost", "0", "always 0", "4 2 0"},
		{history.RTT, .6, "Round trip", "", "always ", "1000 ms 500 ms 0 ms"},
		{history.Pods, 7, "Pods", "7", "always 7", "10 5 0"},
	} {
		got := chartsOf(chartRequest("", admintest.Now, constant(map[history.Kind]float64{c.kind: c.is})), "pi-1")
		if len(got.All) != 1 || len(got.Absent) != len(figures)-1 {
			t.Fatalf("%s: %+v", c.title, got)
		}
		if c.kind != history.CPU && got.Absent[0] != "CPU" {
			t.Errorf("%s: absent %q", c.title, got.Absent)
		}
		one := got.All[0]
		if one.Title != c.title || c.now != "" && one.Now != c.now || !strings.HasPrefix(one.Summary, c.words) ||
			strings.Join(one.Axis, " ") != c.axis {
			t.Errorf("%s %v: now %s, %s, axis %s", one.Title, c.is, one.Now, one.Summary, one.Axis)
		}
		if len(got.Rows) != chartRows || len(got.Rows[0].Cells) != 1 || len(drawn(t, one.Line)) != 1 || one.Band != "" {
			t.Errorf("%s: %d rows, %q, %q", one.Title, len(got.Rows), one.Line, one.Band)
		}
	}
}

// A chart without new samples changes once per step, so nothing flickers.
func TestAChartChangesOncePerStep(t *testing.T) {
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	word := history.Pack(history.Sample{history.CPU: .5})
	peak := noon.Add(-3 * time.Hour)
	remembered := func(_ types.UID, from time.Time, n int) []history.Word {
		words := make([]history.Word, n)
		for i := range words {
			if at := from.Add(time.Duration(i) * history.Slot); at.Before(noon) {
				words[i] = word
				if at.Equal(peak) {
					words[i] = history.Pack(history.Sample{history.CPU: 1})
				}
			}
		}
		return words
	}
	for span, step := range map[string]time.Duration{"": 10 * time.Minute, "7d": 70 * time.Minute} {
		begin := noon.Truncate(step).Add(step)
		was := chartsOf(chartRequest(span, begin, remembered), "pi-1").All[0]
		for after := time.Duration(0); after < 3*step; after += 61 * time.Second {
			is := chartsOf(chartRequest(span, begin.Add(after), remembered), "pi-1").All[0]
			if same := is.Line == was.Line; same != (after < step) {
				t.Errorf("span %q: after %s the line is unchanged: %v", span, after, same)
			}
			if !strings.Contains(is.Summary, "highest 100 % at") {
				t.Errorf("the summary lacks a peak of five minutes: %s", is.Summary)
			}
		}
	}
}

func TestANodeWithoutFigures(t *testing.T) {
	if c := chartsOf(chartRequest("", admintest.Now, nil), "pi-1"); !c.Off || len(c.All)+len(c.Absent) > 0 {
		t.Errorf("without a history: %+v", c)
	}
	if c := chartsOf(chartRequest("", admintest.Now, constant(nil)), "pi-1"); c.Off || len(c.All)+len(c.Absent)+
		len(c.Rows) > 0 {
		t.Errorf("before the first sample: %+v", c)
	}
	gone := chartRequest("", admintest.Now, admintest.SampleHistory)
	if c := chartsOf(gone, "nobody"); len(c.All) > 0 {
		t.Errorf("a node that does not exist: %+v", c)
	}
}

// Charts show the known time, not a whole day of which only minutes are known.
func TestChartsOpenOnWhatIsKnown(t *testing.T) {
	for known, want := range map[time.Duration]string{
		20 * time.Minute: "The last 1 h", 2 * time.Hour: "The last 6 h", 7 * time.Hour: "The last 24 h",
		40 * time.Hour: "The last 24 h",
	} {
		remembered := func(_ types.UID, from time.Time, n int) []history.Word {
			words := make([]history.Word, n)
			for i := range words {
				if at := from.Add(time.Duration(i) * history.Slot); !at.Before(admintest.Now.Add(-known)) &&
					at.Before(admintest.Now) {
					s := history.Nothing()
					s[history.CPU] = float64(i%2) / 2
					words[i] = history.Pack(s)
				}
			}
			return words
		}
		c := chartsOf(chartRequest("", admintest.Now, remembered), "pi-1")
		if c.Title != want || len(c.All) != 1 {
			t.Errorf("known for %s: %s, want %s", known, c.Title, want)
			continue
		}
		for _, line := range drawn(t, c.All[0].Line) {
			for _, p := range line {
				if p[0] < 0 || p[0] > chartWidth {
					t.Errorf("known for %s: it is drawn at %v", known, p)
				}
			}
		}
		if known == 20*time.Minute && (strings.Contains(c.All[0].Summary, "not known for 2") || len(c.Rows) != 12) {
			t.Errorf("an hour has %d rows; %s", len(c.Rows), c.All[0].Summary)
		}
	}
}
