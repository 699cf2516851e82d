//lint:file-ignore SA1019 clients read Endpoints

package table

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certv1 "k8s.io/api/certificates/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func ago(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: "shop", CreationTimestamp: ago(3 * time.Hour)}
}

func ptr[T any](v T) *T { return &v }

var template = corev1.PodTemplateSpec{Spec: corev1.PodSpec{
	NodeSelector: map[string]string{"flotilla.dev/board": "raspberrypi4"},
	Containers:   []corev1.Container{{Name: "web", Image: "kiosk:1"}, {Name: "log", Image: "log:2"}},
}}

// samples returns objects of a kind that show the rules of its cells.
func samples(k state.Kind) []state.Object {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "kiosk"}}
	switch k {
	case state.Nodes:
		return nodes()
	case state.Pods:
		return []state.Object{
			&corev1.Pod{ObjectMeta: meta("waits"), Status: corev1.PodStatus{Phase: corev1.PodPending},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}},
			&corev1.Pod{ObjectMeta: meta("runs"), Spec: corev1.PodSpec{NodeName: "pi-1",
				Containers: []corev1.Container{{Name: "a"}}},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.64.1.2"}},
					ContainerStatuses: []corev1.ContainerStatus{{Name: "a", Ready: true, RestartCount: 2, State: running,
						LastTerminationState: ended(1, "Error", 5*time.Minute)}}}},
		}
	case state.Deployments:
		d := &appsv1.Deployment{ObjectMeta: meta("kiosk"), Spec: appsv1.DeploymentSpec{Replicas: ptr(int32(3)),
			Selector: selector, Template: template},
			Status: appsv1.DeploymentStatus{ReadyReplicas: 2, UpdatedReplicas: 3, AvailableReplicas: 2}}
		return []state.Object{d, &appsv1.Deployment{ObjectMeta: meta("bare")}}
	case state.ReplicaSets:
		return []state.Object{&appsv1.ReplicaSet{ObjectMeta: meta("kiosk-5d4f"),
			Spec:   appsv1.ReplicaSetSpec{Replicas: ptr(int32(3)), Selector: selector, Template: template},
			Status: appsv1.ReplicaSetStatus{Replicas: 3, ReadyReplicas: 2}}}
	case state.DaemonSets:
		return []state.Object{&appsv1.DaemonSet{ObjectMeta: meta("probe"), Spec: appsv1.DaemonSetSpec{Selector: selector,
			Template: template},
			Status: appsv1.DaemonSetStatus{DesiredNumberScheduled: 5, CurrentNumberScheduled: 4, NumberReady: 3,
				UpdatedNumberScheduled: 2, NumberAvailable: 1}}}
	case state.StatefulSets:
		return []state.Object{
			&appsv1.StatefulSet{ObjectMeta: meta("db"), Spec: appsv1.StatefulSetSpec{Replicas: ptr(int32(3)), Selector: selector,
				Template: template}, Status: appsv1.StatefulSetStatus{Replicas: 3, ReadyReplicas: 2}},
			&appsv1.StatefulSet{ObjectMeta: meta("bare")},
		}
	case state.Controllers:
		return []state.Object{
			&corev1.ReplicationController{ObjectMeta: meta("old"),
				Spec: corev1.ReplicationControllerSpec{Replicas: ptr(int32(3)), Selector: selector.MatchLabels,
					Template: &template}, Status: corev1.ReplicationControllerStatus{Replicas: 3, ReadyReplicas: 2}},
			&corev1.ReplicationController{ObjectMeta: meta("bare")},
		}
	case state.PodTemplates:
		labelled := template
		labelled.Labels = selector.MatchLabels
		return []state.Object{&corev1.PodTemplate{ObjectMeta: meta("kiosk"), Template: labelled},
			&corev1.PodTemplate{ObjectMeta: meta("bare")}}
	case state.Jobs:
		yes := func(t batchv1.JobConditionType) []batchv1.JobCondition {
			return []batchv1.JobCondition{{Type: t, Status: corev1.ConditionTrue}}
		}
		return []state.Object{
			&batchv1.Job{ObjectMeta: meta("done"), Spec: batchv1.JobSpec{Completions: ptr(int32(3)), Selector: selector,
				Template: template},
				Status: batchv1.JobStatus{Succeeded: 3, StartTime: ptr(ago(time.Hour)), CompletionTime: ptr(ago(50 * time.Minute)),
					Conditions: yes(batchv1.JobComplete)}},
			&batchv1.Job{ObjectMeta: meta("failed"), Spec: batchv1.JobSpec{Completions: ptr(int32(1))},
				Status: batchv1.JobStatus{Conditions: yes(batchv1.JobFailed)}},
			&batchv1.Job{ObjectMeta: meta("queue"), Spec: batchv1.JobSpec{Parallelism: ptr(int32(4))},
				Status: batchv1.JobStatus{StartTime: ptr(ago(time.Minute))}},
			&batchv1.Job{ObjectMeta: meta("rests"), Status: batchv1.JobStatus{Conditions: yes(batchv1.JobSuspended)}},
			&batchv1.Job{ObjectMeta: meta("ends"), Status: batchv1.JobStatus{Conditions: yes(batchv1.JobFailureTarget)}},
		}
	case state.CronJobs:
		c := &batchv1.CronJob{ObjectMeta: meta("nightly"), Spec: batchv1.CronJobSpec{Schedule: "30 2 * * *",
			TimeZone: ptr("Europe/Oslo"), Suspend: ptr(false)},
			Status: batchv1.CronJobStatus{Active: []corev1.ObjectReference{{Name: "nightly-1"}},
				LastScheduleTime: ptr(ago(7 * time.Hour))}}
		c.Spec.JobTemplate.Spec.Template = template
		return []state.Object{c, &batchv1.CronJob{ObjectMeta: meta("off"), Spec: batchv1.CronJobSpec{Schedule: "@daily",
			Suspend: ptr(true)}}}
	case state.Services:
		return []state.Object{&corev1.Service{ObjectMeta: meta("kubernetes"),
			Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.0.0.5",
				Ports: []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 8443}}}},
			&corev1.Service{ObjectMeta: meta("bare")}}
	case state.Endpoints:
		return []state.Object{&corev1.Endpoints{ObjectMeta: meta("kubernetes"), Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "10.0.0.5"}}, Ports: []corev1.EndpointPort{{Port: 8443}}}}},
			&corev1.Endpoints{ObjectMeta: meta("bare")}}
	case state.EndpointSlices:
		return []state.Object{&discoveryv1.EndpointSlice{ObjectMeta: meta("kubernetes"),
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.5"}}},
			Ports:       []discoveryv1.EndpointPort{{Port: ptr(int32(8443))}}},
			&discoveryv1.EndpointSlice{ObjectMeta: meta("bare")}}
	case state.PriorityClasses:
		return []state.Object{&schedulingv1.PriorityClass{ObjectMeta: meta("gold"), Value: 1000, GlobalDefault: true,
			PreemptionPolicy: ptr(corev1.PreemptNever)}, &schedulingv1.PriorityClass{ObjectMeta: meta("bare")}}
	case state.ResourceQuotas:
		return []state.Object{&corev1.ResourceQuota{ObjectMeta: meta("team"), Status: corev1.ResourceQuotaStatus{
			Hard: corev1.ResourceList{"pods": resource.MustParse("4"), "requests.cpu": resource.MustParse("2"),
				"limits.memory": resource.MustParse("1Gi")},
			Used: corev1.ResourceList{"pods": resource.MustParse("1"), "requests.cpu": resource.MustParse("100m"),
				"limits.memory": resource.MustParse("64Mi")}}}}
	case state.LimitRanges:
		return []state.Object{&corev1.LimitRange{ObjectMeta: meta("usual")}}
	case state.ServiceAccounts:
		return []state.Object{&corev1.ServiceAccount{ObjectMeta: meta("default")}}
	case state.ControllerRevisions:
		r := &appsv1.ControllerRevision{ObjectMeta: meta("probe-7f"), Revision: 4}
		r.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "probe",
			Controller: ptr(true)}}
		return []state.Object{r, &appsv1.ControllerRevision{ObjectMeta: meta("orphan"), Revision: 1}}
	case state.PodDisruptionBudgets:
		return []state.Object{
			&policyv1.PodDisruptionBudget{ObjectMeta: meta("two"),
				Spec:   policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr(intstr.FromInt32(2))},
				Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1}},
			&policyv1.PodDisruptionBudget{ObjectMeta: meta("third"),
				Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr(intstr.FromString("30%"))}},
		}
	case state.Namespaces:
		return []state.Object{&corev1.Namespace{ObjectMeta: meta("shop"),
			Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}}
	case state.ConfigMaps:
		return []state.Object{&corev1.ConfigMap{ObjectMeta: meta("conf"), Data: map[string]string{"a": "1", "b": "2"},
			BinaryData: map[string][]byte{"c": {1}}}}
	case state.Secrets:
		return []state.Object{&corev1.Secret{ObjectMeta: meta("pull"), Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{"password": []byte("hunter2")}}}
	case state.Leases:
		return []state.Object{
			&coordv1.Lease{ObjectMeta: meta("pi-1"), Spec: coordv1.LeaseSpec{HolderIdentity: ptr("pi-1")}},
			&coordv1.Lease{ObjectMeta: meta("free")},
		}
	case state.Events:
		return []state.Object{
			&corev1.Event{ObjectMeta: meta("old.1"), Type: "Warning", Reason: "NodeNotReady",
				Message: "no heartbeat for 40s\n", Count: 3,
				FirstTimestamp: ago(time.Hour), LastTimestamp: ago(time.Minute),
				Source:         corev1.EventSource{Component: "flotilla-hub", Host: "gateway"},
				InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "pi-1", FieldPath: "status.conditions"}},
			&corev1.Event{ObjectMeta: meta("new.2"), Type: "Normal", Reason: "Scheduled", Message: "bound",
				EventTime:           metav1.NewMicroTime(now.Add(-90 * time.Second)),
				ReportingController: "flotilla-hub", InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "kiosk-1"}},
			&corev1.Event{ObjectMeta: meta("series.3"), Type: "Normal", Reason: "Pulled",
				EventTime:      metav1.NewMicroTime(now.Add(-time.Hour)),
				Series:         &corev1.EventSeries{Count: 9, LastObservedTime: metav1.NewMicroTime(now.Add(-2 * time.Second))},
				InvolvedObject: corev1.ObjectReference{Kind: "Pod"}},
		}
	case state.Sites:
		return []state.Object{
			&fleet.Site{ObjectMeta: meta("oslo"),
				Spec: fleet.SiteSpec{DisruptionPolicy: fleet.Hold, Location: "Oslo S",
					Maintenance: &fleet.Maintenance{Until: ago(-2 * time.Hour)}},
				Status: fleet.SiteStatus{State: fleet.SitePartialDisruption, Since: ptr(ago(4 * time.Minute)), Ready: 2,
					NotReady: 5, NeverSeen: 1, Waiting: 3, EvictionRate: "0.1",
					NextEviction: &metav1.MicroTime{Time: now.Add(7 * time.Second)}, Held: "maintenance"}},
			&fleet.Site{ObjectMeta: meta("new"), Spec: fleet.SiteSpec{Maintenance: &fleet.Maintenance{Until: ago(time.Hour)}}},
		}
	case state.Claims:
		c := &corev1.PersistentVolumeClaim{ObjectMeta: meta("data"),
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr("local"), VolumeName: "pvc-1",
				VolumeMode: ptr(corev1.PersistentVolumeFilesystem)}}
		c.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{"storage": resource.MustParse("1Gi")}}
		gone := c.DeepCopy()
		gone.Name, gone.DeletionTimestamp = "gone", ptr(ago(time.Minute))
		return []state.Object{c, gone, &corev1.PersistentVolumeClaim{ObjectMeta: meta("waits"),
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}}
	case state.Volumes:
		v := &corev1.PersistentVolume{ObjectMeta: meta("pvc-1"), Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "local", VolumeMode: ptr(corev1.PersistentVolumeFilesystem),
			Capacity:                      corev1.ResourceList{"storage": resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "shop", Name: "data"}},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}
		gone := v.DeepCopy()
		gone.Name, gone.DeletionTimestamp = "pvc-2", ptr(ago(time.Minute))
		return []state.Object{v, gone}
	case state.RuntimeClasses:
		return []state.Object{&nodev1.RuntimeClass{ObjectMeta: meta("sandboxed"), Handler: "runsc"}}
	case state.StorageClasses:
		c := &storagev1.StorageClass{ObjectMeta: meta("local"), Provisioner: "flotilla.dev/local",
			ReclaimPolicy:     ptr(corev1.PersistentVolumeReclaimDelete),
			VolumeBindingMode: ptr(storagev1.VolumeBindingWaitForFirstConsumer)}
		keeps := c.DeepCopy()
		keeps.Name, keeps.ReclaimPolicy = "keeps", ptr(corev1.PersistentVolumeReclaimRetain)
		c.Annotations = map[string]string{state.DefaultClassAnnotation: "true"}
		return []state.Object{c, keeps}
	case state.DeviceReports:
		r := func(name, text string) *fleet.DeviceReport {
			return &fleet.DeviceReport{ObjectMeta: meta(name), Reported: ago(2 * time.Minute),
				Hardware: runtime.RawExtension{Raw: []byte(text)}}
		}
		return []state.Object{
			r("pi-1", `{"host":{"cpu":"Cortex-A72","kernel":"6.6.31"},"board":{"name":"raspberrypi4","model":"Raspberry Pi 4 Model B Rev 1.4"},"firmware":{"version":"a5e1b95f","reset":"power-on"},"temperatures":[{"name":"cpu","celsius":48.2},{"name":"nvme","celsius":61.4}],
				"power":{"underVoltage":false},"disks":[{"name":"mmcblk0"}]}`),
			r("pi-2", `{"board":{"name":"raspberrypi5"},"temperatures":[{"name":"outside","celsius":-12}],"power":{"underVoltage":true,"throttled":true,"throttledSeen":true},"disks":[{"lifeUsed":20},{"lifeUsed":70}]}`),
			r("pi-3", `{"power":{"underVoltageSeen":true},"disks":[{"endOfLife":"urgent"}]}`),
			r("pi-6", `{"disks":[{"errors":3,"lifeUsed":10},{"errors":4}]}`),
			r("pi-4", `{"unwritable":["/var/lib"],"disks":[{}]}`), r("pi-5", `{"readOnlyMounts":["/boot"],"disks":[{}]}`),
			r("other", `{"board":7,"host":"x","temperatures":"warm","power":[],"disks":{}}`), r("none", ``),
			r("evil", "{\"board\":{\"name\":\"\\u001b[31m\\n\"}}"),
		}
	case state.Incidents:
		dark := &fleet.Incident{
			ObjectMeta: meta("oslo-dark-1a2b3c"), State: fleet.IncidentOpen, Cause: "SiteDark", Severity: fleet.SeverityCritical,
			Site: "oslo", About: fleet.IncidentObject{Kind: "Site", Name: "oslo"},
			Message: "oslo is dark: no node of the site answers", Since: ago(5 * time.Minute), Opened: ago(4 * time.Minute),
			Count: fleet.IncidentCount{Nodes: 10, Pods: 17, Workloads: 3}, NextMove: ptr(ago(-132 * time.Second)),
		}
		over := &fleet.Incident{
			ObjectMeta: meta("kiosk-run-4d5e6f"), State: fleet.IncidentClosed, Cause: "CrashLoop",
			Severity: fleet.SeverityWarning, About: fleet.IncidentObject{Kind: "Deployment",
				Namespace: "default", Name: "kiosk"},
			Message: "deployment kiosk crashes again and again", Since: ago(3 * time.Hour), Opened: ago(3 * time.Hour),
			Closed: ptr(ago(time.Hour)), Held: "maintenance", PartOf: "oslo-dark-1a2b3c", Evicted: 4,
			Acknowledged: &fleet.IncidentAcknowledged{By: "kari", Time: ago(2 * time.Hour)},
			Note:         "the new build lacks its\nconfig map",
		}
		return []state.Object{dark, over}
	case state.AgentRollouts:
		return []state.Object{&fleet.AgentRollout{ObjectMeta: meta("agents"), Spec: fleet.AgentRolloutSpec{Version: "1.3.0", RolloutStrategy: fleet.RolloutStrategy{Canary: "pi-1"}},
			Status: fleet.FirmwareRolloutStatus{Phase: fleet.RolloutProgressing, Sentence: "1 node has its turn on site oslo, first pi-2: Trying", Digest: "1.3.0", Nodes: 12, Kept: 4, Trying: 1, Batches: []fleet.FirmwareBatch{{Number: 3, Site: "oslo"}}}}}
	case state.FirmwareRollouts:
		r := &fleet.FirmwareRollout{ObjectMeta: meta("cgroup-memory"),
			Spec: fleet.FirmwareRolloutSpec{Profile: "raspberrypi-4", RolloutStrategy: fleet.RolloutStrategy{Canary: "pi-1",
				Window: &fleet.FirmwareWindow{Days: []string{"Sat", "Sun"}, From: "22:00", To: "04:30"}}},
			Status: fleet.FirmwareRolloutStatus{Phase: fleet.RolloutProgressing,
				Sentence: "1 node has its turn on site oslo, first pi-2: Trying", Digest: "sha256:0123456789abcdef0123", Nodes: 12,
				Kept: 4, Bad: 1, Trying: 1, Batches: []fleet.FirmwareBatch{{Number: 3, Site: "oslo"}}}}
		return []state.Object{r, &fleet.FirmwareRollout{ObjectMeta: meta("new"),
			Spec: fleet.FirmwareRolloutSpec{Profile: "pc", RolloutStrategy: fleet.RolloutStrategy{Paused: true}}}}
	case state.BoardProfiles:
		p := &fleet.BoardProfile{ObjectMeta: meta("raspberrypi-4"), Spec: fleet.BoardProfileSpec{Title: "Raspberry Pi 4",
			Platforms: []string{"linux/arm64", "linux/arm/v7"}}}
		p.Spec.Match = fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"}, MemoryMiB: &fleet.MiBBounds{Min: 900}}
		p.Spec.Resources = fleet.BoardResources{SystemReserved: map[string]string{"memory": "160Mi", "cpu": "200m"},
			EvictionHard: map[string]string{"memory.available": "64Mi"}}
		small := &fleet.BoardProfile{ObjectMeta: meta("small")}
		small.Spec.Match.MemoryMiB = &fleet.MiBBounds{Max: 512}
		between := &fleet.BoardProfile{ObjectMeta: meta("between")}
		between.Spec.Match.MemoryMiB = &fleet.MiBBounds{Min: 512, Max: 1024}
		return []state.Object{p, small, between}
	case state.JoinRequests:
		r := func(name string, conditions ...certv1.RequestConditionType) *certv1.CertificateSigningRequest {
			r := &certv1.CertificateSigningRequest{ObjectMeta: meta(name),
				Spec: certv1.CertificateSigningRequestSpec{SignerName: state.SignerDevice, Username: "join-token:abcdefgh"}}
			for _, c := range conditions {
				r.Status.Conditions = append(r.Status.Conditions, certv1.CertificateSigningRequestCondition{Type: c,
					Status: corev1.ConditionTrue})
			}
			return r
		}
		waits := r("waits")
		waits.Annotations = map[string]string{state.RequestSite: "oslo", state.RequestMachine: "0011223344556677",
			state.RequestSerial: "100000001234abcd", state.RequestSource: "10.0.0.7"}
		issued := r("issued", certv1.CertificateApproved)
		issued.Status.Certificate = []byte("x")
		issued.Spec.ExpirationSeconds = ptr(int32(3600))
		return []state.Object{waits, r("approved", certv1.CertificateApproved), issued, r("denied", certv1.CertificateDenied),
			r("failed", certv1.CertificateApproved, certv1.CertificateFailed)}
	case "widgets": // a kind without a layout
		return []state.Object{&corev1.ConfigMap{ObjectMeta: meta("stranger")}}
	}
	return nil
}

