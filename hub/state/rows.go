package state

import (
	"strconv"
	"strings"

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
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/shared/fleet"
)

// kinds holds every stored kind in the order of their tables. A new kind needs a row, admission
// rules (package admission) and kubectl's columns (package table).
var kinds = [...]Row{
	{
		Kind: ConfigMaps, Group: &core, Name: "ConfigMap", Namespaced: true, Short: []string{"cm"}, Verbs: everything,
		Viewer: readOnly, Operator: write,
		New: fresh[corev1.ConfigMap],
	}, {
		Kind: ControllerRevisions, Group: &apps, Name: "ControllerRevision", Namespaced: true, Verbs: everything,
		Viewer: readOnly,
		New:    fresh[appsv1.ControllerRevision],
	}, {
		Kind: DaemonSets, Group: &apps, Name: "DaemonSet", Namespaced: true, Short: []string{"ds"}, All: true,
		Verbs:  everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly, Operator: write,
		New:      fresh[appsv1.DaemonSet],
		Spec:     of(func(d *appsv1.DaemonSet) any { return d.Spec }),
		Status:   status(func(d *appsv1.DaemonSet) *appsv1.DaemonSetStatus { return &d.Status }),
		Template: of(func(d *appsv1.DaemonSet) *corev1.PodTemplateSpec { return &d.Spec.Template }),
	}, {
		Kind: Deployments, Group: &apps, Name: "Deployment", Namespaced: true, Short: []string{"deploy"}, All: true,
		Verbs:  everything,
		Subs:   []Sub{statusSub(), scaleSub()},
		Viewer: readOnly, Operator: write,
		New: fresh[appsv1.Deployment],
		// Kubernetes counts changes of a deployment's annotations too.
		Spec:     of(func(d *appsv1.Deployment) any { return []any{d.Spec, d.Annotations} }),
		Status:   status(func(d *appsv1.Deployment) *appsv1.DeploymentStatus { return &d.Status }),
		Template: of(func(d *appsv1.Deployment) *corev1.PodTemplateSpec { return &d.Spec.Template }),
	}, {
		Kind: Events, Group: &core, Name: "Event", Also: &newEvents, Namespaced: true, Short: []string{"ev"},
		Verbs:  everything,
		Viewer: readOnly, Operator: write,
		CreateOnUpdate: true, Expendable: true,
		New:    fresh[corev1.Event],
		Fields: eventFields,
	}, {
		Kind: Leases, Group: &coordination, Name: "Lease", Namespaced: true, Verbs: everything,
		Viewer: readOnly, Operator: write,
		CreateOnUpdate: true, Conditional: true,
		New: fresh[coordv1.Lease],
	}, {
		Kind: Namespaces, Group: &core, Name: "Namespace", Short: []string{"ns"}, Verbs: singly,
		Subs:   []Sub{statusSub(), {Name: "finalize", Verbs: updateOnly}},
		Viewer: readOnly, Operator: write,
		New:    fresh[corev1.Namespace],
		Status: status(func(n *corev1.Namespace) *corev1.NamespaceStatus { return &n.Status }),
		Fields: namespaceFields,
	}, {
		Kind: Nodes, Group: &core, Name: "Node", Short: []string{"no"}, Verbs: everything, Proto: true,
		Subs: []Sub{
			statusSub(change...),
			// the log of the node's agent
			{Name: "proxy", Group: &core, Kind: "NodeProxyOptions", Needs: Logs, Verbs: getOnly, Below: true, Viewer: getOnly},
		},
		Viewer: readOnly, Operator: write,
		New:    fresh[corev1.Node],
		Status: status(func(n *corev1.Node) *corev1.NodeStatus { return &n.Status }),
		Fields: nodeFields,
	}, {
		Kind: PodDisruptionBudgets, Group: &policies, Name: "PodDisruptionBudget", Namespaced: true, Short: []string{"pdb"},
		Verbs:  everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly, Operator: write,
		Conditional: true,
		New:         fresh[policyv1.PodDisruptionBudget],
		Spec:        of(func(b *policyv1.PodDisruptionBudget) any { return b.Spec }),
		Status:      status(func(b *policyv1.PodDisruptionBudget) *policyv1.PodDisruptionBudgetStatus { return &b.Status }),
	}, {
		Kind: Pods, Group: &core, Name: "Pod", Namespaced: true, Short: []string{"po"}, All: true, Verbs: everything,
		Subs: []Sub{
			statusSub(change...),
			{Name: "resize", Verbs: modify, Viewer: getOnly, Operator: change},
			{Name: "eviction", Group: &policies, Kind: "Eviction", Verbs: createOnly, Operator: createOnly},
			{Name: "binding", Group: &core, Kind: "Binding", Verbs: createOnly, Operator: createOnly},
			{Name: "ephemeralcontainers", Verbs: modify, Viewer: getOnly, Operator: change},
			{Name: "log", Needs: Logs, Verbs: getOnly, Viewer: getOnly},
			{Name: "exec", Group: &core, Kind: "PodExecOptions", Needs: Streams, Verbs: connect, Operator: connect},
			{Name: "attach", Group: &core, Kind: "PodAttachOptions", Needs: Streams, Verbs: connect, Operator: connect},
			{
				Name: "portforward", Group: &core, Kind: "PodPortForwardOptions", Needs: Streams, Verbs: connect, Operator: connect,
			},
			{Name: "proxy", Group: &core, Kind: "PodProxyOptions", Needs: Streams, Verbs: ask, Below: true, Operator: ask},
		},
		Viewer: readOnly, Operator: write,
		New:    fresh[corev1.Pod],
		Spec:   of(func(p *corev1.Pod) any { return p.Spec }),
		Status: status(func(p *corev1.Pod) *corev1.PodStatus { return &p.Status }),
		Pod:    of(func(p *corev1.Pod) *corev1.PodSpec { return &p.Spec }),
		Fields: podFields,
	}, {
		Kind: ReplicaSets, Group: &apps, Name: "ReplicaSet", Namespaced: true, Short: []string{"rs"}, All: true,
		Verbs:  everything,
		Subs:   []Sub{statusSub(), scaleSub()},
		Viewer: readOnly, Operator: write,
		New:      fresh[appsv1.ReplicaSet],
		Spec:     of(func(r *appsv1.ReplicaSet) any { return r.Spec }),
		Status:   status(func(r *appsv1.ReplicaSet) *appsv1.ReplicaSetStatus { return &r.Status }),
		Template: of(func(r *appsv1.ReplicaSet) *corev1.PodTemplateSpec { return &r.Spec.Template }),
		Fields: map[string]func(Object) string{
			"status.replicas": of(func(r *appsv1.ReplicaSet) string { return strconv.Itoa(int(r.Status.Replicas)) }),
		},
	}, {
		Kind: Secrets, Group: &core, Name: "Secret", Namespaced: true, Verbs: everything,
		Operator: everything,
		Sealed:   true,
		New:      fresh[corev1.Secret],
		Fields:   secretFields,
	}, {
		Kind: Sites, Group: &flotilla, Name: "Site", Verbs: everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly, Operator: change, // maintenance and policy
		New:    fresh[fleet.Site],
		List:   func() runtime.Object { return new(fleet.SiteList) },
		Spec:   of(func(s *fleet.Site) any { return s.Spec }),
		Status: status(func(s *fleet.Site) *fleet.SiteStatus { return &s.Status }),
	}, {
		Kind: BoardProfiles, Group: &flotilla, Name: "BoardProfile", Short: []string{"bp"}, Verbs: everything,
		Viewer: readOnly,
		New:    fresh[fleet.BoardProfile],
		List:   func() runtime.Object { return new(fleet.BoardProfileList) },
		Spec:   of(func(p *fleet.BoardProfile) any { return p.Spec }),
	},
	{
		Kind: FirmwareRollouts, Group: &flotilla, Name: "FirmwareRollout", Short: []string{"fr"}, Verbs: everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly,
		New:    fresh[fleet.FirmwareRollout],
		List:   func() runtime.Object { return new(fleet.FirmwareRolloutList) },
		Spec:   of(func(r *fleet.FirmwareRollout) any { return r.Spec }),
		Status: status(func(r *fleet.FirmwareRollout) *fleet.FirmwareRolloutStatus { return &r.Status }),
	},
	{
		Kind: AgentRollouts, Group: &flotilla, Name: "AgentRollout", Short: []string{"ar"}, Verbs: everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly,
		New:    fresh[fleet.AgentRollout],
		List:   func() runtime.Object { return new(fleet.AgentRolloutList) },
		Spec:   of(func(r *fleet.AgentRollout) any { return r.Spec }),
		Status: status(func(r *fleet.AgentRollout) *fleet.FirmwareRolloutStatus { return &r.Status }),
	},
	{
		Kind: DeviceReports, Group: &flotilla, Name: "DeviceReport", Short: []string{"dr"}, Verbs: readOnly,
		Viewer: readOnly,
		New:    fresh[fleet.DeviceReport],
		List:   func() runtime.Object { return new(fleet.DeviceReportList) },
	},
	{
		Kind: Incidents, Group: &flotilla, Name: "Incident", Short: []string{"inc"}, Verbs: amend, Expendable: true,
		Viewer: readOnly, Operator: change, // acknowledgement and note
		New:  fresh[fleet.Incident],
		List: func() runtime.Object { return new(fleet.IncidentList) },
	},
	{
		Kind: Jobs, Group: &batch, Name: "Job", Namespaced: true, All: true, Verbs: everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly, Operator: write,
		Orphans:  true,
		New:      fresh[batchv1.Job],
		Default:  func(o Object) { defaultJob(o.(*batchv1.Job)) },
		Spec:     of(func(j *batchv1.Job) any { return j.Spec }),
		Status:   status(func(j *batchv1.Job) *batchv1.JobStatus { return &j.Status }),
		Template: of(func(j *batchv1.Job) *corev1.PodTemplateSpec { return &j.Spec.Template }),
		Fields: map[string]func(Object) string{
			"status.successful": of(func(j *batchv1.Job) string { return strconv.Itoa(int(j.Status.Succeeded)) }),
		},
	}, {
		Kind: CronJobs, Group: &batch, Name: "CronJob", Namespaced: true, Short: []string{"cj"}, All: true, Verbs: everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly, Operator: write,
		New:      fresh[batchv1.CronJob],
		Spec:     of(func(c *batchv1.CronJob) any { return c.Spec }),
		Status:   status(func(c *batchv1.CronJob) *batchv1.CronJobStatus { return &c.Status }),
		Template: of(func(c *batchv1.CronJob) *corev1.PodTemplateSpec { return &c.Spec.JobTemplate.Spec.Template }),
	},
	{
		Kind: StatefulSets, Group: &apps, Name: "StatefulSet", Namespaced: true, Short: []string{"sts"}, All: true,
		Verbs:  everything,
		Subs:   []Sub{statusSub(), scaleSub()},
		Viewer: readOnly, Operator: write,
		New:      fresh[appsv1.StatefulSet],
		Spec:     of(func(s *appsv1.StatefulSet) any { return s.Spec }),
		Status:   status(func(s *appsv1.StatefulSet) *appsv1.StatefulSetStatus { return &s.Status }),
		Template: of(func(s *appsv1.StatefulSet) *corev1.PodTemplateSpec { return &s.Spec.Template }),
	}, {
		Kind: Controllers, Group: &core, Name: "ReplicationController", Namespaced: true, Short: []string{"rc"}, All: true,
		Verbs:  everything,
		Subs:   []Sub{statusSub(), scaleSub()},
		Viewer: readOnly, Operator: write,
		Orphans:  true,
		New:      fresh[corev1.ReplicationController],
		Spec:     of(func(c *corev1.ReplicationController) any { return c.Spec }),
		Status:   status(func(c *corev1.ReplicationController) *corev1.ReplicationControllerStatus { return &c.Status }),
		Template: of(func(c *corev1.ReplicationController) *corev1.PodTemplateSpec { return c.Spec.Template }),
		Fields: map[string]func(Object) string{
			"status.replicas": of(func(c *corev1.ReplicationController) string { return strconv.Itoa(int(c.Status.Replicas)) }),
		},
	}, {
		Kind: PodTemplates, Group: &core, Name: "PodTemplate", Namespaced: true, Verbs: everything,
		Viewer: readOnly, Operator: write,
		New:      fresh[corev1.PodTemplate],
		Spec:     of(func(t *corev1.PodTemplate) any { return t.Template }),
		Template: of(func(t *corev1.PodTemplate) *corev1.PodTemplateSpec { return &t.Template }),
	},
	{Kind: Records, New: fresh[Record]},
	{Kind: Losses, Namespaced: true, New: fresh[Backoff]},
	{Kind: Dismissals, New: fresh[Dismissal]},
	{
		Kind: JoinRequests, Group: &certificates, Name: "CertificateSigningRequest", Short: []string{"csr"}, Verbs: endOnly,
		Subs:   []Sub{{Name: "status", Verbs: getOnly, Viewer: getOnly}, {Name: "approval", Verbs: modify, Viewer: getOnly}},
		Viewer: readOnly,
		New:    fresh[certv1.CertificateSigningRequest],
		Fields: requestFields,
		Status: status(func(r *certv1.CertificateSigningRequest) *certv1.CertificateSigningRequestStatus {
			return &r.Status
		}),
	}, {
		Kind: Claims, Group: &core, Name: "PersistentVolumeClaim", Namespaced: true, Short: []string{"pvc"},
		Verbs:  everything,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly, Operator: write,
		New:    fresh[corev1.PersistentVolumeClaim],
		Status: status(func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaimStatus { return &c.Status }),
	}, {
		Kind: Volumes, Group: &core, Name: "PersistentVolume", Short: []string{"pv"},
		Verbs:  []string{"delete", "deletecollection", "get", "list", "patch", "update", "watch"},
		Subs:   []Sub{statusSub()},
		Viewer: readOnly,
		New:    fresh[corev1.PersistentVolume],
		Status: status(func(v *corev1.PersistentVolume) *corev1.PersistentVolumeStatus { return &v.Status }),
	}, {
		Kind: StorageClasses, Group: &storage, Name: "StorageClass", Short: []string{"sc"}, Verbs: everything,
		Viewer: readOnly,
		New:    fresh[storagev1.StorageClass],
	}, {
		Kind: RuntimeClasses, Group: &runtimes, Name: "RuntimeClass", Verbs: everything, Consulted: true,
		Viewer: readOnly,
		New:    fresh[nodev1.RuntimeClass],
	},
	{Kind: Advertisements, New: fresh[Advertisement]},
	// Objects that every Kubernetes publishes. Package publish restores them.
	{
		Kind: Services, Group: &core, Name: "Service", Namespaced: true, Short: []string{"svc"}, All: true, Verbs: endOnly,
		// a proxy to the hub's own API
		Subs: []Sub{{
			Name: "proxy", Group: &core, Kind: "ServiceProxyOptions", Verbs: ask, Below: true, Viewer: getOnly, Operator: ask,
		}},
		Published: "services are not implemented except kubernetes, which is the hub itself: publish a pod's port with " +
			"hostPort",
		Viewer: readOnly, Operator: deletion,
		New:    fresh[corev1.Service],
		Fields: serviceFields,
	}, {
		Kind: Endpoints, Group: &core, Name: "Endpoints", Namespaced: true, Short: []string{"ep"}, Verbs: endOnly,
		Published: "endpoints are not implemented except those of kubernetes, which is the hub itself, as there are no " +
			"other services",
		Viewer: readOnly, Operator: deletion,
		//lint:ignore SA1019 clients read them
		New: fresh[corev1.Endpoints],
	}, {
		Kind: EndpointSlices, Group: &discovery, Name: "EndpointSlice", Namespaced: true, Verbs: endOnly,
		Published: "endpoint slices are not implemented except that of kubernetes, which is the hub itself, as there " +
			"are no other services",
		Viewer: readOnly, Operator: deletion,
		New: fresh[discoveryv1.EndpointSlice],
	}, {
		Kind: ServiceAccounts, Group: &core, Name: "ServiceAccount", Namespaced: true, Short: []string{"sa"}, Verbs: endOnly,
		Published: "service accounts are not implemented except default in every namespace, which has no token: give a " +
			"program that calls the API a token of a person, as a secret; name the secrets for its images in the pod's " +
			"imagePullSecrets",
		Viewer: readOnly, Operator: deletion,
		New: fresh[corev1.ServiceAccount],
	},
	{
		Kind: PriorityClasses, Group: &scheduling, Name: "PriorityClass", Short: []string{"pc"}, Verbs: everything,
		Consulted: true,
		Viewer:    readOnly,
		New:       fresh[schedulingv1.PriorityClass],
	},
	{
		Kind: ResourceQuotas, Group: &core, Name: "ResourceQuota", Namespaced: true, Short: []string{"quota"},
		Verbs: everything, Consulted: true,
		Subs:   []Sub{statusSub()},
		Viewer: readOnly,
		New:    fresh[corev1.ResourceQuota],
		Status: status(func(q *corev1.ResourceQuota) *corev1.ResourceQuotaStatus { return &q.Status }),
	}, {
		Kind: LimitRanges, Group: &core, Name: "LimitRange", Namespaced: true, Short: []string{"limits"}, Verbs: everything,
		Consulted: true,
		Viewer:    readOnly,
		New:       fresh[corev1.LimitRange],
	},
}

