package admin

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// ownersOf are what has made an object, from the nearest to the workload that people know it
// by: the ReplicaSet and its Deployment, the Job and its CronJob.
func ownersOf(s state.Snapshot, o state.Object) (owners []state.Object) {
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

// An ownerLink is one of them as the page shows it.
type ownerLink struct{ Kind, Name, Href string }

// ownerLinks are the links to what has made an object.
func ownerLinks(s state.Snapshot, o state.Object) (links []ownerLink) {
	for _, up := range ownersOf(s, o) {
		kind := state.KindOf(up)
		l := ownerLink{Kind: kind.Row().Name, Name: up.GetName()}
		switch kind {
		case state.Deployments, state.DaemonSets, state.StatefulSets:
			l.Href = workloadHref(kind, up.GetNamespace(), up.GetName())
		case state.Jobs:
			l.Href = ownerHref(up.GetNamespace(), strings.ToLower(l.Kind), up.GetName())
		default:
			l.Href = "/yaml" + objectURL(kind, up.GetNamespace(), up.GetName())
		}
		links = append(links, l)
	}
	return links
}
