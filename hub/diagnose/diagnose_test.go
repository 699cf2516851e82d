package diagnose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(noon.Add(-d)) }

func TestEveryCauseHasACompleteRule(t *testing.T) {
	f := diagnose.Finding{Args: diagnose.Args{Node: "pi-1", Container: "web", Image: "shop:1", Reason: "Because",
		Message: "it says so"}}
	ofFamily := map[diagnose.Family]map[int]fleet.IncidentCause{}
	for _, c := range diagnose.Causes() {
		r := diagnose.RuleOf(c)
		if f.Cause = c; r.Severity == "" || r.Family == "" || r.Card == "" || r.Fix == "" || r.Row == nil {
			t.Errorf("the rule of %s is incomplete: %+v", c, r)
		}
		if f.End = (diagnose.End{Known: true, Code: 1}); f.Row() == "" {
			t.Errorf("%s has no Row", c)
		}
		for _, text := range []string{r.Card, r.Many} {
			if n := strings.Count(text, "%"); n != strings.Count(text, "%s") || n > 1 {
				t.Errorf("%s: the card %q has more than one %%s", c, text)
			}
		}
		if ofFamily[r.Family] == nil {
			ofFamily[r.Family] = map[int]fleet.IncidentCause{}
		}
		if other := ofFamily[r.Family][r.Rank]; other != "" && c != diagnose.SiteDark {
			t.Errorf("%s and %s have the same rank in the family %s", c, other, r.Family)
		}
		ofFamily[r.Family][r.Rank] = c
	}
}

// Every condition that package fleet calls bad has a cause.
func TestEveryBadConditionHasACause(t *testing.T) {
	found := 0
	for _, name := range []corev1.NodeConditionType{
		corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable,
		fleet.ConditionOutOfDisk, fleet.ConditionFlapping, fleet.ConditionIdentityConflict, fleet.ConditionPowerOK,
		fleet.ConditionStorageHealthy,
		fleet.ConditionStateStored, fleet.ConditionPodCIDRAvailable, fleet.ConditionTemperatureOK,
		fleet.ConditionPeripheralsPresent,
		fleet.ConditionClockSynced, fleet.ConditionMemoryLimits, fleet.ConditionFirmwareReady, fleet.ConditionSwapLimits,
	} {
		for _, status := range []corev1.ConditionStatus{"True", "False", "Unknown"} {
			c := corev1.NodeCondition{Type: name, Status: status, LastTransitionTime: ago(time.Minute)}
			n := node(c)
			all := slices.Collect(diagnose.Node(n))
			if fails := diagnose.Fails(c); fails != (len(all) == 1) || fails && (all[0].Cause == "" ||
				all[0].About.Name != n.Name || !all[0].Since.Equal(c.LastTransitionTime.Time)) {
				t.Errorf("%s=%s: the findings are %+v, want one exactly if the condition is bad", name, status, all)
			} else if fails {
				found++
			}
		}
	}
	if found != 13 {
		t.Errorf("%d conditions fail, want 13", found)
	}
}

func node(conditions ...corev1.NodeCondition) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1", CreationTimestamp: ago(48 * time.Hour)}}
	n.Status.Conditions = append([]corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastTransitionTime: ago(47 * time.Hour)}}, conditions...)
	return n
}

func ready(status corev1.ConditionStatus, reason string, since time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: status, Reason: reason,
			Message: "it says so", LastTransitionTime: ago(since)}
	}
}

