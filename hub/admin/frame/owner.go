package frame

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// OwnersOf are an object's owners, from the nearest up to the workload that people know: the
// ReplicaSet and its Deployment, or the Job and its CronJob.
func OwnersOf(s state.Snapshot, o state.Object) (owners []state.Object) {
	for range 3 {
		ref := metav1.GetControllerOfNoCopy(o)
		if ref == nil {
			break
		}
		kind := state.KindNamed(ref.Kind)
		if kind == "" {
			break
		}
		up := s.Get(state.Key{Kind: kind, Namespace: o.GetNamespace(), Name: ref.Name})
		if up == nil || up.GetUID() != ref.UID {
			break
		}
		owners = append(owners, up)
		o = up
	}
	return owners
}

// An OwnerLink links an owner.
type OwnerLink struct{ Kind, Name, Href string }

// OwnerLinks are the links to an object's owners.
func OwnerLinks(s state.Snapshot, o state.Object) (links []OwnerLink) {
	for _, up := range OwnersOf(s, o) {
		kind := state.KindOf(up)
		l := OwnerLink{Kind: kind.Row().Name, Name: up.GetName()}
		switch kind {
		case state.Deployments, state.DaemonSets, state.StatefulSets:
			l.Href = WorkloadHref(kind, up.GetNamespace(), up.GetName())
		case state.Jobs:
			l.Href = OwnerHref(up.GetNamespace(), strings.ToLower(l.Kind), up.GetName())
		default:
			l.Href = "/yaml" + ObjectURL(kind, up.GetNamespace(), up.GetName())
		}
		links = append(links, l)
	}
	return links
}

// OwnerOf names the workload that a pod belongs to: its Deployment rather than the ReplicaSet
// between them.
func OwnerOf(s state.Snapshot, p *corev1.Pod) string {
	ref := metav1.GetControllerOf(p)
	if ref == nil {
		return ""
	}
	if ref.Kind == "ReplicaSet" {
		if rs := s.ByUID(ref.UID); rs != nil {
			if up := metav1.GetControllerOf(rs); up != nil {
				ref = up
			}
		}
	}
	return strings.ToLower(ref.Kind) + "/" + ref.Name
}
