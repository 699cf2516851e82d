package table

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var (
	siteColumns = columns("Name State Ready(i) Not-Ready(i) Waiting(i) Rate Age " +
		"(w)Never-Seen(i) (w)Policy (w)Since (w)Next-Eviction (w)Held (w)Maintenance (w)Location")
	profileColumns = columns("Name Title Platforms Age (w)Compatible (w)Memory (w)Reserved (w)Eviction-Hard")
)

func siteCells(obj state.Object, o *Options) []any {
	s := obj.(*fleet.Site)
	rate := "<unknown>"
	if s.Status.EvictionRate != "" {
		rate = s.Status.EvictionRate + "/s"
	}
	since := "<unknown>"
	if s.Status.Since != nil {
		since = age(*s.Status.Since, o)
	}
	next := "<none>"
	if t := s.Status.NextEviction; t != nil {
		next = "now"
		if left := t.Sub(o.Now); left > 0 {
			next = "in " + duration.HumanDuration(left)
		}
	}
	maintenance := "<none>"
	if m := s.Spec.Maintenance; m != nil && m.Until.After(o.Now) {
		maintenance = "until " + until(m.Until)
	}
	return []any{
		s.Name, orUnknown(string(s.Status.State)), int64(s.Status.Ready), int64(s.Status.NotReady),
		int64(s.Status.Waiting), rate, age(s.CreationTimestamp, o),
		int64(s.Status.NeverSeen), or(string(s.Spec.DisruptionPolicy), "<default>"), since, next, orNone(s.Status.Held),
		maintenance, orNone(s.Spec.Location),
	}
}

func profileCells(obj state.Object, o *Options) []any {
	p := obj.(*fleet.BoardProfile)
	memory := "<any>"
	if m := p.Spec.Match.MemoryMiB; m != nil {
		switch {
		case m.Max == 0:
			memory = fmt.Sprintf(">=%dMi", m.Min)
		case m.Min == 0:
			memory = fmt.Sprintf("<=%dMi", m.Max)
		default:
			memory = fmt.Sprintf("%d-%dMi", m.Min, m.Max)
		}
	}
	r := p.Spec.Resources
	return []any{
		p.Name, orNone(p.Spec.Title), orNone(strings.Join(p.Spec.Platforms, ",")), age(p.CreationTimestamp, o),
		or(strings.Join(p.Spec.Match.Compatible, ","), "<any>"), memory, pairs("=", r.SystemReserved), pairs("<", r.EvictionHard),
	}
}

// pairs writes a map in the order of its keys.
func pairs(between string, m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+between+m[k])
	}
	return orNone(strings.Join(out, ","))
}

// gvks is under what each kind is kept.
var gvks = map[state.Kind]schema.GroupVersionKind{
	state.ConfigMaps:           corev1.SchemeGroupVersion.WithKind("ConfigMap"),
	state.ControllerRevisions:  appsv1.SchemeGroupVersion.WithKind("ControllerRevision"),
	state.DaemonSets:           appsv1.SchemeGroupVersion.WithKind("DaemonSet"),
	state.Deployments:          appsv1.SchemeGroupVersion.WithKind("Deployment"),
	state.Events:               corev1.SchemeGroupVersion.WithKind("Event"),
	state.Leases:               coordv1.SchemeGroupVersion.WithKind("Lease"),
	state.Namespaces:           corev1.SchemeGroupVersion.WithKind("Namespace"),
	state.Nodes:                corev1.SchemeGroupVersion.WithKind("Node"),
	state.PodDisruptionBudgets: policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"),
	state.Pods:                 corev1.SchemeGroupVersion.WithKind("Pod"),
	state.ReplicaSets:          appsv1.SchemeGroupVersion.WithKind("ReplicaSet"),
	state.Secrets:              corev1.SchemeGroupVersion.WithKind("Secret"),
	state.Sites:                {Group: fleet.Group, Version: fleet.Version, Kind: "Site"},
	state.BoardProfiles:        {Group: fleet.Group, Version: fleet.Version, Kind: "BoardProfile"},
}