func TestPodFindings(t *testing.T) {
	state1 := func(c corev1.ContainerStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) { c.Name = "web"; p.Status.ContainerStatuses = []corev1.ContainerStatus{c} }
	}
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "m"}}
	}
	ended := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	phase := func(ph corev1.PodPhase) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Status.Phase = ph } }
	unplaced := func(p *corev1.Pod) {
		p.Spec.NodeName, p.Status.Phase = "", corev1.PodPending
		p.Status.Conditions = nil
	}
	scheduled := func(reason string, since time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			unplaced(p)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse,
				Reason: reason, LastTransitionTime: ago(since)}}
		}
	}
	notReady := func(since time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions[1].Status, p.Status.Conditions[1].LastTransitionTime = corev1.ConditionFalse, ago(since)
		}
	}
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	by := func(kind string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "x", UID: "x", Controller: new(true)}}
		}
	}
	leaves := func(since time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.DeletionTimestamp = new(ago(since)) }
	}
	gates := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/paid"}, {Name: "b"}}
	}
	type change = func(*corev1.Pod)
	for _, c := range []struct {
		rule    string
		of      func(*corev1.Node)
		changes []change
		want    fleet.IncidentCause
		since   time.Duration
		due     time.Duration // time after since
	}{
		{rule: "a ready pod"},
		{rule: "a completed pod", changes: []change{phase(corev1.PodSucceeded)}},
		{"a failed pod without a controller", nil, []change{phase(corev1.PodFailed)}, diagnose.PodFailed, 26 * time.Hour, 0},
		{"a failed pod whose owner creates no pods", nil, []change{phase(corev1.PodFailed), by("ConfigMap")}, diagnose.PodFailed, 26 * time.Hour, 0},
		{"a failed pod that its workload replaces", nil, []change{phase(corev1.PodFailed), by("ReplicaSet")}, diagnose.PodReplaced, 26 * time.Hour, 0},
		{"a failed pod on a dark node", ready("Unknown", "", time.Hour), []change{phase(corev1.PodFailed)}, diagnose.PodFailed, 26 * time.Hour, 0},
		{"a pod that fits no node", nil, []change{scheduled("Unschedulable", time.Hour)}, diagnose.CannotBePlaced, time.Hour, 0},
		{"a pod that the scheduler has not tried", nil, []change{unplaced}, diagnose.CannotBePlaced, 26 * time.Hour, 2 * time.Minute},
		{"a gated pod", nil, []change{scheduled("SchedulingGated", time.Hour), gates}, diagnose.PodGated, time.Hour, 0},
		{"a gated pod without a condition", nil, []change{unplaced, gates}, diagnose.PodGated, 26 * time.Hour, 0},
		{"a pod on a dark node", ready("Unknown", "", time.Hour), []change{notReady(time.Minute)}, diagnose.NodeDark, time.Hour, 0},
		{"a pod on a node that is not ready", ready("False", "Because", time.Hour), nil, diagnose.NodeNotReady, time.Hour, 0},
		{"a pod on a node that restarts", ready("False", "NodeShutdown", time.Hour), nil, diagnose.NodeNotReady, time.Hour, time.Minute},
		{"a pod on a node that has never reported", ready("Unknown", "NodeStatusNeverUpdated", time.Hour), nil, diagnose.NodeNeverReported, 48 * time.Hour, 0},
		{"a pod on a deleted node", nil, []change{func(p *corev1.Pod) { p.Spec.NodeName = "gone" }}, diagnose.NodeGone, 26 * time.Hour, 0},
		{"it leaves", nil, []change{leaves(time.Hour)}, diagnose.DoesNotStop, time.Hour, time.Minute},
		{"a terminating pod on a dark node", ready("Unknown", "", 2*time.Hour), []change{leaves(time.Hour)}, diagnose.DoesNotStop, time.Hour, time.Minute},
		{"a terminating pod on a node that was silent", ready("True", "", time.Minute), []change{leaves(time.Hour)}, diagnose.DoesNotStop, time.Minute, time.Minute},
		{"a pod whose image cannot be pulled", nil, []change{state1(corev1.ContainerStatus{State: waiting("ErrImagePull")}), notReady(time.Hour)}, diagnose.ImageNotPulled, time.Hour, 0},
		{"it crashes", nil, []change{state1(corev1.ContainerStatus{State: waiting("CrashLoopBackOff")}), notReady(time.Hour)}, diagnose.CrashLoop, time.Hour, 0},
		{"a pod whose container cannot be created", nil, []change{state1(corev1.ContainerStatus{State: waiting("CreateContainerError")}), notReady(time.Hour)}, diagnose.CannotStart, time.Hour, 0},
		{"a pod whose container is being created", nil, []change{state1(corev1.ContainerStatus{State: waiting("ContainerCreating")}), notReady(time.Hour), phase(corev1.PodPending)}, diagnose.NotStarting, time.Hour, 2 * time.Minute},
		{"a pod that its device has not reported", nil, []change{phase("")}, diagnose.NotStarting, 26 * time.Hour, 2 * time.Minute},
		{"a pod that has crashed repeatedly", nil, []change{state1(corev1.ContainerStatus{State: ended(1), RestartCount: 1}), notReady(time.Hour)}, diagnose.CrashLoop, time.Hour, 0},
		{"a pod that has crashed once", nil, []change{state1(corev1.ContainerStatus{State: ended(1)}), notReady(time.Hour)}, diagnose.PodNotReady, time.Hour, 2 * time.Minute},
		{"a container has failed, and is not started again", nil, []change{never, state1(corev1.ContainerStatus{State: ended(1)}), notReady(time.Hour)}, diagnose.ContainerExited, time.Hour, 0},
		{"a container with its own restart policy restarts", nil, []change{never, func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{Name: "web", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
		}, state1(corev1.ContainerStatus{State: ended(1), RestartCount: 1}), notReady(time.Hour)}, diagnose.CrashLoop, time.Hour, 0},
		{"a container has completed", nil, []change{never, state1(corev1.ContainerStatus{State: ended(0)})}, "", 0, 0},
		{"a pod that is not ready", nil, []change{notReady(time.Hour)}, diagnose.PodNotReady, time.Hour, 2 * time.Minute},
		{"a pod that became not ready before its node returned", ready("True", "", time.Minute), []change{notReady(time.Hour)}, diagnose.PodNotReady, time.Minute, 2 * time.Minute},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p",
			CreationTimestamp: ago(26 * time.Hour)}, Spec: corev1.PodSpec{NodeName: "pi-1"}}
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
			Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		for _, f := range c.changes {
			f(p)
		}
		n := node()
		if c.of != nil {
			c.of(n)
		}
		s, _ := state.Apply(state.Empty("x", noon), []state.Change{state.Put(n, ""), state.Put(p, "")})
		f := diagnose.Pod(s, s.Pod("default", "p"))
		if f.Cause != c.want {
			t.Errorf("%s: %+v, want %s", c.rule, f, c.want)
			continue
		}
		if f.Cause == "" {
			continue
		}
		if since := noon.Sub(f.Since); since != c.since || c.due == 0 != f.Due.IsZero() || c.due > 0 &&
			f.Due.Sub(f.Since) != c.due {
			t.Errorf("%s: the finding began %s ago and is due at %s; want %s ago, due after %s", c.rule, since, f.Due, c.since, c.due)
		}
		if f != diagnose.Pod(s, s.Pod("default", "p").DeepCopy()) {
			t.Errorf("%s: two findings of the same pod differ", c.rule)
		}
	}
}

