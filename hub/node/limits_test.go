package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Repeated reports of a device replace earlier ones and do not accumulate.
func TestReportsOfAPodDoNotAccumulate(t *testing.T) {
	gate := corev1.PodCondition{Type: "example.org/gate", Status: corev1.ConditionFalse, Message: "an operator's"}
	p := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{gate, {Type: corev1.PodScheduled,
		Status: corev1.ConditionTrue}}}}
	for list := range 10 {
		status := corev1.PodStatus{Phase: corev1.PodRunning,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		for i := range bound.MaxConditions - 1 {
			status.Conditions = append(status.Conditions,
				corev1.PodCondition{Type: corev1.PodConditionType(fmt.Sprintf("example.org/%d-%d", list, i)),
					Status: corev1.ConditionTrue})
		}
		status.Conditions = append(status.Conditions, status.Conditions[0],
			corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByTaintManager"})
		mergeStatus(p, status, time.Now())
	}
	if n := len(p.Status.Conditions); n != 3 {
		t.Errorf("after ten lists the pod has %d conditions, want Ready, PodScheduled and the operator's", n)
	}
	for _, c := range p.Status.Conditions {
		if c.Type == gate.Type && c != gate {
			t.Errorf("the operator's condition is %v", c)
		}
	}
	if err := bound.Object(p); err != nil {
		t.Error("the pod cannot be decoded again:", err)
	}
}

func TestADeviceReportsAnEviction(t *testing.T) {
	scheduled := corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}
	evicted := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: corev1.PodReasonTerminationByKubelet, Message: "The node was low on resource: memory. "}
	drained := corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "EvictionByEvictionAPI"}
	for name, c := range map[string]struct {
		had  []corev1.PodCondition
		want string
	}{
		"the pod is new":              {[]corev1.PodCondition{scheduled}, evicted.Reason},
		"the hub has deleted the pod": {[]corev1.PodCondition{scheduled, drained}, drained.Reason},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{Status: corev1.PodStatus{Conditions: c.had}}
			for range 2 {
				mergeStatus(p, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted",
					Conditions: []corev1.PodCondition{evicted}}, time.Now())
			}
			if got := state.PodCondition(p, corev1.DisruptionTarget); got == nil || got.Reason != c.want ||
				got.LastTransitionTime.IsZero() && c.want == evicted.Reason || len(p.Status.Conditions) != 2 {
				t.Errorf("the pod has %v, want %s", p.Status.Conditions, c.want)
			}
		})
	}
}

func TestARepeatedPartOfAListDoesNotAccumulate(t *testing.T) {
	const lists, pods = 50, 10
	part := func(n, list int) wire.Pods {
		p := wire.Pods{Boot: "b", Seq: 2, Part: n, Parts: 2}
		for i := range pods {
			p.Pods = append(p.Pods, wire.PodStatus{UID: types.UID(fmt.Sprintf("%d-%d-%d", n, list, i)), Namespace: "default",
				Name: "p"})
		}
		return p
	}
	var p liveness
	for list := range lists {
		if _, whole := p.addPart(part(1, list)); whole {
			t.Fatal("one of two parts counts as the whole list")
		}
		p.partRemembered(part(1, list), false)
	}
	holds, whole := p.addPart(part(2, 0))
	if !whole || len(holds) != 2*pods || !holds[part(1, lists-1).Pods[0].UID] {
		t.Errorf("%d pods are listed, want those of the newest two parts; whole: %v", len(holds), whole)
	}
}

