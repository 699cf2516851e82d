package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

const (
	// glance is how often a drain looks whether pods have left.
	glance = 500 * time.Millisecond
	// retry is how often it asks again for a pod that a disruption budget holds.
	retry = 5 * time.Second
	// maxParts is how many pods of a node are shown by name.
	maxParts = 20
)

type drainOrder struct {
	bare  bool // take away pods that nobody makes again, too
	until time.Duration
	text  string // until, as it was chosen
}

func drainFields(s state.Snapshot, with []state.Object) (fields []field) {
	if c := countDrain(s, with); c.bare > 0 {
		fields = append(fields, field{Name: "bare", Type: "checkbox", Label: fmt.Sprintf("Take away %s that nobody makes again", plural(c.bare, "pod")), Hint: "Without this, they stay and the drain fails there."})
	}
	return append(fields, field{Name: "until", Label: "Give up after", Type: "select",
		Options: options("15m", [2]string{"5m", "5 minutes"}, [2]string{"15m", "15 minutes"}, [2]string{"1h", "1 hour"}, [2]string{"6h", "6 hours"})})
}

func parseDrain(form url.Values) (any, error) {
	text := cmp.Or(form.Get("until"), "15m")
	until, err := time.ParseDuration(text)
	if err != nil || until <= 0 || until > 24*time.Hour {
		return nil, fmt.Errorf("%q is no time after which to give up: use up to 24h, such as 15m", form.Get("until"))
	}
	return drainOrder{form.Get("bare") != "", until, text}, nil
}

type drainCount struct{ leave, daemon, bare, data, silent int }

func countDrain(s state.Snapshot, with []state.Object) (c drainCount) {
	for _, o := range with {
		n := o.(*corev1.Node)
		before := c.leave
		for p := range s.PodsOn(n.Name) {
			switch what(p) {
			case "daemon":
				c.daemon++
				continue
			case "finished":
				continue
			case "bare":
				c.bare++
			}
			c.leave++
			if hasData(p) {
				c.data++
			}
		}
		if c.leave > before && state.ReadyOf(n) != corev1.ConditionTrue {
			c.silent++
		}
	}
	return c
}

// what tells what a drain makes of a pod: those of daemon sets would come back at
// once, those that have finished harm nobody, and bare ones nobody makes again.
func what(p *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(p)
	switch {
	case state.Terminated(p):
		return "finished"
	case owner == nil:
		return "bare"
	case owner.Kind == "DaemonSet":
		return "daemon"
	}
	return ""
}

func hasData(p *corev1.Pod) bool {
	for _, v := range p.Spec.Volumes {
		if v.EmptyDir != nil {
			return true
		}
	}
	return false
}

func drainNotes(s state.Snapshot, with []state.Object) (notes []string) {
	c := countDrain(s, with)
	if c.leave == 0 {
		notes = append(notes, "No pod has to leave.")
	} else {
		notes = append(notes, fmt.Sprintf("%s to leave.", hasHave(c.leave, "pod")))
	}
	if c.daemon > 0 {
		notes = append(notes, fmt.Sprintf("Pods of daemon sets stay: %d.", c.daemon))
	}
	if c.data > 0 {
		notes = append(notes, fmt.Sprintf("%s data in an emptyDir, which is lost.", hasHave(c.data, "pod")))
	}
	if c.silent > 0 {
		notes = append(notes, fmt.Sprintf("%s not ready: pods there stay Terminating until the device comes back and confirms that it has stopped them.", isAre(c.silent, "node")))
	}
	return notes
}

// hasHave counts what something is said to have: "1 pod has", "2 pods have".
func hasHave(n int, one string) string {
	if n == 1 {
		return "1 " + one + " has"
	}
	return plural(n, one) + " have"
}

// A leaver is a pod that a drain waits for.
type leaver struct {
	item
	asked bool
	gone  bool
	next  time.Time // when to ask again
	held  string    // why it may not leave yet
	stays string    // why it never will
}

