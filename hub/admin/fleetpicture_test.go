package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// silent makes so many of a fleet's nodes dark, and a few of the others something else.
func silent(m *memory, dark int) *memory {
	var changes []state.Change
	i := 0
	for n := range m.s.Nodes() {
		n = n.DeepCopy()
		switch {
		case i < dark:
			condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")(n)
		case i%41 == 0:
			condition("Ready", "False", "KubeletNotReady", "the engine does not answer")(n)
		case i%37 == 0:
			condition("PowerOK", "False", "UnderVoltage", "the supply voltage is too low now")(n)
		case i%31 == 0:
			n.Spec.Unschedulable = true
		}
		i++
		changes = append(changes, state.Put(n, ""))
	}
	m.s, _ = state.Apply(m.s, changes)
	return m
}

func pictureRequest(m *memory) *request {
	s := New(configOf(m))
	return &request{Snapshot: m.Snapshot(), now: now0, query: func(string) string { return "" }, may: func(string, string) bool { return true }, jobs: s.jobs, actions: s.actions, liveness: s.Liveness}
}

var run = regexp.MustCompile(`M(\d+) (\d+)h(\d+)`)

// marked reads a block: the class of each mark, in order.
func marked(t *testing.T, b block) []string {
	t.Helper()
	at := map[int]string{}
	for _, p := range b.Paths {
		if rest := run.ReplaceAllString(p.D, ""); rest != "" {
			t.Fatalf("a path has %q", rest)
		}
		for _, m := range run.FindAllStringSubmatch(p.D, -1) {
			x, _ := strconv.Atoi(m[1])
			y, _ := strconv.Atoi(m[2])
			w, _ := strconv.Atoi(m[3])
			if x+w > b.Wide || y > b.High || w%cell != 0 {
				t.Fatalf("a run of %v lies outside of %d x %d", m, b.Wide, b.High)
			}
			for ; w > 0; x, w = x+cell, w-cell {
				i := y/cell*perLine + x/cell
				if at[i] != "" {
					t.Fatalf("mark %d is drawn twice", i)
				}
				at[i] = p.Class
			}
		}
	}
	all := make([]string, len(at))
	for i := range all {
		if all[i] = at[i]; all[i] == "" {
			t.Fatalf("there are %d marks, but not number %d", len(at), i)
		}
	}
	return all
}

func TestEveryNodeHasItsMark(t *testing.T) {
	for _, c := range []struct{ nodes, dark int }{{1, 0}, {45, 10}, {999, 400}, {2001, 2001}} {
		m := silent(manyNodes(c.nodes), c.dark)
		f := pictureOf(pictureRequest(m))
		if f.Nodes != c.nodes || f.Few != (c.nodes <= fewNodes) {
			t.Errorf("%d nodes: %d, few: %v", c.nodes, f.Nodes, f.Few)
		}
		drawn, keys := 0, map[string]int{}
		for _, s := range f.Sites {
			want := slices.Collect(m.s.NodesIn(s.Name))
			i := 0
			for _, b := range s.Blocks {
				if b.First != i || !strings.HasSuffix(b.Href, fmt.Sprintf("&page=%d", i/100+1)) {
					t.Errorf("a block begins with %d at %s, want %d", b.First, b.Href, i)
				}
				for j, class := range marked(t, b) {
					if is := marks[lookOf(want[i])].Class; class != is {
						t.Fatalf("%s of %s is drawn as %s, want %s", want[i].Name, s.Name, class, is)
					}
					if f.Few && (b.Links[j].Href != nodeHref(want[i].Name) || b.Links[j].X != j%10*cell || b.Links[j].Y != j/10*cell) {
						t.Errorf("mark %d of %s leads to %+v", j, s.Name, b.Links[j])
					}
					keys[class]++
					i++
				}
			}
			if i != s.Nodes || i != len(want) {
				t.Errorf("site %s has %d marks, want %d", s.Name, i, len(want))
			}
			drawn += i
		}
		if drawn != c.nodes {
			t.Errorf("%d of %d nodes are drawn", drawn, c.nodes)
		}
		for _, k := range f.Keys {
			if k.Count != keys[k.Class] {
				t.Errorf("the key says %+v, drawn are %d", k, keys[k.Class])
			}
		}
	}
}

// Of more sites than can be drawn those with trouble are, in the order of their names;
// the others are counted.
func TestOfManySitesThoseWithTroubleAreDrawn(t *testing.T) {
	var objects []state.Change
	for i := range 300 {
		var change func(*corev1.Node)
		if i%10 == 3 {
			change = condition("Ready", "False", "KubeletNotReady", "x")
		}
		objects = append(objects, state.Put(testNode(fmt.Sprintf("n%03d", i), fmt.Sprintf("s%03d", i), change), ""))
	}
	m := newMemory()
	m.s, _ = state.Apply(m.s, objects)
	f := pictureOf(pictureRequest(m))
	bad, names := 0, []string{}
	for _, s := range f.Sites {
		bad += s.Counts[markBad]
		names = append(names, s.Name)
	}
	if len(f.Sites) != shownSites || bad != 30 || f.Rest != 240 || f.RestNodes != 240 || f.RestReady != 240 || !slices.IsSorted(names) {
		t.Errorf("%d sites, %d bad, rest %d with %d nodes, %d ready: %s", len(f.Sites), bad, f.Rest, f.RestNodes, f.RestReady, names)
	}
}