// A device cannot fill its Node completely, because users could then neither cordon nor drain it.
func TestADeviceLeavesRoomInItsNode(t *testing.T) {
	var d Devices
	st := wire.Status{Boot: "b", Seq: 1, Registration: wire.Registration{Labels: map[string]string{}}}
	for i := range bound.MaxLabels {
		st.Registration.Labels[fmt.Sprintf("l-%02d", i)] = "own"
		st.Registration.Taints = append(st.Registration.Taints,
			corev1.Taint{Key: fmt.Sprintf("t-%d", i), Effect: corev1.TaintEffectNoSchedule})
		st.Status.Conditions = append(st.Status.Conditions,
			corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprintf("C%d", i)), Status: corev1.ConditionTrue})
	}
	st.Status.NodeInfo.OperatingSystem, st.Status.NodeInfo.Architecture = "linux", "arm64"
	st.Status.Conditions[bound.MaxConditions-1] = corev1.NodeCondition{Type: corev1.NodeReady,
		Status: corev1.ConditionTrue}
	rec := &state.Record{Site: "oslo", Labels: map[string]string{"a": "token", "z": "token"}}
	s, now := state.Empty("test", time.Now()), time.Now()
	n, refused := d.register(s, "pi-1", rec, st, now)
	if len(refused) == 0 {
		t.Error("the refused labels are not reported")
	}
	room := func(when string) {
		t.Helper()
		n := n.DeepCopy()
		for i := range 8 {
			n.Labels[fmt.Sprintf("example.org/operator-%d", i)] = ""
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("example.org/operator-%d", i),
				Effect: corev1.TaintEffectNoSchedule})
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: fleet.ConditionFlapping},
			corev1.NodeCondition{Type: fleet.ConditionIdentityConflict})
		if err := bound.Object(n); err != nil {
			t.Error(when, err)
		}
		if n.Labels["a"] != "token" || n.Labels["z"] != "token" || n.Labels[corev1.LabelHostname] != "pi-1" ||
			n.Labels[corev1.LabelTopologyZone] != "oslo" || n.Labels["l-00"] != "own" {
			t.Error(when, n.Labels)
		}
		if state.ReadyOf(n) != corev1.ConditionTrue {
			t.Error(when, "the node is not ready")
		}
	}
	room("registered:")
	for i := range bound.MaxLabels {
		st.Registration.Labels[fmt.Sprintf("%s%02d", fleet.LabelHardwarePrefix, i)] = "1"
	}
	d.report(n, st, nil, now)
	d.refreshLabels(s, n, rec, st)
	room("with the device's measurements:")
}

// A Node made by hand may be full. The device that takes it over must not exceed the limit. The
// labels that the hub needs are set first.
func TestADeviceDoesNotOverfillANodeMadeByHand(t *testing.T) {
	profile := func(state.Snapshot, corev1.NodeStatus, json.RawMessage) string { return "rpi-4" }
	d := Devices{Config: Config{Profile: profile}}
	st := wire.Status{Boot: "b", Seq: 1, Registration: wire.Registration{Labels: map[string]string{fleet.LabelBoard: "rpi",
		fleet.LabelHardwarePrefix + "i2c": "1"}}}
	st.Status.NodeInfo.OperatingSystem, st.Status.NodeInfo.Architecture = "linux", "arm64"
	rec := &state.Record{Site: "oslo"}
	for own := range bound.MaxLabels + 1 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}
		for i := range own {
			metav1.SetMetaDataLabel(&n.ObjectMeta, fmt.Sprintf("example.org/l-%02d", i), "")
		}
		s := state.Empty("test", time.Now())
		d.refreshLabels(s, n, rec, st)
		s, _ = state.Apply(s, []state.Change{state.Put(n, ""),
			state.Put(&fleet.DeviceReport{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"},
				Hardware: runtime.RawExtension{Raw: []byte("{}")}}, "")})
		for _, c := range (Rematch{profile}).Decide(s,
			[]state.Subject{{Key: state.Key{Kind: state.BoardProfiles, Name: "rpi-4"}}}, time.Now()).Changes {
			n = c.Object.(*corev1.Node)
		}
		if err := bound.Object(n); err != nil {
			t.Fatalf("with %d labels of an administrator: %v", own, err)
		}
		for i, k := range []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelArchStable,
			corev1.LabelOSStable} {
			if _, has := n.Labels[k]; has != (i < bound.MaxLabels-own) {
				t.Errorf("with %d labels of an administrator the node has %s: %v", own, k, has)
			}
		}
		if _, has := n.Labels[fleet.LabelProfile]; own <= bound.MaxLabels-hubLabels && !has {
			t.Errorf("with %d labels of an administrator the node has no profile", own)
		}
	}
}

