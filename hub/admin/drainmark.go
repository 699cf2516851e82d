package admin

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

func uncordonPatch() tree {
	return tree{"metadata": tree{"annotations": tree{state.DrainAnnotation: nil}}, "spec": tree{"unschedulable": false}}
}

// stopDrain takes the order back; what has left has left, and the node stays cordoned.
func stopDrain(ctx context.Context, w *worker, o state.Object) (undo, error) {
	return nil, w.patch(ctx, o, tree{"metadata": tree{"annotations": tree{state.DrainAnnotation: nil}}})
}

func notDraining(o state.Object) string {
	if _, is := o.GetAnnotations()[state.DrainAnnotation]; !is {
		return "is not being drained"
	}
	return ""
}

// A going is a drain that goes on, of one node or of several that were asked for
// together, whoever asked and however.
type going struct {
	Key        string
	What, By   string
	Began      *moment
	Left, Held string // what is still to leave, and what holds the first of it
	Stop       string // address; "": not for the role
}

const (
	goingNames = 5   // nodes of a drain that are named
	goingItems = 100 // nodes that one address can ask to stop
)

// goings lists the drains that go on, the oldest first.
func goings(a *request) (list []going) {
	nodes := map[string][]*corev1.Node{}
	var order []string
	for n := range a.DrainMarks() {
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

// goingOn is the drain of one node that goes on; nil: there is none.
func goingOn(a *request, n *corev1.Node) *going {
	if _, is := n.Annotations[state.DrainAnnotation]; !is || !state.DrainStatusOf(n).Going() {
		return nil
	}
	g := goingOf(a, []*corev1.Node{n})
	return &g
}

func goingOf(a *request, nodes []*corev1.Node) going {
	st := state.DrainStatusOf(nodes[0])
	g := going{Key: "drain " + nodes[0].Name, By: st.By, Began: at(st.Began, a.now)}
	left := 0
	var names, items []string
	for i, n := range nodes {
		st := state.DrainStatusOf(n)
		if left += st.Left; g.Held == "" && len(st.Held) > 0 {
			g.Held = st.Held[0].Pod + ": " + st.Held[0].Why
		}
		if i < goingNames {
			names = append(names, n.Name)
		}
		if i < goingItems {
			items = append(items, itemOf(n).Form())
		}
	}
	g.What, g.Left = strings.Join(names, ", "), isAre(left, "pod")
	if more := len(nodes) - len(names); more > 0 {
		g.What += fmt.Sprintf(" and %d more", more)
	}
	if a.may("patch", "nodes") {
		g.Stop = "/actions/nodes/stop-drain?" + url.Values{"item": items}.Encode()
	}
	return g
}

// drainEnd says how the last drain of a node ended, "" where there is nothing to say.
func drainEnd(n *corev1.Node) string {
	st := state.DrainStatusOf(n)
	if st == nil || st.Going() {
		return ""
	}
	text := "Drained"
	if st.State != state.Drained {
		text = "The drain ended without being done"
	}
	if st.By != "" {
		text += ", asked for by " + st.By
	}
	return text + ": " + st.Why + "."
}