// The field selectors of Kubernetes.
var (
	nodeFields = map[string]func(Object) string{
		"spec.unschedulable": of(func(n *corev1.Node) string { return strconv.FormatBool(n.Spec.Unschedulable) }),
	}
	namespaceFields = map[string]func(Object) string{
		"status.phase": of(func(n *corev1.Namespace) string { return string(n.Status.Phase) }),
	}
	secretFields = map[string]func(Object) string{
		"type": of(func(s *corev1.Secret) string { return string(s.Type) }),
	}
	podFields = map[string]func(Object) string{
		"spec.nodeName":            of(func(p *corev1.Pod) string { return p.Spec.NodeName }),
		"spec.restartPolicy":       of(func(p *corev1.Pod) string { return string(p.Spec.RestartPolicy) }),
		"spec.schedulerName":       of(func(p *corev1.Pod) string { return p.Spec.SchedulerName }),
		"spec.serviceAccountName":  of(func(p *corev1.Pod) string { return p.Spec.ServiceAccountName }),
		"spec.hostNetwork":         of(func(p *corev1.Pod) string { return strconv.FormatBool(p.Spec.HostNetwork) }),
		"status.phase":             of(func(p *corev1.Pod) string { return string(p.Status.Phase) }),
		"status.podIP":             of(func(p *corev1.Pod) string { return p.Status.PodIP }),
		"status.podIPs":            of(podIPs),
		"status.nominatedNodeName": of(func(p *corev1.Pod) string { return p.Status.NominatedNodeName }),
	}
	requestFields = map[string]func(Object) string{
		"spec.signerName": of(func(r *certv1.CertificateSigningRequest) string { return r.Spec.SignerName }),
	}
	serviceFields = map[string]func(Object) string{
		"spec.clusterIP": of(func(s *corev1.Service) string { return s.Spec.ClusterIP }),
		"spec.type":      of(func(s *corev1.Service) string { return string(s.Spec.Type) }),
	}
	eventFields = map[string]func(Object) string{
		"reason":                         of(func(e *corev1.Event) string { return e.Reason }),
		"type":                           of(func(e *corev1.Event) string { return e.Type }),
		"source":                         of(sourceOf),
		"reportingComponent":             of(func(e *corev1.Event) string { return e.ReportingController }),
		"involvedObject.kind":            of(func(e *corev1.Event) string { return e.InvolvedObject.Kind }),
		"involvedObject.namespace":       of(func(e *corev1.Event) string { return e.InvolvedObject.Namespace }),
		"involvedObject.name":            of(func(e *corev1.Event) string { return e.InvolvedObject.Name }),
		"involvedObject.uid":             of(func(e *corev1.Event) string { return string(e.InvolvedObject.UID) }),
		"involvedObject.apiVersion":      of(func(e *corev1.Event) string { return e.InvolvedObject.APIVersion }),
		"involvedObject.resourceVersion": of(func(e *corev1.Event) string { return e.InvolvedObject.ResourceVersion }),
		"involvedObject.fieldPath":       of(func(e *corev1.Event) string { return e.InvolvedObject.FieldPath }),
	}
)

// podIPs returns a pod's addresses as the downward API writes them.
func podIPs(p *corev1.Pod) string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return strings.Join(all, ",")
}

// sourceOf returns the component of an event from its newer or older field.
func sourceOf(e *corev1.Event) string {
	if e.Source.Component != "" {
		return e.Source.Component
	}
	return e.ReportingController
}
