package finding

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
)

// MostExplained is how many pods without a node a list explains, because each explanation checks
// every node.
const MostExplained = 5

// A Placement is why a pod waits for a node, which nodes come nearest, and what helps.
type Placement struct {
	Why   string // one sentence
	Needs []string
	Rows  []candidateRow
	More  string // "and 4,980 more nodes"; "": all are shown
	Fixes []fix
}

// A candidateRow is a node that nearly fits.
type candidateRow struct {
	Name, Href, Site string
	Pill             frame.Pill
	CPU, Memory      string // free
	Against          []string
}

type podLink struct {
	Name, Href string
	Scale      *frame.MenuItem
}

// WaitsForNode tells whether a pod waits to be placed.
func WaitsForNode(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && !state.Terminated(p)
}

// PlacementOf explains why a pod has no node.
func PlacementOf(a *frame.Request, p *corev1.Pod) *Placement {
	f := diagnose.Pod(a.Snapshot, p)
	if foreign := p.Spec.SchedulerName != "" && p.Spec.SchedulerName != schedule.Name; foreign ||
		f.Cause == diagnose.PodGated {
		return &Placement{Why: PodWhy(a.Snapshot, p, f)}
	}
	e := schedule.Why(a.Snapshot, p, a.Now)
	d := &Placement{Why: unplacedWhy(e), Needs: needsOf(e)}
	if at := p.Status.NominatedNodeName; at != "" {
		d.Needs = append(d.Needs, "Room is being made for it on "+at+": pods of a lower priority leave.")
	}
	for _, c := range e.Candidates {
		r := candidateRow{Name: c.Node.Name, Href: frame.NodeHref(c.Node.Name), Site: state.SiteOf(c.Node),
			Pill: NodePill(c.Node), CPU: freeText(corev1.ResourceCPU, c.FreeCPU),
			Memory: freeText(corev1.ResourceMemory, c.FreeMem)}
		for _, o := range c.Against {
			r.Against = append(r.Against, reasonWords[o.Reason].against(c.Node, o))
		}
		d.Rows = append(d.Rows, r)
	}
	if more := e.Nodes - len(d.Rows); more > 0 && len(d.Rows) > 0 {
		d.More = "and " + format.Thousands(more) + " more"
	}
	d.Fixes = fixesOf(a, p, e.Candidates)
	return d
}

func unplacedWhy(e schedule.Explanation) string {
	switch {
	case e.Wrong != "":
		return "No node can take it: " + e.Wrong + "."
	case e.Nodes == 0:
		return "There is no node yet that could take it."
	case len(e.Obstacles) == 0:
		return "It is about to be placed: a node can take it now."
	case e.Nodes == 1:
		return "The only node cannot take it."
	}
	return fmt.Sprintf("None of the %s nodes can take it.", format.Thousands(e.Nodes))
}

func needsOf(e schedule.Explanation) (needs []string) {
	for _, o := range e.Obstacles {
		needs = append(needs, reasonWords[o.Reason].need(neededOf(o, e.Nodes)))
	}
	return needs
}

// LabelText writes a label requirement as kubectl writes selectors.
func LabelText(r corev1.NodeSelectorRequirement) string {
	values := "(" + format.List(r.Values, 5) + ")"
	switch r.Operator {
	case corev1.NodeSelectorOpIn:
		if len(r.Values) == 1 {
			return r.Key + "=" + r.Values[0]
		}
		return r.Key + " in " + values
	case corev1.NodeSelectorOpNotIn:
		if len(r.Values) == 1 {
			return r.Key + "!=" + r.Values[0]
		}
		return r.Key + " notin " + values
	case corev1.NodeSelectorOpExists:
		return "the label " + r.Key
	case corev1.NodeSelectorOpDoesNotExist:
		return "no label " + r.Key
	case corev1.NodeSelectorOpGt:
		return r.Key + " > " + strings.Join(r.Values, ", ")
	case corev1.NodeSelectorOpLt:
		return r.Key + " < " + strings.Join(r.Values, ", ")
	}
	return r.Key + " " + string(r.Operator) + " " + values
}

func portText(p state.HostPort) string {
	if p.Protocol == "" || p.Protocol == corev1.ProtocolTCP {
		return fmt.Sprint(p.Port)
	}
	return fmt.Sprintf("%d/%s", p.Port, p.Protocol)
}

func ofResource(amount string, name corev1.ResourceName) string {
	switch name {
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage:
		return amount + " of " + string(name)
	}
	return amount + " " + string(name)
}

// freeText writes a free amount as a quantity that can be requested: rounded down.
func freeText(name corev1.ResourceName, q resource.Quantity) string {
	if q.Sign() <= 0 {
		return "0"
	}
	switch name {
	case corev1.ResourceMemory, corev1.ResourceEphemeralStorage, corev1.ResourceStorage:
	case corev1.ResourceCPU:
		return format.Amount(name, q)
	default:
		return q.String()
	}
	n := q.Value()
	if n >= 1<<59 {
		return q.String()
	}
	for shift, unit := range []string{"", "Ki", "Mi", "Gi", "Ti"} {
		if tenths := n * 10 >> (10 * shift); shift == 4 || n>>(10*shift) < 1024 {
			if shift == 0 || tenths%10 == 0 || tenths >= 1000 {
				return fmt.Sprintf("%d%s", tenths/10, unit)
			}
			return fmt.Sprintf("%d.%d%s", tenths/10, tenths%10, unit)
		}
	}
	return q.String()
}

// SoonPlaced is the reason of a pod that some node can take now.
const SoonPlaced = "about to be placed"

// ShortReason says in a few words why a pod has no node, for a list.
func ShortReason(s state.Snapshot, p *corev1.Pod, now time.Time) string {
	e := schedule.Why(s, p, now)
	switch {
	case e.Wrong != "":
		return e.Wrong
	case e.Nodes == 0:
		return "no node yet"
	case len(e.Obstacles) == 0:
		return SoonPlaced
	}
	var parts []string
	for _, o := range e.Obstacles {
		parts = append(parts, reasonWords[o.Reason].short(neededOf(o, e.Nodes)))
		if o.Nodes == e.Nodes || len(parts) == 2 {
			break
		}
	}
	return strings.Join(slices.Compact(parts), ", ")
}
