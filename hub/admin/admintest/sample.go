package admintest

import (
	"fmt"
	"math"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/history"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// SampleHistory returns a day of a board that gets hot around noon, with a gap.
func SampleHistory(_ types.UID, from time.Time, n int) []history.Word {
	words := make([]history.Word, n)
	for i := range words {
		at := from.Add(time.Duration(i) * history.Slot)
		ago := Now.Sub(at)
		if ago < 0 || ago > 6*24*time.Hour || ago > 200*time.Minute && ago < 4*time.Hour {
			continue
		}
		day := math.Sin(2*math.Pi*ago.Hours()/24 + 1)
		fast := math.Sin(2 * math.Pi * ago.Minutes() / 37)
		s := history.Nothing()
		s[history.CPU], s[history.Memory], s[history.Disk] = .3+.2*day+.08*fast, .5+.1*day, .61
		s[history.Temperature], s[history.Silence], s[history.Losses] = 68+14*day+2*fast, 10.3+max(0, 9*fast*day),
			max(0, math.Round(2*fast*day))
		s[history.RTT], s[history.Pods] = .03+.02*max(0, fast), 3
		words[i] = history.Pack(s)
	}
	return words
}

// ---- a fleet

var Now = time.Now().Truncate(time.Second)

func Ago(d time.Duration) metav1.Time { return metav1.NewTime(Now.Add(-d)) }

func micro(d time.Duration) metav1.MicroTime { return metav1.NewMicroTime(Now.Add(-d)) }

func Node(name, site string, change func(*corev1.Node)) *corev1.Node {
	have := corev1.ResourceList{
		"cpu": resource.MustParse("4"), "memory": resource.MustParse("3884Mi"),
		"ephemeral-storage": resource.MustParse("28Gi"), "pods": resource.MustParse("110"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: Ago(50 * time.Hour), Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "arm64",
			corev1.LabelTopologyZone: site, fleet.LabelBoard: "raspberrypi4",
		}},
		Status: corev1.NodeStatus{
			Capacity: have, Allocatable: have.DeepCopy(),
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.2.3"}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: "3f2a", KernelVersion: "6.12.34+rpt-rpi-v8", OSImage: "Debian GNU/Linux 12 (bookworm)",
				ContainerRuntimeVersion: "docker://28.5.2",
				KubeletVersion:          "v1.0.0", OperatingSystem: "linux", Architecture: "arm64",
			},
			Conditions: []corev1.NodeCondition{
				{Type: "MemoryPressure", Status: "False", Reason: "KubeletHasSufficientMemory",
					Message: "device has sufficient memory available", LastTransitionTime: Ago(50 * time.Hour)},
				{Type: "DiskPressure", Status: "False", Reason: "KubeletHasNoDiskPressure",
					Message: "device has no disk pressure", LastTransitionTime: Ago(50 * time.Hour)},
				{Type: "PowerOK", Status: "True", Reason: "PowerSufficient",
					Message: "the firmware reports no lack of power", LastTransitionTime: Ago(50 * time.Hour)},
				{Type: "MemoryLimits", Status: "False", Reason: "MemoryControllerMissing",
					Message:            "the kernel cannot limit the memory of containers",
					LastTransitionTime: Ago(50 * time.Hour)},
				{Type: "Ready", Status: "True", Reason: "KubeletReady", Message: "device is ready",
					LastTransitionTime: Ago(50 * time.Hour)},
			},
		},
	}
	if change != nil {
		change(n)
	}
	return n
}

func Condition(t corev1.NodeConditionType, s corev1.ConditionStatus, reason, message string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		c := corev1.NodeCondition{Type: t, Status: s, Reason: reason, Message: message,
			LastTransitionTime: Ago(90 * time.Second)}
		for i := range n.Status.Conditions {
			if n.Status.Conditions[i].Type == t {
				n.Status.Conditions[i] = c
				return
			}
		}
		n.Status.Conditions = append(n.Status.Conditions, c)
	}
}

func Pod(name, node string, change func(*corev1.Pod)) *corev1.Pod {
	started := true
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", CreationTimestamp: Ago(26 * time.Hour),
			Labels: map[string]string{"app": "kiosk"}},
		Spec: corev1.PodSpec{NodeName: node, RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{
			Name: "web", Image: "registry.example/kiosk:1.4.2",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"),
				"memory": resource.MustParse("192Mi")}},
		}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.64.3.7",
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "True"},
				{Type: corev1.PodReady, Status: "True", LastTransitionTime: Ago(25 * time.Hour)}},
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "web", Ready: true, Started: &started,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: Ago(25 * time.Hour)}},
			}},
		},
	}
	if change != nil {
		change(p)
	}
	return p
}