func nodes() []state.Object {
	ready := func(n *corev1.Node, s corev1.ConditionStatus) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: s})
	}
	full := &corev1.Node{ObjectMeta: meta("pi-1"), Spec: corev1.NodeSpec{Unschedulable: true}}
	full.Labels = map[string]string{
		"node-role.kubernetes.io/gateway": "", "kubernetes.io/role": "edge", "node-role.kubernetes.io/": "",
		corev1.LabelTopologyZone: "oslo", fleet.LabelBoard: "raspberrypi4",
	}
	full.Status.NodeInfo = corev1.NodeSystemInfo{KubeletVersion: "v1.2.3", KernelVersion: "6.1.21-v8+",
		Architecture: "arm64",
		OSImage:      "Debian GNU/Linux 12", ContainerRuntimeVersion: "docker://27.1"}
	full.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "pi-1"},
		{Type: corev1.NodeInternalIP, Address: "192.168.1.7"}, {Type: corev1.NodeExternalIP, Address: "203.0.113.9"}}
	ready(full, corev1.ConditionTrue)
	silent := &corev1.Node{ObjectMeta: meta("pi-2")}
	ready(silent, corev1.ConditionUnknown)
	broken := &corev1.Node{ObjectMeta: meta("pi-3")}
	ready(broken, corev1.ConditionFalse)
	return []state.Object{full, silent, broken, &corev1.Node{ObjectMeta: meta("pi-4")}}
}