func TestProgressOfAWorkload(t *testing.T) {
	three := int32(3)
	deployment := func(change func(*appsv1.Deployment)) state.Object {
		d := &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &three}, Status: appsv1.DeploymentStatus{Replicas: 3,
			UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3}}
		change(d)
		return d
	}
	set := func(change func(*appsv1.StatefulSet)) state.Object {
		s := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: &three},
			Status: appsv1.StatefulSetStatus{Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 3, AvailableReplicas: 3}}
		change(s)
		return s
	}
	for _, c := range []struct {
		rule string
		o    state.Object
		want diagnose.Stage
	}{
		{"all pods are available", deployment(func(*appsv1.Deployment) {}), diagnose.Complete},
		{"one pod is not available", deployment(func(d *appsv1.Deployment) { d.Status.AvailableReplicas = 2 }), diagnose.Incomplete},
		{"one pod is of an older version", deployment(func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 2 }), diagnose.RollingOut},
		{"an old pod is surplus", deployment(func(d *appsv1.Deployment) { d.Status.Replicas = 4 }), diagnose.RollingOut},
		{"no pod is wanted, and one is surplus", deployment(func(d *appsv1.Deployment) { d.Spec.Replicas, d.Status.UpdatedReplicas = new(int32(0)), 0 }), diagnose.RollingOut},
		{"the newest generation is not observed yet", deployment(func(d *appsv1.Deployment) { d.Generation = 2 }), diagnose.RollingOut},
		{"no pod is wanted", deployment(func(d *appsv1.Deployment) {
			d.Spec.Replicas, d.Status = new(int32(0)), appsv1.DeploymentStatus{}
		}), diagnose.None},
		{"a paused rollout", deployment(func(d *appsv1.Deployment) { d.Spec.Paused, d.Status.UpdatedReplicas = true, 0 }), diagnose.Paused},
		{"a paused rollout without progress", deployment(func(d *appsv1.Deployment) {
			d.Spec.Paused = true
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing,
				Status: corev1.ConditionFalse}}
		}), diagnose.Stuck},
		{"a stateful set waits for a pod before the next version", set(func(s *appsv1.StatefulSet) { s.Status.AvailableReplicas, s.Status.UpdatedReplicas = 2, 1 }), diagnose.Incomplete},
		{"a stateful set has a partition", set(func(s *appsv1.StatefulSet) {
			s.Status.UpdatedReplicas, s.Spec.UpdateStrategy.RollingUpdate = 1,
				&appsv1.RollingUpdateStatefulSetStrategy{Partition: new(int32(2))}
		}), diagnose.Complete},
		{"a stateful set with OnDelete", set(func(s *appsv1.StatefulSet) {
			s.Status.UpdatedReplicas, s.Spec.UpdateStrategy.Type = 0, appsv1.OnDeleteStatefulSetStrategyType
		}), diagnose.Complete},
		{"a stateful set has surplus pods", set(func(s *appsv1.StatefulSet) { s.Status.Replicas = 4 }), diagnose.ScalingDown},
		{"a daemon set is on no node", &appsv1.DaemonSet{}, diagnose.None},
		{"a daemon set cannot create a pod", &appsv1.DaemonSet{Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, UpdatedNumberScheduled: 1, NumberAvailable: 1,
			Conditions: []appsv1.DaemonSetCondition{{Type: "ReplicaFailure", Status: corev1.ConditionTrue}}}}, diagnose.Stuck},
		{"a replication controller lacks a pod", &corev1.ReplicationController{Status: corev1.ReplicationControllerStatus{}}, diagnose.Incomplete},
		{"a Job has its own end", &batchv1.Job{}, ""},
	} {
		if p := diagnose.ProgressOf(c.o); p.Stage != c.want {
			t.Errorf("%s: %+v, want %s", c.rule, p, c.want)
		}
	}
}

