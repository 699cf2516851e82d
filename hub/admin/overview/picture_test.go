package overview

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/nodes"
	"flotilla.dev/hub/state"
)

// pictureRequest is the overview's input for a fleet, with the actions on sites.
func pictureRequest(m *admintest.Memory) *frame.Request {
	c := frame.Config{Fleet: m, Now: func() time.Time { return admintest.Now },
		Liveness: func(string) frame.Liveness { return frame.Liveness{Seen: admintest.Now, Connected: true} }}
	return frame.New(c, nodes.SiteActions, nil).RequestFor(frame.Question{Role: access.Admin, Path: "/"})
}

var run = regexp.MustCompile(`M(\d+) (\d+)h(\d+)`)

// marked returns the class of each mark of a block, in order.
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
		m := admintest.Silent(admintest.Many(c.nodes), c.dark)
		f := pictureOf(pictureRequest(m), &replay{})
		if f.Nodes != c.nodes || f.Few != (c.nodes <= fewNodes) {
			t.Errorf("%d nodes: %d, few: %v", c.nodes, f.Nodes, f.Few)
		}
		drawn, keys := 0, map[string]int{}
		for _, s := range f.Sites {
			want := slices.Collect(m.Snapshot().NodesIn(s.Name))
			i := 0
			for _, b := range s.Blocks {
				if b.First != i || !strings.HasSuffix(b.Href, fmt.Sprintf("&page=%d", i/100+1)) {
					t.Errorf("a block begins with %d at %s, want %d", b.First, b.Href, i)
				}
				for j, class := range marked(t, b) {
					if is := marks[lookOf(want[i])].Class; class != is {
						t.Fatalf("%s of %s is drawn as %s, want %s", want[i].Name, s.Name, class, is)
					}
					if f.Few && (b.Links[j].Href != frame.NodeHref(want[i].Name) || b.Links[j].X != j%10*cell ||
						b.Links[j].Y != j/10*cell) {
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

// If there are too many sites, those in trouble are drawn; the others are counted.
func TestSitesInTroubleAreDrawnFirst(t *testing.T) {
	var objects []state.Change
	for i := range 300 {
		var change func(*corev1.Node)
		if i%10 == 3 {
			change = admintest.Condition("Ready", "False", "KubeletNotReady", "x")
		}
		objects = append(objects, state.Put(admintest.Node(fmt.Sprintf("n%03d", i), fmt.Sprintf("s%03d", i), change),
			""))
	}
	m := admintest.New()
	m.Apply(objects)
	f := pictureOf(pictureRequest(m), &replay{})
	bad, names := 0, []string{}
	for _, s := range f.Sites {
		bad += s.Counts[markBad]
		names = append(names, s.Name)
	}
	if len(f.Sites) != shownSites || bad != 30 || f.Rest != 240 || f.RestNodes != 240 || f.RestReady != 240 ||
		!slices.IsSorted(names) {
		t.Errorf("%d sites, %d bad, rest %d with %d nodes, %d ready: %s", len(f.Sites), bad, f.Rest, f.RestNodes,
			f.RestReady, names)
	}
}

// BenchmarkFleetPicture draws fleets whose nodes are mostly dark.
func BenchmarkFleetPicture(b *testing.B) {
	for _, n := range []int{200, 1000, 5000, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			a := pictureRequest(admintest.Silent(admintest.Many(n), n*3/5))
			for b.Loop() {
				pictureOf(a, &replay{})
			}
		})
	}
}
