package incident_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// Whatever makes pods says in its own condition that it may not: that is one incident of every kind of workload.
func TestWhatMayNotMakeItsPodsIsAnIncident(t *testing.T) {
	const why = "exceeded quota: shop"
	meta := metav1.ObjectMeta{Namespace: "default", Name: "kiosk", UID: "kiosk-uid"}
	since, one := metav1.NewTime(noon.Add(-time.Minute)), int32(1)
	job := func(conditions ...batchv1.JobCondition) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: meta, Status: batchv1.JobStatus{Conditions: conditions}}
	}
	refused := batchv1.JobCondition{Type: "FailedCreate", Status: corev1.ConditionTrue, Message: why, LastTransitionTime: since}
	ofCron := job(refused)
	ofCron.Name, ofCron.UID = "kiosk-1", "job-uid"
	ofCron.OwnerReferences = []metav1.OwnerReference{{Kind: "CronJob", Name: "kiosk", UID: "kiosk-uid", Controller: new(true)}}
	for _, c := range []struct {
		rule string
		objs []state.Object
		want []string
	}{
		{"a Deployment's next version", []state.Object{&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &one}, Status: appsv1.DeploymentStatus{ReadyReplicas: 1, Conditions: []appsv1.DeploymentCondition{
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
		{"a Job that has failed since", []state.Object{job(refused, batchv1.JobCondition{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Message: "too late", LastTransitionTime: since})}, []string{"JobFailed kiosk 0 0 0"}},
		{"a Job that is complete since", []state.Object{job(refused, batchv1.JobCondition{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: since})}, nil},
		{"a Job of a CronJob", []state.Object{&batchv1.CronJob{ObjectMeta: meta}, ofCron}, []string{"CannotMakePods kiosk 0 0 0"}},
	} {
		t.Run(c.rule, func(t *testing.T) {
			w := newWorld(t)
			w.put(c.objs...)
			w.shows("it is told", c.want...)
			for _, i := range w.open() {
				if i.Detail != why && i.Cause == "CannotMakePods" || !i.Since.Equal(&since) {
					t.Errorf("since %s: %q", i.Since, i.Detail)
				}
			}
			last := c.objs[len(c.objs)-1]
			w.remove(last)
			w.wait(15 * time.Minute)
			w.shows("and over")
		})
	}
}

// A CronJob whose newest Job has ended well has no trouble any more, whatever an earlier one had.
func TestAJobThatEndsWellEndsTheTroubleOfItsCronJob(t *testing.T) {
	w := newWorld(t)
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "backup", UID: "cron-uid"}}
	job := func(name string, at time.Time, conditions ...batchv1.JobCondition) *batchv1.Job {
		return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(at),
			OwnerReferences: []metav1.OwnerReference{{Kind: "CronJob", Name: "backup", UID: "cron-uid", Controller: new(true)}}}, Status: batchv1.JobStatus{Conditions: conditions}}
	}
	ends := func(how batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: how, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(w.now)}
	}
	w.put(cron, job("backup-1", w.now, ends(batchv1.JobFailed)))
	w.shows("it has failed", "JobFailed backup 0 0 0")
	w.wait(time.Hour)
	began := w.now
	w.put(job("backup-2", began))
	w.shows("the next one runs", "JobFailed backup 0 0 0")
	w.wait(time.Minute)
	w.put(job("backup-2", began, ends(batchv1.JobComplete)))
	w.wait(time.Minute)
	w.shows("the next one has ended well")
}