func TestAMarkLeadsToItsNode(t *testing.T) {
	srv := start(t, configOf(manyNodes(300)))
	srv.Client().CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	for query, want := range map[string]string{
		"site=site-3&at=0": "/nodes/node-0003", "site=site-3&at=14": "/nodes/node-0283", "site=site-3&at=15": "/nodes?site=site-3",
		"site=site-3&at=-1": "/nodes?site=site-3", "site=site-3&at=x": "/nodes?site=site-3", "site=nowhere&at=0": "/nodes?site=nowhere", "": "/nodes?site=",
		"site=" + "%2F%2Fevil.example&at=0": "/nodes?site=%2F%2Fevil.example",
	} {
		h, _ := srv.raw(t, "/mark?"+query)
		if got := h.Get("Location"); got != want {
			t.Errorf("%s leads to %s, want %s", query, got, want)
		}
	}
}

// Who presses a mark comes to its node, and nothing of the picture hinders anybody.
func TestAMarkIsPressed(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.fleet.s = silent(manyNodes(2400), 700).s // 120 on a site
	for _, pixels := range []int64{1280, 360} {
		k.width(pixels, false)
		k.open("/")
		k.fits("fleet")
		k.axe("fleet")
		k.eval(`document.querySelector("[data-site=site-3][data-at='100']").scrollIntoView({block: "center"}), true`)
		var at struct{ X, Y float64 }
		if err := json.Unmarshal([]byte(k.string(`JSON.stringify((({x, y}) => ({x, y}))(document.querySelector("[data-site=site-3][data-at='100'] svg").getBoundingClientRect()))`)), &at); err != nil {
			t.Fatal(err)
		}
		k.do(chromedp.MouseClickXY(at.X+4+7*8, at.Y+4+8))
		k.await(`location.pathname === "/nodes/node-2343"`) // the 118th, counted from 1
	}
}

func TestTheOverviewOfALargeFleetIsLight(t *testing.T) {
	srv := start(t, configOf(silent(manyNodes(5000), 3000)))
	_, body := srv.raw(t, "/")
	if len(body) > 60_000 {
		t.Errorf("the overview has %d bytes, compressed", len(body))
	}
	t.Logf("%d bytes", len(body))
}

// The picture stands under the tiles, before what needs attention, and counts only where nodes are
// not ready.
func TestThePictureStandsUnderTheTiles(t *testing.T) {
	m := manyNodes(60)
	n := m.Snapshot().Node("node-0003").DeepCopy()
	condition("Ready", "Unknown", "NodeStatusUnknown", "x")(n)
	m.put(t, n)
	_, body := acting(t, m).ask(t, "viewer", "GET", "/", nil)
	tiles, picture, cards := strings.Index(body, `class="tiles"`), strings.Index(body, `class="fleet"`), strings.Index(body, `class="incidents"`)
	if tiles < 0 || picture < tiles || cards < picture {
		t.Errorf("tiles, picture and cards begin at %d, %d and %d", tiles, picture, cards)
	}
	if got := regexp.MustCompile(`\d+ of \d+ ready`).FindAllString(body, -1); !slices.Equal(got, []string{"2 of 3 ready"}) {
		t.Errorf("the picture counts %q", got)
	}
}

// All is well: one line, no hole; and a silent node has the red of its pill.
func TestTheOverviewHasNoHole(t *testing.T) {
	t.Parallel()
	k := newKitOf(t, testNode("pi-1", "oslo", nil), testNode("pi-2", "oslo", nil))
	k.open("/")
	k.says("All is well")
	for _, want := range []string{`document.querySelector(".incidents").offsetHeight < 120`, `document.querySelector(".incidents .pill").offsetWidth < 200`} {
		if !k.eval(want) {
			t.Errorf("not so: %s", want)
		}
	}
	n := k.fleet.Snapshot().Node("pi-2").DeepCopy()
	condition("Ready", "Unknown", "NodeStatusUnknown", "x")(n)
	k.fleet.put(t, n)
	k.awaits("does not answer")
	if !k.eval(`getComputedStyle(document.querySelector(".fleet .dark")).stroke === getComputedStyle(document.querySelector(".incidents .pill.bad")).color`) {
		t.Error("a silent node has another colour in the picture than its pill")
	}
}

// BenchmarkFleetPicture draws fleets, most of whose nodes are dark.
func BenchmarkFleetPicture(b *testing.B) {
	for _, n := range []int{200, 1000, 5000, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			a := pictureRequest(silent(manyNodes(n), n*3/5))
			s := New(configOf(newMemory()))
			var out bytes.Buffer
			for b.Loop() {
				out.Reset()
				if err := s.look.live.set.ExecuteTemplate(&out, "fleet", pictureOf(a)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(out.Len()), "bytes")
			b.ReportMetric(float64(len(compressed(out.Bytes()))), "gzip-bytes")
		})
	}
}
