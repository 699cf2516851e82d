package nodes

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

func uncordonPatch() frame.JSON {
	return frame.JSON{"metadata": frame.JSON{"annotations": frame.JSON{state.DrainAnnotation: nil}},
		"spec": frame.JSON{"unschedulable": false}}
}

// stopDrain withdraws the order. Pods that have left stay away, and the node stays cordoned.
func stopDrain(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	return nil, w.Patch(ctx, o, frame.JSON{"metadata": frame.JSON{"annotations": frame.JSON{state.DrainAnnotation: nil}}})
}

func notDraining(o state.Object) string {
	if _, is := o.GetAnnotations()[state.DrainAnnotation]; !is {
		return "is not being drained"
	}
	return ""
}

// A Drain is a running drain of one node, or of several that were ordered together.
type Drain struct {
	Key        string
	What, By   string
	Began      *format.Moment
	Until      *format.Moment // when it is given up
	Gone, Pods int            // number of pods that have left, and that have to leave
	Waits      []goingWait
	More       int    // number of awaited pods that Waits does not name
	Stop       string // address that stops it; "": the role may not
}

// A goingWait is a pod that a drain waits for.
type goingWait struct {
	Pod, Href string
	Text      string
	Until     *format.Moment // end of its grace period; nil: it was not told to leave yet
}

const (
	goingWaits = 4   // named pods that a drain waits for
	goingNames = 5   // named nodes of a drain
	goingItems = 100 // nodes that one address can stop
)

// Drains lists the running drains, oldest first.
func Drains(a *frame.Request) (list []Drain) {
	nodes := map[string][]*corev1.Node{}
	var order []string
	for n := range a.NodesWithDrain() {
		st := state.DrainStatusOf(n)
		if text, is := n.Annotations[state.DrainAnnotation]; is && st.Going() {
			if _, known := nodes[text]; !known {
				order = append(order, text)
			}
			nodes[text] = append(nodes[text], n)
		}
	}
	slices.SortStableFunc(order, func(x, y string) int {
		return state.DrainStatusOf(nodes[x][0]).Began.Compare(state.DrainStatusOf(nodes[y][0]).Began)
	})
	for _, text := range order {
		list = append(list, goingOf(a, nodes[text]))
	}
	return list
}

// goingOn returns a node's running drain; nil: there is none.
func goingOn(a *frame.Request, n *corev1.Node) *Drain {
	if _, is := n.Annotations[state.DrainAnnotation]; !is || !state.DrainStatusOf(n).Going() {
		return nil
	}
	g := goingOf(a, []*corev1.Node{n})
	return &g
}

func goingOf(a *frame.Request, nodes []*corev1.Node) Drain {
	st := state.DrainStatusOf(nodes[0])
	g := Drain{Key: "drain " + nodes[0].Name, By: st.By, Began: format.Time(st.Began, a.Now)}
	left := 0
	var names, items []string
	for i, n := range nodes {
		st := state.DrainStatusOf(n)
		left += st.Left
		g.Pods += st.Pods
		if g.Until == nil || st.Until.Format(time.RFC3339) < g.Until.At {
			g.Until = format.Time(st.Until.UTC(), a.Now)
		}
		g.Waits = append(g.Waits, waitsOf(a, n, st, goingWaits-len(g.Waits))...)
		if i < goingNames {
			names = append(names, n.Name)
		}
		if i < goingItems {
			items = append(items, frame.ItemOf(n).Form())
		}
	}
	g.What, g.Gone, g.More = strings.Join(names, ", "), max(g.Pods-left, 0), max(left-len(g.Waits), 0)
	if more := len(nodes) - len(names); more > 0 {
		g.What += fmt.Sprintf(" and %d more", more)
	}
	if a.May("patch", "nodes") {
		g.Stop = "/actions/nodes/stop-drain?" + url.Values{"item": items}.Encode()
	}
	return g
}

// waitsOf returns the first pods that a node's drain waits for: terminating pods, and pods that a
// budget holds.
func waitsOf(a *frame.Request, n *corev1.Node, st *state.DrainStatus, most int) (waits []goingWait) {
	for p := range a.PodsOn(n.Name) {
		if len(waits) >= most {
			return waits
		}
		if p.DeletionTimestamp == nil || what(p) == "daemon" || what(p) == "finished" {
			continue
		}
		w := goingWait{Pod: state.Display(p), Href: frame.PodPath(p.Namespace, p.Name)}
		if p.DeletionTimestamp.After(a.Now) {
			w.Until = format.Time(p.DeletionTimestamp.UTC(), a.Now)
		} else {
			w.Text = "its grace period is over, and the device has not said that it has stopped"
		}
		waits = append(waits, w)
	}
	for _, h := range st.Held {
		if len(waits) >= most {
			break
		}
		namespace, name, _ := strings.Cut(h.Pod, "/")
		waits = append(waits, goingWait{Pod: strings.TrimPrefix(h.Pod, "default/"),
			Href: frame.PodPath(namespace, name), Text: strings.TrimSuffix(h.Why, ".")})
	}
	return waits
}

// drainEnd says how a node's last drain ended; "": it was not drained.
func drainEnd(n *corev1.Node) string {
	st := state.DrainStatusOf(n)
	if st == nil || st.Going() {
		return ""
	}
	text := "Drained"
	if st.State != state.Drained {
		text = "The drain ended before all pods had left"
	}
	if st.By != "" {
		text += ", asked for by " + st.By
	}
	return text + ": " + st.Why + "."
}