func TestProgressOfAJob(t *testing.T) {
	with := func(kind batchv1.JobConditionType, message string) batchv1.JobStatus {
		return batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: kind, Status: corev1.ConditionTrue,
			Reason: "Because", Message: message}}}
	}
	for name, c := range map[string]struct {
		status  batchv1.JobStatus
		stage   diagnose.Stage
		message string
	}{
		"a Job with running pods is running":          {batchv1.JobStatus{Active: 1, Failed: 2}, diagnose.Running, ""},
		"a Job between two pods backs off":            {batchv1.JobStatus{Failed: 2}, diagnose.BackingOff, ""},
		"a finished Job is complete":                  {with(batchv1.JobComplete, ""), diagnose.Complete, ""},
		"a failed Job has a message":                  {with(batchv1.JobFailed, "too often"), diagnose.GaveUp, "too often"},
		"without a message the reason is shown":       {with(batchv1.JobFailed, ""), diagnose.GaveUp, "Because"},
		"a failed Job with running pods is giving up": {with(batchv1.JobFailureTarget, "too often"), diagnose.GivingUp, "too often"},
		"a suspended Job is suspended":                {with(batchv1.JobSuspended, ""), diagnose.Suspended, ""},
		"a Job that cannot create pods is stuck":      {with("FailedCreate", "quota"), diagnose.Stuck, "quota"},
	} {
		if p := diagnose.JobProgress(&batchv1.Job{Status: c.status}); p.Stage != c.stage || p.Message != c.message {
			t.Errorf("%s: %+v, want %s %q", name, p, c.stage, c.message)
		}
	}
}

func TestProgressOfACronJob(t *testing.T) {
	for name, c := range map[string]struct {
		spec  batchv1.CronJobSpec
		stage diagnose.Stage
		next  time.Time
	}{
		"an active schedule has a next time":      {batchv1.CronJobSpec{Schedule: "30 12 * * *"}, diagnose.Scheduled, noon.Add(30 * time.Minute)},
		"a suspended schedule has no next time":   {batchv1.CronJobSpec{Schedule: "30 12 * * *", Suspend: new(true)}, diagnose.Suspended, time.Time{}},
		"a date that does not exist is never due": {batchv1.CronJobSpec{Schedule: "0 0 31 2 *"}, diagnose.NeverDue, time.Time{}},
		"an invalid schedule is stuck":            {batchv1.CronJobSpec{Schedule: "at tea time"}, diagnose.Stuck, time.Time{}},
	} {
		p, next := diagnose.CronJobProgress(&batchv1.CronJob{Spec: c.spec}, noon)
		if p.Stage != c.stage || !next.Equal(c.next) || (p.Message != "") != (c.stage == diagnose.Stuck) {
			t.Errorf("%s: %+v, next %s; want %s, %s", name, p, next, c.stage, c.next)
		}
	}
}

func TestTroubledSites(t *testing.T) {
	for _, c := range []struct {
		status              fleet.SiteStatus
		disrupted, troubled bool
	}{
		{fleet.SiteStatus{}, false, false}, {fleet.SiteStatus{State: fleet.SiteNormal}, false, false}, {fleet.SiteStatus{State: fleet.SiteNormal, NotReady: 1}, false, true},
		{fleet.SiteStatus{State: fleet.SitePartialDisruption}, true, true}, {fleet.SiteStatus{State: fleet.SiteFullDisruption, NotReady: 3}, true, true},
	} {
		if s := (&fleet.Site{Status: c.status}); diagnose.Disrupted(s) != c.disrupted ||
			diagnose.SiteTroubled(s) != c.troubled {
			t.Errorf("%+v: disrupted is %v, troubled is %v", c.status, diagnose.Disrupted(s), diagnose.SiteTroubled(s))
		}
	}
}
