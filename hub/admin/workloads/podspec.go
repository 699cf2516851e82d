package workloads

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
)

// askFacts describes a pod's scheduling rules, without its resources.
func askFacts(p *corev1.Pod) (facts []frame.Fact) {
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, frame.Fact{Name: name, Value: value})
		}
	}
	switch {
	case p.Spec.PriorityClassName != "" && p.Spec.Priority != nil:
		add("Priority", fmt.Sprintf("%d, %s", *p.Spec.Priority, p.Spec.PriorityClassName))
	case p.Spec.Priority != nil && *p.Spec.Priority != 0:
		add("Priority", fmt.Sprint(*p.Spec.Priority))
	}
	var selector []string
	for k, v := range p.Spec.NodeSelector {
		selector = append(selector, k+"="+v)
	}
	slices.Sort(selector)
	add("Node selector", strings.Join(selector, ", "))
	add("Affinity", strings.Join(affinityWords(p.Spec.Affinity), "; "))
	var spread []string
	for _, c := range p.Spec.TopologySpreadConstraints {
		text := fmt.Sprintf("over %s, by %d at most", c.TopologyKey, c.MaxSkew)
		if c.WhenUnsatisfiable == corev1.ScheduleAnyway {
			text += ", if it can be"
		}
		spread = append(spread, text)
	}
	add("Spread", strings.Join(spread, "; "))
	var tolerations []string
	for i := range p.Spec.Tolerations {
		tolerations = append(tolerations, tolerationWords(&p.Spec.Tolerations[i]))
	}
	add("Tolerates", strings.Join(tolerations, "; "))
	if s := p.Spec.ServiceAccountName; s != "default" {
		add("Service account", s)
	}
	if p.Spec.HostNetwork {
		add("Network", "that of its node")
	}
	return facts
}

// affinityWords describes a pod's node affinity and pod affinity, each in a few words.
func affinityWords(a *corev1.Affinity) (words []string) {
	if a == nil {
		return nil
	}
	if n := a.NodeAffinity; n != nil {
		if r := n.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			var terms []string
			for _, t := range r.NodeSelectorTerms {
				terms = append(terms, termWords(t))
			}
			words = append(words, "needs a node with "+strings.Join(terms, ", or "))
		}
		for _, t := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			words = append(words, fmt.Sprintf("prefers a node with %s (weight %d)", termWords(t.Preference), t.Weight))
		}
	}
	pods := func(verb, where string, required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for _, t := range required {
			words = append(words, verb+" be "+where+" pods with "+podTermWords(t))
		}
		for _, t := range preferred {
			words = append(words, fmt.Sprintf("would rather be %s pods with %s (weight %d)", where,
				podTermWords(t.PodAffinityTerm), t.Weight))
		}
	}
	if t := a.PodAffinity; t != nil {
		pods("must", "near", t.RequiredDuringSchedulingIgnoredDuringExecution,
			t.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if t := a.PodAntiAffinity; t != nil {
		pods("must", "away from", t.RequiredDuringSchedulingIgnoredDuringExecution,
			t.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return words
}

func termWords(t corev1.NodeSelectorTerm) string {
	var parts []string
	for _, r := range t.MatchExpressions {
		parts = append(parts, finding.LabelText(r))
	}
	for _, r := range t.MatchFields {
		parts = append(parts, "the name "+format.List(r.Values, 5))
	}
	return cmp.Or(strings.Join(parts, " and "), "a term that nothing matches")
}

func podTermWords(t corev1.PodAffinityTerm) string {
	return fmt.Sprintf("%s, by %s", metav1.FormatLabelSelector(t.LabelSelector), t.TopologyKey)
}

// tolerationWords says which taints a pod tolerates, and for how long.
func tolerationWords(t *corev1.Toleration) string {
	text := t.Key
	switch {
	case t.Key == "":
		text = "every taint"
	case t.Operator != corev1.TolerationOpExists:
		text += "=" + t.Value
	}
	if t.Effect != "" {
		text += ":" + string(t.Effect)
	}
	if s := t.TolerationSeconds; s != nil {
		const longest = math.MaxInt64 / int64(time.Second) // the longest time.Duration
		text += " for " + duration.HumanDuration(time.Duration(min(max(*s, 0), longest))*time.Second)
	}
	return text
}

// asksText describes a container's requests and limits.
func asksText(c corev1.Container) string {
	list := func(of corev1.ResourceList) string {
		names := make([]string, 0, len(of))
		for name := range of {
			names = append(names, string(name))
		}
		slices.Sort(names)
		for i, name := range names {
			q := of[corev1.ResourceName(name)]
			names[i] = q.String() + " " + name
		}
		return strings.Join(names, ", ")
	}
	requests, limits := list(c.Resources.Requests), list(c.Resources.Limits)
	switch {
	case requests == "" && limits == "":
		return "Requests nothing, and has no limit."
	case limits == "":
		return "Requests " + requests + "; has no limit."
	case requests == "":
		return "Requests nothing; limit " + limits + "."
	}
	return "Requests " + requests + "; limit " + limits + "."
}

// A volumeRow is a volume of a pod, with its mounts.
type volumeRow struct {
	Name, What, Of, Href string
	Mounts               []string
}

func volumesOf(a *frame.Request, p *corev1.Pod) (rows []volumeRow) {
	for _, v := range p.Spec.Volumes {
		r := volumeRow{Name: v.Name}
		kind, name := state.Kind(""), ""
		switch {
		case v.PersistentVolumeClaim != nil:
			r.What, kind, name = "Persistent volume claim", state.Claims, v.PersistentVolumeClaim.ClaimName
		case v.ConfigMap != nil:
			r.What, kind, name = "ConfigMap", state.ConfigMaps, v.ConfigMap.Name
		case v.Secret != nil:
			r.What, r.Of = "Secret", v.Secret.SecretName // the page never shows its content
		case v.HostPath != nil:
			r.What, r.Of = "Path of the device", v.HostPath.Path
		case v.EmptyDir != nil:
			r.What = "Empty directory, gone with the pod"
			if v.EmptyDir.Medium == corev1.StorageMediumMemory {
				r.What = "In memory, gone with the pod"
			}
			if q := v.EmptyDir.SizeLimit; q != nil {
				r.Of = "at most " + q.String()
			}
		case v.Projected != nil:
			r.What = "Projected"
		case v.DownwardAPI != nil:
			r.What = "What the pod is (downward API)"
		default:
			r.What = "Other"
		}
		if kind != "" {
			if r.Of = name; a.Get(state.Key{Kind: kind, Namespace: p.Namespace, Name: name}) == nil {
				r.Of += " (missing)"
			} else if a.May("get", string(kind)) {
				r.Href = "/yaml" + frame.ObjectURL(kind, p.Namespace, name)
			}
		}
		for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
			for _, m := range c.VolumeMounts {
				if m.Name != v.Name {
					continue
				}
				text := c.Name + ": " + m.MountPath
				if m.ReadOnly {
					text += " (read only)"
				}
				r.Mounts = append(r.Mounts, text)
			}
		}
		rows = append(rows, r)
	}
	return rows
}
