package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

type workloadRow struct {
	Name, Namespace, Href string
	Pill                  pill
	Ready, Wanted         int32
	Updated, Available    int32
	Why                   string
	Images                string
	Age                   *moment
}

type workloadsData struct {
	Deployments, DaemonSets []workloadRow
	Empty                   bool
}

// workloads lists what should run: deployments and daemon sets.
func workloads(a *ask) (page, error) {
	var d workloadsData
	for o := range state.Each[*appsv1.Deployment](a.Snapshot, state.Deployments, "") {
		d.Deployments = append(d.Deployments, deploymentRow(o, a.now))
	}
	for o := range state.Each[*appsv1.DaemonSet](a.Snapshot, state.DaemonSets, "") {
		d.DaemonSets = append(d.DaemonSets, daemonSetRow(o, a.now))
	}
	d.Empty = len(d.Deployments)+len(d.DaemonSets) == 0
	return page{Template: "workloads", Title: "Workloads", Watch: []string{"workloads"}, Data: d}, nil
}

func ownerHref(namespace, kind, name string) string {
	return "/pods?" + url.Values{"namespace": {namespace}, "owner": {kind + "/" + name}}.Encode()
}

func deploymentRow(d *appsv1.Deployment, now time.Time) workloadRow {
	wanted := int32(1)
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	st := d.Status
	r := workloadRow{
		Name: d.Name, Namespace: d.Namespace, Href: ownerHref(d.Namespace, "deployment", d.Name), Ready: st.ReadyReplicas, Wanted: wanted,
		Updated: st.UpdatedReplicas, Available: st.AvailableReplicas, Images: images(d.Spec.Template), Age: at(d.CreationTimestamp.Time, now), Pill: pill{"ok", "Complete"},
	}
	for _, c := range st.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse ||
			c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			r.Pill, r.Why = pill{"bad", "Stuck"}, cmp.Or(c.Message, c.Reason)
			return r
		}
	}
	switch {
	case d.Spec.Paused:
		r.Pill = pill{"idle", "Paused"}
	case wanted == 0 && st.Replicas == 0:
		r.Pill = pill{"idle", "Scaled to none"}
	case st.ObservedGeneration < d.Generation || st.UpdatedReplicas < wanted:
		r.Pill, r.Why = pill{"warn", "Rolling out"}, fmt.Sprintf("%d of %d pods are of the newest version.", st.UpdatedReplicas, wanted)
	case st.AvailableReplicas < wanted:
		r.Pill, r.Why = pill{"warn", "Incomplete"}, fmt.Sprintf("%d of %d pods are available.", st.AvailableReplicas, wanted)
	case st.Replicas > wanted:
		r.Pill, r.Why = pill{"warn", "Rolling out"}, fmt.Sprintf("%d old pods are still to go.", st.Replicas-wanted)
	}
	return r
}

func daemonSetRow(d *appsv1.DaemonSet, now time.Time) workloadRow {
	st := d.Status
	r := workloadRow{
		Name: d.Name, Namespace: d.Namespace, Href: ownerHref(d.Namespace, "daemonset", d.Name), Ready: st.NumberReady, Wanted: st.DesiredNumberScheduled,
		Updated: st.UpdatedNumberScheduled, Available: st.NumberAvailable, Images: images(d.Spec.Template), Age: at(d.CreationTimestamp.Time, now), Pill: pill{"ok", "Complete"},
	}
	switch {
	case st.DesiredNumberScheduled == 0:
		r.Pill = pill{"idle", "On no node"}
	case st.UpdatedNumberScheduled < st.DesiredNumberScheduled:
		r.Pill, r.Why = pill{"warn", "Rolling out"}, fmt.Sprintf("%d of %d pods are of the newest version.", st.UpdatedNumberScheduled, st.DesiredNumberScheduled)
	case st.NumberAvailable < st.DesiredNumberScheduled:
		r.Pill, r.Why = pill{"warn", "Incomplete"}, fmt.Sprintf("%d of %d pods are available.", st.NumberAvailable, st.DesiredNumberScheduled)
	}
	return r
}

func images(t corev1.PodTemplateSpec) string {
	var list []string
	for _, c := range t.Spec.Containers {
		list = append(list, c.Image)
	}
	return strings.Join(list, ", ")
}
