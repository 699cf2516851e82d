package finding

import (
	"fmt"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/schedule"
	"flotilla.dev/hub/state"
)

// A fix is the steps after which one node can take the pod.
type fix struct {
	Node, Href string
	Steps      []step
}

// A step is one change; any one of its ways is enough.
type step struct{ Ways []way }

type way struct {
	Text    string
	Pods    []podLink       // pods that would have to leave
	Command string          // for kubectl
	Do      *frame.MenuItem // nil: the role may not do it, or the page cannot
}

// mostFixes bounds the shown fixes, each of another kind.
const mostFixes = 4

// fixesOf returns a fix of each kind, for the nearest node that can be made to take the pod.
func fixesOf(a *frame.Request, p *corev1.Pod, candidates []schedule.Candidate) (fixes []fix) {
	edit := editOf(a, p)
	seen := map[string]bool{}
	for _, c := range candidates {
		sort := ""
		f := fix{Node: c.Node.Name, Href: frame.NodeHref(c.Node.Name)}
		for _, o := range c.Against {
			if len(o.Ways) == 0 {
				f.Steps = nil
				break
			}
			sort += o.Reason.String() + LabelText(o.Label) + o.Taint.ToString() + string(o.Resource) + o.Key + ";"
			var s step
			for _, w := range o.Ways {
				s.Ways = append(s.Ways, wayOf(a, c.Node, p, edit, w))
			}
			f.Steps = append(f.Steps, s)
		}
		if len(f.Steps) == 0 || seen[sort] {
			continue
		}
		if seen[sort] = true; len(fixes) < mostFixes {
			fixes = append(fixes, f)
		}
	}
	return fixes
}

// A templateEdit is where a pod's template is changed.
type templateEdit struct {
	of string          // such as "Deployment kiosk"
	do *frame.MenuItem // nil: the role may not edit it, or the page cannot
	on string          // the workload's name for kubectl; "": the pod has no owner
}

// editOf finds the workload whose template makes the pod, because a pod's own requests cannot be
// changed.
func editOf(a *frame.Request, p *corev1.Pod) templateEdit {
	owners := frame.OwnersOf(a.Snapshot, p)
	if len(owners) == 0 {
		return templateEdit{of: "its manifest, and create it anew"}
	}
	o := owners[len(owners)-1]
	kind := state.KindOf(o)
	e := templateEdit{of: kind.Row().Name + " " + o.GetName(), on: strings.ToLower(kind.Row().Name) + "/" + o.GetName()}
	if o.GetNamespace() != "default" {
		e.on = "-n " + o.GetNamespace() + " " + e.on
	}
	if a.May("update", string(kind)) {
		e.do = &frame.MenuItem{Label: "Edit", Href: "/yaml" + frame.ObjectURL(kind, o.GetNamespace(), o.GetName())}
	}
	return e
}

func wayOf(a *frame.Request, n *corev1.Node, p *corev1.Pod, edit templateEdit, w schedule.Way) way {
	node := func(action, label string, q url.Values) *frame.MenuItem {
		if !a.May("patch", "nodes") {
			return nil
		}
		q.Set("item", frame.ItemOf(n).Form())
		return &frame.MenuItem{Label: label, Href: "/actions/nodes/" + action + "?" + q.Encode()}
	}
	key := w.Label.Key
	switch w.Kind {
	case schedule.Uncordon:
		v := way{Text: "Uncordon it", Command: "kubectl uncordon " + n.Name}
		if a.May("patch", "nodes") {
			v.Do = &frame.MenuItem{Label: "Uncordon", Href: "/actions/nodes/uncordon", Item: frame.ItemOf(n).Form()}
		}
		return v
	case schedule.SetLabel:
		value := ""
		if len(w.Label.Values) > 0 {
			value = w.Label.Values[0]
		}
		v := way{Text: "Give it the label " + key + "=" + value, Command: "kubectl label node " + n.Name + " " + key +
			"=" + value, Do: node("label", "Label", url.Values{"key": {key}, "value": {value}})}
		if _, has := n.Labels[key]; has {
			v.Command += " --overwrite"
		}
		return v
	case schedule.RemoveLabel:
		return way{Text: "Take the label " + key + " off it", Command: "kubectl label node " + n.Name + " " + key + "-",
			Do: node("label", "Label", url.Values{"key": {key}, "how": {"remove"}})}
	case schedule.RemoveTaint:
		return way{Text: "Take the taint off it", Command: "kubectl taint node " + n.Name + " " + w.Taint.ToString() +
			"-",
			Do: node("taint", "Taint", url.Values{"key": {w.Taint.Key}, "value": {w.Taint.Value},
				"effect": {string(w.Taint.Effect)}, "how": {"remove"}})}
	case schedule.MakeRoom:
		return roomWay(a, w)
	}
	v := way{Do: edit.do}
	switch w.Kind {
	case schedule.Tolerate:
		operator := "Equal, value: " + fmt.Sprintf("%q", w.Taint.Value)
		if w.Taint.Value == "" {
			operator = "Exists"
		}
		v.Text = "Tolerate the taint, in " + edit.of
		v.Command = fmt.Sprintf("tolerations: [{key: %s, operator: %s, effect: %s}]", w.Taint.Key, operator,
			w.Taint.Effect)
	case schedule.DropSelector:
		v.Text = "Do not ask for " + LabelText(w.Label) + ", in " + edit.of
	case schedule.LowerRequest:
		if w.Amount.Sign() == 0 {
			v.Text = "Ask for no " + string(w.Resource) + ", in " + edit.of
			break
		}
		v.Text = "Ask for " + freeText(w.Resource, w.Amount) + " of " + string(w.Resource) + " at most, in " + edit.of
		if edit.on != "" && len(p.Spec.Containers) == 1 && len(p.Spec.InitContainers) == 0 {
			v.Command = "kubectl set resources " + edit.on + " --requests=" + string(w.Resource) + "=" +
				freeText(w.Resource, w.Amount)
		}
	case schedule.DropHostPort:
		v.Text = "Do without port " + portText(w.Port) + " of the device, in " + edit.of
	case schedule.Soften:
		v.Text = "Make what it asks about " + w.Key + " a preference, in " + edit.of
	}
	return v
}

// roomWay names the pods that would have to leave.
func roomWay(a *frame.Request, w schedule.Way) way {
	v := way{Text: "Make room"}
	for _, p := range w.Pods {
		l := podLink{Name: p.Name, Href: frame.PodHref(p)}
		if q, ok := state.Requests(p)[w.Resource]; ok && w.Resource != "" {
			l.Name += " (" + q.String() + ")"
		}
		if owners := frame.OwnersOf(a.Snapshot, p); len(owners) > 0 {
			switch o := owners[len(owners)-1]; state.KindOf(o) {
			case state.Deployments, state.StatefulSets:
				if a.May("patch", string(state.KindOf(o))) {
					l.Scale = &frame.MenuItem{Label: "Scale " + o.GetName(), Href: "/actions/" +
						string(state.KindOf(o)) + "/scale?" + url.Values{"item": {frame.ItemOf(o).Form()}}.Encode()}
				}
			}
		}
		v.Pods = append(v.Pods, l)
	}
	return v
}