// drain cordons all of its nodes first, so that no pod moves from one to the next,
// and then asks their pods to leave until they have, or time is up.
func drain(ctx context.Context, j *job) {
	order := j.given.(drainOrder)
	note := drainNote{By: j.By, Began: j.Began.UTC().Truncate(time.Second), Until: order.text, Bare: order.bare}
	ctx, cancel := context.WithTimeout(ctx, order.until)
	defer cancel()
	leavers := make([][]*leaver, len(j.Items))
	open := map[int]bool{}
	for i := range j.Items {
		o, err := j.find(state.Nodes, j.Items[i].item)
		var back undo
		if err == nil {
			back, err = markDrain(ctx, &j.worker, o, note)
		}
		if err != nil {
			j.finish(i, nil, err)
			continue
		}
		leavers[i] = mustLeave(j.fleet.Snapshot(), o.GetName(), order.bare)
		open[i] = true
		j.set(i, func(p *progress) { p.State, p.Text, p.undo = "doing", "cordoned", back })
	}
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		for i := range j.Items {
			if !open[i] {
				continue
			}
			for _, l := range leavers[i] {
				j.urge(ctx, l)
			}
			if over := j.tally(ctx, i, leavers[i]); over {
				delete(open, i)
			}
		}
		if len(open) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			why := "it stays cordoned"
			if ctx.Err() == context.DeadlineExceeded {
				why = "given up after " + order.until.String() + "; it stays cordoned"
			}
			for i := range open {
				if !j.endedByHub(ctx) {
					j.unmark(ctx, i)
				}
				j.set(i, func(p *progress) { p.State, p.Text = "failed", p.Text+": "+why })
			}
			return
		}
	}
}

// endedByHub tells whether nobody has stopped the job, and it has not given up.
func (j *job) endedByHub(ctx context.Context) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return !j.Stopped && ctx.Err() == context.Canceled
}

// mustLeave lists the pods that have to leave a node.
func mustLeave(s state.Snapshot, node string, bare bool) (list []*leaver) {
	for p := range s.PodsOn(node) {
		l := &leaver{item: itemOf(p)}
		switch what(p) {
		case "daemon", "finished":
			continue
		case "bare":
			if !bare {
				l.stays = "nobody makes it again; choose to take such pods away, or delete it"
			}
		}
		list = append(list, l)
	}
	return list
}

// urge asks a pod to leave, unless it was asked, or has left.
func (j *job) urge(ctx context.Context, l *leaver) {
	p := j.fleet.Snapshot().Pod(l.Namespace, l.Name)
	if p == nil || p.UID != l.UID || state.Terminated(p) {
		l.gone, l.held = true, ""
		return
	}
	if p.DeletionTimestamp != nil {
		l.asked, l.held = true, ""
	}
	if l.asked || l.stays != "" || time.Now().Before(l.next) {
		return
	}
	switch err := j.evict(ctx, p); {
	case err == nil:
		l.asked, l.held = true, ""
	case refusedWith(err, http.StatusTooManyRequests):
		l.held, l.next = sentence(err), time.Now().Add(retry)
	case refusedWith(err, http.StatusNotFound), ctx.Err() != nil:
	default:
		l.stays = sentence(err)
	}
}

// evict asks a pod to leave, as the disruption budgets allow.
func (w *worker) evict(ctx context.Context, p *corev1.Pod) error {
	return w.send(ctx, apiCall{method: http.MethodPost, path: objectURL(state.Pods, p.Namespace, p.Name) + "/eviction", media: plainJSON}, tree{
		"kind": "Eviction", "apiVersion": "policy/v1", "metadata": tree{"name": p.Name, "namespace": p.Namespace},
		"deleteOptions": tree{"preconditions": tree{"uid": p.UID}},
	})
}

// tally tells how far a node is, and whether nothing more will happen there.
func (j *job) tally(ctx context.Context, i int, leavers []*leaver) (over bool) {
	gone, stuck := 0, 0
	var parts []part
	first := ""
	for _, l := range leavers {
		x := part{Name: l.String(), Pill: pill{"warn", "Leaving"}}
		switch {
		case l.gone:
			gone++
			continue
		case l.stays != "":
			stuck++
			x.Pill, x.Text = pill{"bad", "Stays"}, l.stays
		case l.held != "":
			x.Pill, x.Text = pill{"warn", "Held"}, l.held
		case !l.asked:
			x.Pill = pill{"idle", "Waiting"}
		}
		if first == "" && x.Text != "" {
			first = x.Name + " is held: " + x.Text
			if l.stays != "" {
				first = x.Name + " stays: " + x.Text
			}
		}
		if len(parts) < maxParts {
			parts = append(parts, x)
		}
	}
	text := fmt.Sprintf("%d of %s left", gone, hasHave(len(leavers), "pod"))
	if len(leavers) == 0 {
		text = "no pod had to leave"
	}
	if over = gone+stuck == len(leavers); over {
		j.unmark(ctx, i)
	}
	j.mu.Lock()
	p := &j.Items[i]
	changed := p.Text != text || len(p.Parts) != len(parts)
	for k := range parts {
		changed = changed || p.Parts[k] != parts[k]
	}
	p.Text, p.Parts, p.Share = text, parts, float64(gone)/float64(max(len(leavers), 1))
	if over {
		p.State = "done"
		if stuck > 0 {
			p.State, p.Text = "failed", text+"; "+first
		}
	}
	j.mu.Unlock()
	if changed || over {
		j.notify()
	}
	return over
}