func Event(kind, name, reason, message string, d time.Duration) *corev1.Event {
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", name, len(message)+int(d)), Namespace: "default"},
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, Namespace: "default"},
		Type:           corev1.EventTypeNormal,
		Reason:         reason, Message: message, LastTimestamp: Ago(d), Count: 1,
	}
	if reason == "NodeNotReady" || reason == "FailedScheduling" || reason == "BackOff" || reason == "SiteDisrupted" {
		e.Type = corev1.EventTypeWarning
	}
	return e
}

const report = `{"host":{"hostname":"pi-2","os":"linux","arch":"arm64","cpu":"Cortex-A72","kernel":"6.12.34"},
"board":{"name":"raspberrypi4","model":"Raspberry Pi 4 Model B Rev 1.5","compatible":["raspberrypi,4-model-b","brcm,bcm2711"],"serial":"10000000c0ffee11","revision":{"code":"c03115","type":"4B","memoryMiB":4096,"number":5}},
"capacity":{"cpus":4,"memory":4072669184,"ephemeral":30064771072,"pods":110,"swap":0},
"temperatures":[{"name":"cpu-thermal","celsius":52.1}],"power":{"underVoltage":false,"throttledSeen":true},
"disks":[{"name":"mmcblk0","kind":"SD","bytes":31268536320,"written":812646400}],"clock":{"synced":true,"rtc":false},"memoryLimits":true,"problems":["i2c-1: permission denied"]}`

