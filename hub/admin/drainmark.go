package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// drainMark is the annotation of a node that is being drained. It goes when the
// drain has ended, been stopped or given up. A hub that ends in the middle leaves it:
// by that the next one knows whose drain was cut short.
const drainMark = "flotilla.dev/drain"

// A drainNote is what the mark says.
type drainNote struct {
	By    string    `json:"by"`
	Began time.Time `json:"began"`
	Until string    `json:"until"`          // after which it gives up
	Bare  bool      `json:"bare,omitempty"` // pods that nobody makes again leave, too
}

func (n drainNote) String() string {
	raw, _ := json.Marshal(n) // nothing of it can fail
	return string(raw)
}

// markDrain cordons a node and marks it, in one change.
func markDrain(ctx context.Context, w *worker, o state.Object, note drainNote) (undo, error) {
	n := o.(*corev1.Node)
	err := w.patch(ctx, n, tree{"metadata": tree{"annotations": tree{drainMark: note.String()}}, "spec": tree{"unschedulable": true}})
	if n.Spec.Unschedulable {
		return nil, err
	}
	return func(ctx context.Context, w *worker) error { return w.patch(ctx, n, uncordonPatch()) }, err
}

func uncordonPatch() tree {
	return tree{"metadata": tree{"annotations": tree{drainMark: nil}}, "spec": tree{"unschedulable": false}}
}

// unmark says that a node's drain is over. It is asked for when the drain may have
// been stopped already, and changes nothing else: a mark that stays tells too much.
func (j *job) unmark(ctx context.Context, i int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if o, err := j.find(state.Nodes, j.Items[i].item); err == nil {
		_, _ = forgetDrain(ctx, &j.worker, o)
	}
}

func forgetDrain(ctx context.Context, w *worker, o state.Object) (undo, error) {
	return nil, w.patch(ctx, o, tree{"metadata": tree{"annotations": tree{drainMark: nil}}})
}

func idleMark(o state.Object) string {
	if _, is := o.GetAnnotations()[drainMark]; !is {
		return "has no drain to forget"
	}
	return ""
}

// A cut is a drain that the end of the hub cut short.
type cut struct {
	Key          string
	What, By     string
	Began        *moment
	Left, Stays  string // what is still to leave, and what stays
	GoOn, Forget string // addresses; "": not for the role
}

const (
	cutNames = 5   // nodes of a drain that are named
	cutItems = 100 // nodes that one address can ask to go on with
)

// cuts lists the drains that were cut short, the oldest first; those of one order
// are one.
func cuts(a *ask) (list []cut) {
	going := a.jobs.drained()
	marks := map[string][]*corev1.Node{}
	for n := range a.Nodes() {
		if cutShort(a.Snapshot, n, going) > 0 {
			marks[n.Annotations[drainMark]] = append(marks[n.Annotations[drainMark]], n)
		}
	}
	keys := make([]string, 0, len(marks))
	for k := range marks {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(x, y string) int {
		if c := noteOf(x).Began.Compare(noteOf(y).Began); c != 0 {
			return c
		}
		return strings.Compare(x, y)
	})
	for _, k := range keys {
		list = append(list, cutOf(a, marks[k]))
	}
	return list
}

// cutOn is the drain of one node that was cut short; nil: there is none.
func cutOn(a *ask, n *corev1.Node) *cut {
	if _, is := n.Annotations[drainMark]; !is || cutShort(a.Snapshot, n, a.jobs.drained()) == 0 {
		return nil
	}
	c := cutOf(a, []*corev1.Node{n})
	return &c
}

func noteOf(mark string) (n drainNote) {
	_ = json.Unmarshal([]byte(mark), &n) // a mark that somebody else wrote tells nothing
	return n
}

// cutShort counts the pods that a drain has left on a node without being at work on
// it any more. A node that is not cordoned is in use again.
func cutShort(s state.Snapshot, n *corev1.Node, going map[types.UID]bool) (left int) {
	mark, is := n.Annotations[drainMark]
	if !is || !n.Spec.Unschedulable || going[n.UID] {
		return 0
	}
	for _, l := range mustLeave(s, n.Name, noteOf(mark).Bare) {
		if l.stays == "" {
			left++
		}
	}
	return left
}

func cutOf(a *ask, nodes []*corev1.Node) cut {
	note := noteOf(nodes[0].Annotations[drainMark])
	c := cut{Key: "cut " + nodes[0].Name, By: note.By, Began: at(note.Began, a.now)}
	left, names, items := 0, []string{}, []string{}
	for i, n := range nodes {
		left += cutShort(a.Snapshot, n, nil)
		if i < cutNames {
			names = append(names, n.Name)
		}
		if i < cutItems {
			items = append(items, itemOf(n).Form())
		}
	}
	c.What, c.Left, c.Stays = strings.Join(names, ", "), isAre(left, "pod"), "it stays"
	if len(nodes) > 1 {
		c.Stays = "they stay"
	}
	if more := len(nodes) - len(names); more > 0 {
		c.What += fmt.Sprintf(" and %d more", more)
	}
	if a.may("patch", "nodes") {
		q := url.Values{"item": items, "until": {note.Until}}
		if note.Bare {
			q.Set("bare", "yes")
		}
		c.GoOn = "/actions/nodes/drain?" + q.Encode()
		c.Forget = "/actions/nodes/forget-drain?" + url.Values{"item": items}.Encode()
	}
	return c
}

// drained are the nodes, by UID, that drains are at work on.
func (js *jobs) drained() map[types.UID]bool {
	on := map[types.UID]bool{}
	for _, j := range js.all() {
		j.mu.Lock()
		if j.Ended.IsZero() && j.Undoes == "" && j.act.drains {
			for _, p := range j.Items {
				on[p.UID] = true
			}
		}
		j.mu.Unlock()
	}
	return on
}
