package table

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

var (
	running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	started = corev1.ContainerStatus{Name: "a", Ready: true, State: running}
)

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func ended(code int32, reason string, d time.Duration) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason,
		FinishedAt: ago(d)}}
}

func TestTheRowOfAPod(t *testing.T) {
	spec := func(inits, containers int) corev1.PodSpec {
		return corev1.PodSpec{InitContainers: make([]corev1.Container, inits),
			Containers: make([]corev1.Container, containers)}
	}
	pending := func(init ...corev1.ContainerStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, InitContainerStatuses: init}
	}
	runs := func(cs ...corev1.ContainerStatus) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: cs}
	}
	in := func(s corev1.ContainerState) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "a", State: s}
	}
	cond := func(s corev1.PodStatus, c corev1.PodConditionType, reason string) corev1.PodStatus {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue, Reason: reason})
		return s
	}
	because := func(s corev1.PodStatus, reason string) corev1.PodStatus { s.Reason = reason; return s }
	restarted := func(n int32, s, last corev1.ContainerState) corev1.ContainerStatus {
		return corev1.ContainerStatus{Name: "a", RestartCount: n, State: s, LastTerminationState: last}
	}
	sidecar := spec(1, 1)
	sidecar.InitContainers[0] = corev1.Container{Name: "side", RestartPolicy: ptr(corev1.ContainerRestartPolicyAlways)}
	leaving := ago(-30 * time.Second)

	for _, c := range []struct {
		name     string
		pod      corev1.Pod
		ready    string
		status   string
		restarts string
	}{
		{"a pod without statuses has its phase", corev1.Pod{Spec: spec(0, 1), Status: pending()}, "0/1", "Pending", "0"},
		{"the status' reason comes before the phase", corev1.Pod{Spec: spec(0, 1), Status: because(corev1.PodStatus{Phase: corev1.PodFailed}, "Evicted")}, "0/1", "Evicted", "0"},
		{"a pod with a scheduling gate", corev1.Pod{Spec: spec(0, 1), Status: cond(pending(), corev1.PodScheduled, "SchedulingGated")}, "0/1", "SchedulingGated", "0"},
		{"two running containers are ready", corev1.Pod{Spec: spec(0, 2), Status: runs(started, started)}, "2/2", "Running", "0"},
		{"a container that runs but is not ready does not count", corev1.Pod{Spec: spec(0, 1), Status: runs(in(running))}, "0/1", "Running", "0"},
		{"a container in back-off gives the pod's word", corev1.Pod{Spec: spec(0, 2), Status: runs(restarted(4, waiting("CrashLoopBackOff"), ended(1, "Error", 5*time.Minute)), started)}, "1/2", "CrashLoopBackOff", "4 (5m ago)"},
		{"the first of two failing containers gives the word", corev1.Pod{Spec: spec(0, 2), Status: runs(in(waiting("ImagePullBackOff")), in(waiting("CrashLoopBackOff")))}, "0/2", "ImagePullBackOff", "0"},
		{"the newest restart counts", corev1.Pod{Spec: spec(0, 2), Status: runs(restarted(1, running, ended(1, "Error", time.Hour)), restarted(2, running, ended(1, "Error", 10*time.Second)))}, "0/2", "Running", "3 (10s ago)"},
		{"restarts without a time are only counted", corev1.Pod{Spec: spec(0, 1), Status: runs(restarted(3, running, corev1.ContainerState{}))}, "0/1", "Running", "3"},
		{"a container that ended without a reason shows its exit code", corev1.Pod{Spec: spec(0, 1), Status: runs(in(ended(7, "", 0)))}, "0/1", "ExitCode:7", "0"},
		{"a container killed by a signal shows the signal", corev1.Pod{Spec: spec(0, 1), Status: runs(in(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Signal: 9}}))}, "0/1", "Signal:9", "0"},
		{"a ready pod with a completed and a running container is Running", corev1.Pod{Spec: spec(0, 2), Status: cond(runs(in(ended(0, "Completed", 0)), started), corev1.PodReady, "")}, "1/2", "Running", "0"},
		{"a pod that is not ready, with a completed and a running container, is NotReady", corev1.Pod{Spec: spec(0, 2), Status: runs(in(ended(0, "Completed", 0)), started)}, "1/2", "NotReady", "0"},
		{"a pod with a completed and a failed container is Error", corev1.Pod{Spec: spec(0, 2), Status: runs(in(ended(0, "Completed", 0)), in(ended(1, "Error", 0)))}, "0/2", "Error", "0"},
		{"all completed", corev1.Pod{Spec: spec(0, 1), Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{in(ended(0, "Completed", 0))}}}, "0/1", "Completed", "0"},
		{"an init container that runs is counted", corev1.Pod{Spec: spec(3, 1), Status: pending(in(ended(0, "Completed", 0)), in(running))}, "0/1", "Init:1/3", "0"},
		{"init containers that wait are counted", corev1.Pod{Spec: spec(2, 1), Status: pending(in(waiting("PodInitializing")))}, "0/1", "Init:0/2", "0"},
		{"an init container in back-off", corev1.Pod{Spec: spec(1, 1), Status: pending(restarted(2, waiting("CrashLoopBackOff"), ended(1, "Error", time.Minute)))}, "0/1", "Init:CrashLoopBackOff", "2 (60s ago)"},
		{"an init container that failed", corev1.Pod{Spec: spec(1, 1), Status: pending(in(ended(1, "Error", 0)))}, "0/1", "Init:Error", "0"},
		{"an init container that failed without a reason", corev1.Pod{Spec: spec(1, 1), Status: pending(in(ended(3, "", 0)))}, "0/1", "Init:ExitCode:3", "0"},
		{"restarts of init containers do not count once the pod runs", corev1.Pod{Spec: spec(1, 1), Status: corev1.PodStatus{Phase: corev1.PodRunning,
			InitContainerStatuses: []corev1.ContainerStatus{restarted(5, ended(0, "Completed", 0),
				ended(1, "Error", time.Minute))}, ContainerStatuses: []corev1.ContainerStatus{started}}}, "1/1", "Running", "0"},
		{"a sidecar counts like a container", corev1.Pod{Spec: sidecar, Status: corev1.PodStatus{Phase: corev1.PodRunning,
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "side", Ready: true, Started: ptr(true), RestartCount: 1,
				State: running}}, ContainerStatuses: []corev1.ContainerStatus{started}}}, "2/2", "Running", "1"},
		{"a pod that is being deleted is Terminating", corev1.Pod{ObjectMeta: del(leaving), Spec: spec(0, 1), Status: runs(started)}, "1/1", "Terminating", "0"},
		{"a finished pod that is being deleted keeps its word", corev1.Pod{ObjectMeta: del(leaving), Spec: spec(0, 1), Status: corev1.PodStatus{Phase: corev1.PodFailed}}, "0/1", "Failed", "0"},
		{"a pod that is being deleted on a lost node is Unknown", corev1.Pod{ObjectMeta: del(leaving), Spec: spec(0, 1), Status: because(runs(started), "NodeLost")}, "1/1", "Unknown", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cells := For(state.Pods, []state.Object{&c.pod}, Options{Now: now}).Rows[0].Cells
			if cells[1] != c.ready || cells[2] != c.status || cells[3] != c.restarts {
				t.Errorf("got %v %v %v, want %s %s %s", cells[1], cells[2], cells[3], c.ready, c.status, c.restarts)
			}
		})
	}
}

func TestAFinishedPodsRowIsMarked(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]string{corev1.PodSucceeded: "Succeeded", corev1.PodFailed: "Failed",
		corev1.PodRunning: ""} {
		row := For(state.Pods, []state.Object{&corev1.Pod{Status: corev1.PodStatus{Phase: phase}}}, Options{Now: now}).Rows[0]
		got := ""
		if len(row.Conditions) > 0 {
			got = row.Conditions[0].Reason
		}
		if got != want {
			t.Errorf("%s: the row has the condition %q, want %q", phase, got, want)
		}
	}
}

func del(t metav1.Time) (m metav1.ObjectMeta) {
	m.DeletionTimestamp = &t
	return m
}