// A device's token also leaves space in its Node.
func TestATokenLeavesRoomInTheNodesThatJoinWithIt(t *testing.T) {
	var d Devices
	rec := &state.Record{Site: "oslo", Labels: map[string]string{}}
	for i := range bound.MaxLabels {
		rec.Labels[fmt.Sprintf("t-%02d", i)] = "token"
	}
	st := wire.Status{Boot: "b", Seq: 1}
	st.Status.NodeInfo.OperatingSystem, st.Status.NodeInfo.Architecture = "linux", "arm64"
	st.Registration.Labels = map[string]string{fleet.LabelBoard: "rpi"}
	n, refused := d.register(state.Empty("test", time.Now()), "pi-1", rec, st, time.Now())
	for i := range 8 {
		n.Labels[fmt.Sprintf("example.org/operator-%d", i)] = ""
	}
	if err := bound.Object(n); err != nil {
		t.Error(err)
	}
	if n.Labels["t-00"] != "token" || n.Labels[corev1.LabelHostname] != "pi-1" ||
		n.Labels[corev1.LabelTopologyZone] != "oslo" || n.Labels[fleet.LabelBoard] != "rpi" {
		t.Error(n.Labels)
	}
	if !slices.Contains(refused, `label "t-63" of its token`) {
		t.Errorf("the refused label %q is not reported", refused)
	}
}

// A pod's status keeps only entries about the pod's own containers, of limited size. Otherwise a
// device could store gigabytes, which every list of pods returns.
func TestAStatusIsLimitedToItsPod(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers:      []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}},
		Containers:          []corev1.Container{{Name: "web"}, {Name: "log"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
	}}
	long := strings.Repeat("x", 4096)
	lists := func(names ...string) (all []corev1.ContainerStatus) {
		for _, name := range names {
			c := corev1.ContainerStatus{Name: name, Ready: true,
				Resources: &corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}},
				User:      &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{}}}
			for i := range 200 {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMountStatus{Name: long, MountPath: fmt.Sprint(long, i)})
				c.AllocatedResourcesStatus = append(c.AllocatedResourcesStatus,
					corev1.ResourceStatus{Name: corev1.ResourceName(fmt.Sprint("r", i)),
						Resources: []corev1.ResourceHealth{{ResourceID: corev1.ResourceID(long)}}})
				c.User.Linux.SupplementalGroups = append(c.User.Linux.SupplementalGroups, int64(i))
				c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: long})
				c.Resources.Requests[corev1.ResourceName(fmt.Sprint("r", i))] = resource.MustParse("1")
			}
			c.AllocatedResources, c.Resources.Limits = c.Resources.Requests, c.Resources.Requests
			all = append(all, c)
		}
		return all
	}
	status := corev1.PodStatus{
		InitContainerStatuses:       lists("init", "side", "web", "init", "none"),
		ContainerStatuses:           lists("web", "log", "web", "init", "none", ""),
		EphemeralContainerStatuses:  lists("debug", "other", "debug"),
		Resources:                   &corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: long}}},
		AllocatedResources:          corev1.ResourceList{"x": resource.MustParse("1")},
		ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: long},
	}
	for i := range 300 {
		status.PodIPs, status.HostIPs = append(status.PodIPs, corev1.PodIP{IP: fmt.Sprint(long, i)}),
			append(status.HostIPs, corev1.HostIP{IP: fmt.Sprint(long, i)})
		status.ResourceClaimStatuses = append(status.ResourceClaimStatuses,
			corev1.PodResourceClaimStatus{Name: fmt.Sprint(long, i)})
	}
	mergeStatus(p, status, time.Now())
	if raw, _ := json.Marshal(p.Status); len(raw) > 128<<10 {
		t.Errorf("the pod's status has %d bytes", len(raw))
	}
	names := func(list []corev1.ContainerStatus) (all string) {
		for _, c := range list {
			all += c.Name + " "
		}
		return all
	}
	if got := names(p.Status.InitContainerStatuses) + "| " + names(p.Status.ContainerStatuses) + "| " + names(p.Status.EphemeralContainerStatuses); got != "init side | web log | debug " {
		t.Errorf("the pod's containers are %s", got)
	}
}

// A device that has lost its state counts restarts from 0 again.
func TestARestartCountNeverGoesBack(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "init"}},
		Containers: []corev1.Container{{Name: "web"}}}}
	for _, status := range []struct{ says, want int32 }{{-1, 0}, {5, 5}, {0, 5}, {6, 6}} {
		mergeStatus(p, corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", RestartCount: status.says}},
			ContainerStatuses:     []corev1.ContainerStatus{{Name: "web", RestartCount: status.says}},
		}, time.Now())
		if init, web := p.Status.InitContainerStatuses[0].RestartCount,
			p.Status.ContainerStatuses[0].RestartCount; init != status.want || web != status.want {
			t.Errorf("after a report of %d the counts are %d and %d, want %d", status.says, init, web, status.want)
		}
	}
}

