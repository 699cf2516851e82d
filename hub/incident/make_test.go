package incident_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
)

// Every kind of workload reports in a condition that it may not create pods. That is an incident.
func TestAWorkloadThatMayNotCreatePodsIsAnIncident(t *testing.T) {
	const why = "exceeded quota: shop"
	meta := metav1.ObjectMeta{Namespace: "default", Name: "kiosk", UID: "kiosk-uid"}
	since, one := metav1.NewTime(noon.Add(-time.Minute)), int32(1)
	job := func(conditions ...batchv1.JobCondition) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: meta, Status: batchv1.JobStatus{Conditions: conditions}}
	}
	refused := batchv1.JobCondition{Type: "FailedCreate", Status: corev1.ConditionTrue, Message: why,
		LastTransitionTime: since}
	ofCron := job(refused)
	ofCron.Name, ofCron.UID = "kiosk-1", "job-uid"
	ofCron.OwnerReferences = []metav1.OwnerReference{{Kind: "CronJob", Name: "kiosk", UID: "kiosk-uid",
		Controller: new(true)}}
	for _, c := range []struct {
		rule string
		objs []state.Object
		want []string
	}{
		{"a Deployment whose new ReplicaSet is refused", []state.Object{&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &one}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1, Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ReplicaSetCreateError", Message: why, LastTransitionTime: since}}}}}, []string{"CannotMakePods kiosk 0 0 0"}},
		{"a Deployment that is only late", []state.Object{&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &one}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1, Conditions: []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: why, LastTransitionTime: since}}}}}, nil},
		{"a DaemonSet", []state.Object{&appsv1.DaemonSet{ObjectMeta: meta, Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 2, NumberReady: 1, Conditions: []appsv1.DaemonSetCondition{
			{Type: "ReplicaFailure", Status: corev1.ConditionTrue, Message: why, LastTransitionTime: since}}}}}, []string{"CannotMakePods kiosk 0 0 1"}},
		{"a StatefulSet", []state.Object{&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &one}, Status: appsv1.StatefulSetStatus{Conditions: []appsv1.StatefulSetCondition{
			{Type: "ReplicaFailure", Status: corev1.ConditionTrue, Message: why, LastTransitionTime: since}}}}}, []string{"CannotMakePods kiosk 0 0 1"}},
		{"a StatefulSet that only waits", []state.Object{&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &one}, Status: appsv1.StatefulSetStatus{Conditions: []appsv1.StatefulSetCondition{
			{Type: state.PodUnreachable, Status: corev1.ConditionTrue, Message: why, LastTransitionTime: since}}}}}, nil},
		{"a Job", []state.Object{job(refused)}, []string{"CannotMakePods kiosk 0 0 0"}},
		{"a Job that has failed", []state.Object{job(refused, batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Message: "too late", LastTransitionTime: since})}, []string{"JobFailed kiosk 0 0 0"}},
		{"a Job that is complete", []state.Object{job(refused, batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: since})}, nil},
		{"a Job of a CronJob", []state.Object{&batchv1.CronJob{ObjectMeta: meta}, ofCron}, []string{"CannotMakePods kiosk 0 0 0"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(t)
			w.put(c.objs...)
			w.shows("the condition is an incident", c.want...)
			for _, i := range w.open() {
				if i.Detail != why && i.Cause == "CannotMakePods" || !i.Since.Equal(&since) {
					t.Errorf("the incident began at %s: %q", i.Since, i.Detail)
				}
			}
			last := c.objs[len(c.objs)-1]
			w.remove(last)
			w.wait(15 * time.Minute)
			w.shows("and over")
		})
	}
}

