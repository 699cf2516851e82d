package incident_test

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// FuzzIncidents makes random changes and checks invariants: every node that is not ready is in
// exactly one open incident, every node of an incident is not ready, and a second pass changes
// nothing.
func FuzzIncidents(f *testing.F) {
	for seed := range int64(40) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		r := rand.New(rand.NewSource(seed))
		w := newWorld(t)
		for i := range 3 {
			w.nodes(fmt.Sprint("site", i), 1+r.Intn(4))
		}
		w.put(deployment("kiosk", 4, 4), replicaSet("kiosk-1", "kiosk"),
			&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "backup", UID: "uid-backup"}})
		for range 60 {
			chance(w, r)
			w.wait(time.Duration(r.Intn(400)) * time.Second)
			w.wait(2 * time.Second) // counts are written once a second
			w.holds()
		}
	})
}

func chance(w *world, r *rand.Rand) {
	n := w.s.NodeAt(r.Intn(w.s.Len(state.Nodes)))
	statuses := []corev1.ConditionStatus{"True", "False", "Unknown"}
	kinds := []corev1.NodeConditionType{corev1.NodeDiskPressure, fleet.ConditionOutOfDisk, fleet.ConditionPowerOK,
		fleet.ConditionIdentityConflict}
	name := fmt.Sprint("kiosk-", r.Intn(6))
	switch r.Intn(17) {
	case 9, 10:
		chanceOfJobs(w, r)
	case 11:
		if p := w.s.Pod("default", name); p != nil && p.DeletionTimestamp == nil {
			p = p.DeepCopy()
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: w.now.Add(30 * time.Second)}, new(int64(30))
			w.put(p)
		}
	case 12:
		if p := w.s.Pod("default", name); p != nil && p.DeletionTimestamp == nil {
			p = p.DeepCopy()
			state.SetPodCondition(p, corev1.PodCondition{Type: corev1.PodReady, Status: statuses[r.Intn(2)]}, w.now)
			w.put(p)
		}
	case 13:
		if p := w.s.Pod("default", name); p != nil && p.DeletionTimestamp == nil {
			p = p.DeepCopy()
			p.Status.Phase = []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodFailed,
				corev1.PodSucceeded}[r.Intn(4)]
			w.put(p)
		}
	case 14:
		w.put(pod(fmt.Sprint("alone-", r.Intn(2)), n.Name,
			all(waiting([]string{"CrashLoopBackOff", "ErrImagePull", "ContainerCreating", "CreateContainerError"}[r.Intn(4)],
				"x"))))
	case 15:
		if p := w.s.Pod("default", fmt.Sprint("alone-", r.Intn(2))); p != nil {
			w.remove(p)
		}
	case 16:
		if o := w.s.Get(state.Key{Kind: state.ReplicaSets, Namespace: "default", Name: "kiosk-1"}); o == nil {
			set := replicaSet("kiosk-1", "kiosk")
			set.UID = "another"
			w.put(set)
		} else if r.Intn(8) == 0 {
			w.remove(o)
		}
	case 0, 1, 2:
		w.ready(n.Name, statuses[r.Intn(3)])
	case 3:
		w.condition(n.Name, kinds[r.Intn(len(kinds))], statuses[r.Intn(3)])
	case 4:
		w.put(pod(name, n.Name, all(owned("kiosk-1"), waiting([]string{"CrashLoopBackOff", "ErrImagePull",
			"ContainerCreating", "CreateContainerError"}[r.Intn(4)], "x"))))
	case 5:
		w.put(pod(name, n.Name, owned("kiosk-1")))
	case 6:
		if p := w.s.Pod("default", name); p != nil {
			w.remove(p)
		}
	case 7:
		w.put(deployment("kiosk", 4, int32(r.Intn(5))))
	case 8:
		w.put(pod(name, "", all(owned("kiosk-1"), unplaced, func(p *corev1.Pod) {
			if name < "kiosk-3" { // half of the pods are pinned to a site
				p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "site" + name[len("kiosk-"):]}
			}
		})))
	}
}