func TestAStatusHasOnlyValuesOfTheAPI(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	at := func(t time.Time) metav1.Time { return metav1.NewTime(t) }
	late, skewed := at(now.AddDate(73, 0, 0)), at(now.Add(10*time.Second))
	p := &corev1.Pod{
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}, {Name: "log"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	mergeStatus(p, corev1.PodStatus{
		Phase: "Bogus", HostIP: "not-an-ip", PodIP: "fe80::1%eth0", StartTime: &late,
		PodIPs:  []corev1.PodIP{{IP: "x"}, {IP: "10.244.0.2"}},
		HostIPs: []corev1.HostIP{{IP: "10.0.0.300"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: "Maybe"},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "web", RestartCount: -3, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "x"}, Running: &corev1.ContainerStateRunning{StartedAt: late},
			}},
			{Name: "log", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{StartedAt: skewed, FinishedAt: late},
				Running:    &corev1.ContainerStateRunning{},
			}},
		},
	}, now)
	st := p.Status
	if st.Phase != corev1.PodPending {
		t.Errorf("the phase is %q, want the last one known", st.Phase)
	}
	if st.HostIP != "" || st.PodIP != "" || len(st.PodIPs) != 1 || len(st.HostIPs) != 0 {
		t.Errorf("the pod has the addresses %q %q %v %v", st.HostIP, st.PodIP, st.PodIPs, st.HostIPs)
	}
	if st.StartTime == nil || !st.StartTime.Time.Equal(now) {
		t.Errorf("the pod started at %v, want now at the latest", st.StartTime)
	}
	if state.PodCondition(p, corev1.PodInitialized) != nil || state.PodCondition(p, corev1.ContainersReady) == nil {
		t.Errorf("the pod's conditions are %v", st.Conditions)
	}
	web, log := st.ContainerStatuses[0], st.ContainerStatuses[1]
	if web.RestartCount != 0 || web.State.Waiting != nil || web.State.Running == nil ||
		!web.State.Running.StartedAt.IsZero() {
		t.Errorf("web is %+v", web)
	}
	if end := log.State.Terminated; log.State.Running != nil || end == nil || end.StartedAt != skewed ||
		!end.FinishedAt.IsZero() {
		t.Errorf("log is %+v", log.State)
	}
}

// A device must not grant a container more than is requested now or was before, because that could
// use up a quota.
func TestADeviceGrantsNoMoreThanRequested(t *testing.T) {
	list := func(cpu string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}
	}
	for _, c := range []struct{ rule, spec, had, says, want string }{
		{"as much as requested", "1", "", "1", "1"},
		{"less, before it has grown", "2", "1", "1", "1"},
		{"more, before it has shrunk", "1", "2", "2", "2"},
		{"no more than the earlier amount", "1", "2", "3", "2"},
		{"no more than requested", "1", "", "4096", "1"},
		{"no more than the amount after growing", "3", "2", "9", "3"},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "pi-1",
			Containers: []corev1.Container{{Name: "web", Resources: corev1.ResourceRequirements{Requests: list(c.spec),
				Limits: list(c.spec)}}}}}
		statusOf := func(cpu string) corev1.PodStatus {
			return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web", AllocatedResources: list(cpu),
				Resources: &corev1.ResourceRequirements{Requests: list(cpu), Limits: list(cpu)}}}}
		}
		if c.had != "" {
			p.Status = statusOf(c.had)
		}
		mergeStatus(p, statusOf(c.says), time.Now())
		got := p.Status.ContainerStatuses[0]
		for what, list := range map[string]corev1.ResourceList{"allocated": got.AllocatedResources,
			"requests": got.Resources.Requests, "limits": got.Resources.Limits} {
			if list.Cpu().String() != c.want {
				t.Errorf("%s: %s are %s, want %s", c.rule, what, list.Cpu(), c.want)
			}
		}
	}
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web"}}}}
	mergeStatus(p, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "web",
		Resources: &corev1.ResourceRequirements{Requests: list("9"), Limits: list("9")}}}}, time.Now())
	charge := state.Charge(p, time.Now())
	if requests, limits := charge[corev1.ResourceCPU], charge["limits.cpu"]; !requests.IsZero() || !limits.IsZero() {
		t.Errorf("a pod without requests is charged with %v", charge)
	}
}