// A CronJob whose newest Job has succeeded has no incident, whatever the result of earlier Jobs.
func TestASuccessfulJobEndsTheIncidentOfItsCronJob(t *testing.T) {
	w := newWorld(t)
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "backup", UID: "cron-uid"}}
	job := func(name string, at time.Time, conditions ...batchv1.JobCondition) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(at),
			OwnerReferences: []metav1.OwnerReference{{Kind: "CronJob", Name: "backup", UID: "cron-uid",
				Controller: new(true)}}}, Status: batchv1.JobStatus{Conditions: conditions}}
	}
	ends := func(how batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: how, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)}
	}
	w.put(cron, job("backup-1", w.now, ends(batchv1.JobFailed)))
	w.shows("the Job has failed", "JobFailed backup 0 0 0")
	w.wait(time.Hour)
	began := w.now
	w.put(job("backup-2", began))
	w.shows("the next Job runs", "JobFailed backup 0 0 0")
	w.wait(time.Minute)
	w.put(job("backup-2", began, ends(batchv1.JobComplete)))
	w.wait(time.Minute)
	w.shows("the next Job has succeeded")
}

// Incidents of a deleted workload's pods do not belong to a new workload with its name.
func TestIncidentsOfADeletedWorkloadAreNotTheNewOnes(t *testing.T) {
	other := func(o state.Object) state.Object {
		o.SetUID(o.GetUID() + "-2")
		return o
	}
	set := replicaSet("kiosk-1", "kiosk")
	of := set.DeepCopy()
	of.OwnerReferences[0].UID += "-2"
	stateful := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kiosk",
		UID: "statefulset-kiosk"}, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1))}}
	by := func(kind, name, uid string) *corev1.Pod {
		return pod("kiosk-0", "bergen-0", func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID(uid), Controller: new(true)}}
		})
	}
	for _, c := range []struct {
		rule string
		objs []state.Object
		want string
	}{
		{"a pod of a ReplicaSet", []state.Object{deployment("kiosk", 1, 0), set, by("ReplicaSet", "kiosk-1", "replicaset-kiosk-1")}, "SiteDark bergen 1 1 1"},
		{"a pod of a deleted ReplicaSet whose name a new one has", []state.Object{deployment("kiosk", 1, 0), other(set.DeepCopy()), by("ReplicaSet", "kiosk-1", "replicaset-kiosk-1")}, "SiteDark bergen 1 1 0"},
		{"a pod whose ReplicaSet belongs to a deleted Deployment", []state.Object{other(deployment("kiosk", 1, 0)), set, by("ReplicaSet", "kiosk-1", "replicaset-kiosk-1")}, "SiteDark bergen 1 1 0"},
		{"a pod of a new ReplicaSet of a new Deployment", []state.Object{other(deployment("kiosk", 1, 0)), other(of.DeepCopy()), by("ReplicaSet", "kiosk-1", "replicaset-kiosk-1-2")}, "SiteDark bergen 1 1 1"},
		{"a pod of a StatefulSet", []state.Object{stateful.DeepCopy(), by("StatefulSet", "kiosk", "statefulset-kiosk")}, "SiteDark bergen 1 1 1"},
		{"a pod of a deleted StatefulSet whose name a new one has", []state.Object{other(stateful.DeepCopy()), by("StatefulSet", "kiosk", "statefulset-kiosk")}, "SiteDark bergen 1 1 0"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(t)
			w.nodes("bergen", 1)
			w.put(c.objs...)
			w.ready("bergen-0", corev1.ConditionUnknown)
			w.wait(2 * time.Second)
			w.shows("the node is dark", c.want)
			settler := control.NewSettler(nil, decider)
			if _, more, _ := settler.Settle(w.s, nil, w.now); len(more) > 0 {
				t.Errorf("a full recomputation changes %+v", more[0].New)
			}
		})
	}
}