// holds fails the test if an invariant is violated.
func (w *world) holds() {
	w.Helper()
	dark := map[string]int{}
	for n := range w.s.Nodes() {
		if state.ReadyOf(n) != corev1.ConditionTrue {
			dark[state.SiteOf(n)]++
		}
	}
	counted, names := map[string]int{}, map[string]int{}
	for _, i := range w.open() {
		switch i.Cause {
		case diagnose.SiteDark, diagnose.NodeDark, diagnose.NodeNotReady, diagnose.NodeNeverReported:
			counted[i.Site] += int(i.Count.Nodes)
			for _, n := range i.Examples {
				names[n]++
				if state.ReadyOf(w.s.Node(n)) == corev1.ConditionTrue {
					w.Fatalf("%s is ready, but part of %s", n, i.Name)
				}
			}
		case fleet.ConditionFlapping:
			for _, n := range i.Examples {
				if names[n]++; state.ReadyOf(w.s.Node(n)) != corev1.ConditionTrue {
					counted[i.Site]++
				}
			}
		}
		if i.Since.After(w.now) || i.Opened.After(w.now) || i.Closed != nil || i.Name == "" || i.Message == "" {
			w.Fatalf("an open incident is %+v", i)
		}
		if parent, _ := w.s.Get(state.Key{Kind: state.Incidents, Name: i.PartOf}).(*fleet.Incident); i.PartOf != "" &&
			(parent == nil || parent.State != fleet.IncidentOpen) {
			w.Fatalf("%s is part of %s, which is not open", i.Name, i.PartOf)
		}
	}
	if fmt.Sprint(counted) != fmt.Sprint(dark) {
		w.Fatalf("at %s: nodes by site that are not ready: %v; in incidents: %v; want the same", w.now, dark, counted)
	}
	for n, times := range names {
		if times != 1 {
			w.Fatalf("%s is part of %d incidents", n, times)
		}
	}
	settler := control.NewSettler(nil, decider)
	if _, more, _ := settler.Settle(w.s, nil, w.now); len(more) > 0 {
		w.Fatalf("a full recomputation changes %s to %+v, was %+v", more[0].Key, more[0].New, more[0].Old)
	}
	// A second decision about all subjects changes nothing: incidents keep their names.
	if again := decider.Decide(w.s, decider.Subjects(w.s), w.now); len(again.Changes) > 0 {
		w.Fatalf("a second decision changes %v", again.Changes[0].Object)
	}
}

// chanceOfJobs changes a CronJob's Jobs, a DaemonSet and a StatefulSet at random.
func chanceOfJobs(w *world, r *rand.Rand) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}
	}
	refused := r.Intn(3) == 0
	switch r.Intn(3) {
	case 0, 1:
		name := fmt.Sprint("backup-", r.Intn(3))
		j, _ := w.s.Get(state.Key{Kind: state.Jobs, Namespace: "default", Name: name}).(*batchv1.Job)
		switch {
		case j == nil:
			j = &batchv1.Job{ObjectMeta: meta(name)}
			j.CreationTimestamp = metav1.NewTime(w.now)
			if r.Intn(4) > 0 {
				j.OwnerReferences = []metav1.OwnerReference{{Kind: "CronJob", Name: "backup", UID: "uid-backup",
					Controller: new(true)}}
			}
			w.put(j)
		case r.Intn(4) == 0:
			w.remove(j)
		case len(j.Status.Conditions) == 0:
			j = j.DeepCopy()
			t := []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, "FailedCreate"}[r.Intn(3)]
			j.Status.Conditions = []batchv1.JobCondition{{Type: t, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(w.now)}}
			w.put(j)
		case j.Status.Conditions[0].Type == "FailedCreate":
			j = j.DeepCopy()
			j.Status.Conditions = nil
			w.put(j)
		}
	default:
		d := &appsv1.DaemonSet{ObjectMeta: meta("meter"), Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2,
			NumberReady: int32(r.Intn(3))}}
		if refused {
			d.Status.Conditions = []appsv1.DaemonSetCondition{{Type: "ReplicaFailure", Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(w.now)}}
		}
		w.put(d)
	}
}