// Sample returns a fleet with one of each kind of trouble.
func Sample() []state.Object {
	site := func(name string, st fleet.SiteStatus) *fleet.Site {
		since := Ago(2 * time.Minute)
		st.Since = &since
		return &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: Ago(50 * time.Hour)},
			Status: st}
	}
	next := metav1.NewMicroTime(Now.Add(9 * time.Hour)) // later than the end of any test
	last := metav1.NewMicroTime(Now.Add(-5 * time.Second))
	replicas := int32(3)
	started, ended := Ago(8*time.Hour), Ago(7*time.Hour)
	task := batchv1.JobSpec{Completions: &replicas,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
			Image: "registry.example/report:4"}}}}}
	objects := []state.Object{
		&batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "nightly-report", Namespace: "default",
			CreationTimestamp: Ago(50 * time.Hour)},
			Spec: batchv1.CronJobSpec{Schedule: "30 2 * * *", TimeZone: new("Europe/Oslo"),
				JobTemplate: batchv1.JobTemplateSpec{Spec: task}},
			Status: batchv1.CronJobStatus{LastScheduleTime: &started, LastSuccessfulTime: &ended}},
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "nightly-report-29923064", Namespace: "default",
			CreationTimestamp: started}, Spec: task,
			Status: batchv1.JobStatus{Succeeded: 3, StartTime: &started, CompletionTime: &ended,
				Conditions: []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue,
					LastTransitionTime: ended}}}},
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "ledger", Namespace: "press",
			CreationTimestamp: started}, Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Template: task.Template},
			Status: appsv1.StatefulSetStatus{Replicas: 3, ReadyReplicas: 2, AvailableReplicas: 2, UpdatedReplicas: 3,
				Conditions: []appsv1.StatefulSetCondition{{Type: state.PodUnreachable, Status: corev1.ConditionTrue,
					Message: "ledger-1 on pi-2 may still run, as the device does not answer."}}}},
		&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "press-backup", Namespace: "press",
			CreationTimestamp: started}, Spec: task,
			Status: batchv1.JobStatus{Succeeded: 1, Failed: 7, StartTime: &started,
				Conditions: []batchv1.JobCondition{{Type: batchv1.JobFailed, Status: corev1.ConditionTrue,
					LastTransitionTime: ended, Message: "Job has reached the specified backoff limit"}}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}},
		site("oslo", fleet.SiteStatus{State: fleet.SiteNormal, Ready: 3, NotReady: 1, EvictionRate: "0.1", Waiting: 1,
			LastEviction: &last, NextEviction: &next}),
		site("bergen", fleet.SiteStatus{State: fleet.SitePartialDisruption, Ready: 1, NotReady: 3, EvictionRate: "0",
			Waiting: 3, HeldReason: fleet.HeldPartialDisruption,
			Held: "partially disrupted, and not larger than 50 nodes"}),
		Node("pi-1", "oslo", nil), Node("pi-2", "oslo",
			Condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")),
		Node("pi-3", "oslo", Condition("DiskPressure", "True", "KubeletHasDiskPressure",
			"imagefs.available is 1.2Gi, below 10%")),
		Node("gateway", "oslo", func(n *corev1.Node) { n.Spec.Unschedulable = true; n.Labels[fleet.LabelBoard] = "x86-64" }),
		Node("bone-1", "bergen", nil),
		Event("Node", "pi-2", "NodeNotReady", "node pi-2 Ready=Unknown: no heartbeat for 40s", 90*time.Second),
		Event("Node", "pi-1", "RegisteredNode",
			"register node pi-1 on site oslo: linux/arm64, Debian GNU/Linux 12 (bookworm), docker://28.5.2",
			50*time.Hour),
		Event("Site", "bergen", "SiteDisrupted", "site bergen is partly disrupted: 1 of 4 nodes ready", 2*time.Minute),
		Event("Pod", "kiosk-7d9f-crash", "BackOff", "back-off restarting container web: exit code 1", 30*time.Second),
		Pod("kiosk-7d9f-abcde", "pi-1", nil), Pod("kiosk-7d9f-fghij", "pi-2", nil),
		Pod("kiosk-7d9f-klmno", "", func(p *corev1.Pod) {
			p.CreationTimestamp = Ago(70 * time.Second)
			p.Status = corev1.PodStatus{Phase: corev1.PodPending,
				Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: "False", Reason: "Unschedulable",
					Message: "0/5 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 4 " +
						"Insufficient memory."}}}
		}),
		Pod("kiosk-7d9f-crash", "pi-1", func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "web", RestartCount: 7,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff",
					Message: "back-off 5m0s restarting failed container"}},
				LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1,
					Reason: "Error", FinishedAt: Ago(4 * time.Minute)}}}
			p.Status.Conditions[1].Status = "False"
		}),
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "default",
			CreationTimestamp: Ago(26 * time.Hour)},
			Spec: appsv1.DeploymentSpec{Replicas: &replicas,
				Template: corev1.PodTemplateSpec{Spec: corev1.
					PodSpec{Containers: []corev1.Container{{Image: "registry.example/kiosk:1.4.2"}}}}},
			Status: appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 1, AvailableReplicas: 1}},
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "node-exporter", Namespace: "kube-system",
			CreationTimestamp: Ago(26 * time.Hour)},
			Spec: appsv1.DaemonSetSpec{Template: corev1.
				PodTemplateSpec{Spec: corev1.
				PodSpec{Containers: []corev1.Container{{Image: "registry.example/node-exporter:1.9"}}}}},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 5, NumberReady: 5, NumberAvailable: 5,
				UpdatedNumberScheduled: 5}},
		&fleet.DeviceReport{ObjectMeta: metav1.ObjectMeta{Name: "pi-2"},
			Hardware: runtime.RawExtension{Raw: []byte(report)}},
		&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-2"}, History: []state.HealthChange{
			{At: micro(30 * time.Hour), Ready: "True"}, {At: micro(20 * time.Hour), Ready: "False"},
			{At: micro(19 * time.Hour), Ready: "True"},
			{At: micro(9 * time.Hour), Ready: "Unknown"},
			{At: micro(9*time.Hour - 5*time.Minute), Ready: "Unknown", Out: true},
			{At: micro(7 * time.Hour), Ready: "True"},
			{At: micro(90 * time.Second), Ready: "Unknown"},
		}, Evicted: []state.Evicted{{At: micro(8 * time.Hour), Pod: "default/kiosk-7d9f-old",
			Reason: "DeletionByTaintManager", Text: "tolerated node.kubernetes.io/unreachable until 12:05:41"}}},
		Event("Pod", "kiosk-7d9f-old", "TaintManagerEviction",
			"evict kiosk-7d9f-old from pi-2: tolerated node.kubernetes.io/unreachable until 12:05:41", 8*time.Hour),
	}
	for i := 2; i <= 4; i++ {
		n := Node(fmt.Sprintf("bone-%d", i), "bergen",
			Condition("Ready", "False", "ContainerEngineUnavailable", "the container engine has not answered for 30s"))
		n.Labels[fleet.LabelBoard] = "beaglebone-black"
		objects = append(objects, n)
	}
	return objects
}