// A ReplicaSet that a finalizer keeps after its Deployment was deleted has its own incidents.
func TestARemainingReplicaSetHasItsOwnIncidents(t *testing.T) {
	w := newWorld(t)
	w.nodes("bergen", 1)
	d := deployment("kiosk", 1, 0)
	w.put(d, replicaSet("kiosk-1", "kiosk"), pod("kiosk-x", "", all(owned("kiosk-1"), unplaced)))
	w.wait(time.Minute)
	w.shows("a pod finds no node", "CannotBePlaced kiosk 0 1 1")
	w.remove(d)
	w.wait(2 * time.Second)
	settler := control.NewSettler(nil, decider)
	if _, more, _ := settler.Settle(w.s, nil, w.now); len(more) > 0 {
		t.Errorf("a full recomputation changes %+v", more[0].New)
	}
	w.shows("the Deployment is removed", "CannotBePlaced kiosk-1 0 1 0")
}

// A deleted workload does not lack pods, even if its pods were being evicted before.
func TestADeletedWorkloadIsNotShort(t *testing.T) {
	w := newWorld(t)
	w.nodes("bergen", 1)
	d, set := deployment("kiosk", 1, 0), replicaSet("kiosk-1", "kiosk")
	w.put(d, set, pod("kiosk-x", "bergen-0", all(owned("kiosk-1"), func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: noon.Add(time.Minute)}, new(int64(30))
	})))
	w.ready("bergen-0", corev1.ConditionUnknown)
	w.wait(2 * time.Second)
	w.shows("the node is dark", "SiteDark bergen 1 0 1")
	w.apply([]state.Change{state.Remove(d, ""), state.Remove(set, "")})
	w.wait(2 * time.Second)
	w.shows("the ready node is deleted", "SiteDark bergen 1 0 0")
}

// Incidents of a deleted workload's pods end with the pods. A pod that does not stop has an
// incident.
func TestAPodOfADeletedWorkloadThatDoesNotStopHasAnIncident(t *testing.T) {
	leaves := func(at time.Time) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: at.Add(30 * time.Second)}, new(int64(30))
		}
	}
	for what, play := range map[string]func(*world, *appsv1.ReplicaSet){
		"the workload is removed first": func(w *world, r *appsv1.ReplicaSet) {
			w.remove(r)
			w.put(pod("kiosk-x", "bergen-0", all(owned("kiosk-1"), leaves(w.now))))
		},
		"the workload is removed last": func(w *world, r *appsv1.ReplicaSet) {
			w.put(pod("kiosk-x", "bergen-0", all(owned("kiosk-1"), leaves(w.now))))
			w.wait(10 * time.Second)
			w.remove(r)
		},
		"the workload is removed while the incident is open": func(w *world, r *appsv1.ReplicaSet) {
			w.put(pod("kiosk-x", "bergen-0", all(owned("kiosk-1"), leaves(w.now))))
			w.wait(10 * time.Minute)
			w.shows("the pod does not stop", "DoesNotStop kiosk-1 0 1 0")
			w.remove(r)
		},
		"a new workload has the name": func(w *world, r *appsv1.ReplicaSet) {
			w.put(pod("kiosk-x", "bergen-0", all(owned("kiosk-1"), leaves(w.now))))
			r = r.DeepCopy()
			r.UID = "another"
			w.put(r)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.nodes("bergen", 1)
			r := replicaSet("kiosk-1", "kiosk")
			r.OwnerReferences = nil
			w.put(r, pod("kiosk-x", "bergen-0", all(owned("kiosk-1"), waiting("CrashLoopBackOff", "x"))))
			w.wait(time.Minute)
			play(w, r)
			w.wait(10 * time.Minute)
			w.shows("the pod does not stop", "DoesNotStop kiosk-x 0 1 0")
			settler := control.NewSettler(nil, decider)
			if _, more, _ := settler.Settle(w.s, nil, w.now); len(more) > 0 {
				t.Errorf("a full recomputation changes %+v", more[0].New)
			}
			w.remove(w.s.Pod("default", "kiosk-x"))
			w.wait(10 * time.Minute)
			w.shows("the pod has stopped")
		})
	}
}
