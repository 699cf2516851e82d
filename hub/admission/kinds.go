package admission

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A rule is the admission of one kind. A nil function does nothing.
type rule struct {
	name  apivalidation.ValidateNameFunc // nil: a DNS subdomain
	fill  func(o state.Object, s Settings)
	check func(l *list, o state.Object, x checkContext)
	fixed func(l *list, o, old state.Object) // checks immutable fields
	texts func(l *list, o state.Object)      // checks texts outside of a pod spec that are shown to users
}

// checkContext holds the arguments of a rule's check.
type checkContext struct {
	Settings
	old state.Object // nil: a new object
}

var spec = field.NewPath("spec")

// rules has every kind that the API serves.
var rules = map[state.Kind]rule{
	state.Pods: {
		fill:  fills(DefaultPod),
		check: checks(func(l *list, p *corev1.Pod) { l.podSpec(&p.Spec, spec, ofPod) }),
		fixed: keeps((*list).podUnchanged),
	},
	state.Deployments: {
		fill:  fills(func(d *appsv1.Deployment, _ Settings) { defaultDeployment(&d.Spec) }),
		check: checks(func(l *list, d *appsv1.Deployment) { l.deployment(&d.Spec, spec) }),
		fixed: keeps(func(l *list, d, old *appsv1.Deployment) { l.selectorUnchanged(d.Spec.Selector, old.Spec.Selector) }),
	},
	state.ReplicaSets: {
		fill:  fills(defaultReplicaSet),
		check: checks(func(l *list, r *appsv1.ReplicaSet) { l.replicaSet(&r.Spec, spec) }),
		fixed: keeps(func(l *list, r, old *appsv1.ReplicaSet) { l.selectorUnchanged(r.Spec.Selector, old.Spec.Selector) }),
	},
	state.DaemonSets: {
		fill:  fills(func(d *appsv1.DaemonSet, _ Settings) { defaultDaemonSet(&d.Spec) }),
		check: checks(func(l *list, d *appsv1.DaemonSet) { l.daemonSet(&d.Spec, spec) }),
		fixed: keeps(func(l *list, d, old *appsv1.DaemonSet) { l.selectorUnchanged(d.Spec.Selector, old.Spec.Selector) }),
	},
	state.StatefulSets: {
		name: statefulSetName,
		fill: fills(func(o *appsv1.StatefulSet, _ Settings) { defaultStatefulSet(&o.Spec) }),
		check: func(l *list, o state.Object, x checkContext) {
			l.statefulSet(&o.(*appsv1.StatefulSet).Spec, spec, x.old == nil)
		},
		fixed: keeps((*list).statefulSetUnchanged),
	},
	state.Controllers: {
		fill:  fills(func(c *corev1.ReplicationController, _ Settings) { defaultController(c) }),
		check: checks(func(l *list, c *corev1.ReplicationController) { l.controller(&c.Spec, spec) }),
	},
	state.PodTemplates: {
		fill:  fills(func(t *corev1.PodTemplate, _ Settings) { DefaultPodTemplate(&t.Template) }),
		check: checks((*list).podTemplate),
	},
	state.Jobs: {
		fill: fills(func(j *batchv1.Job, _ Settings) { defaultJob(&j.Spec) }),
		check: func(l *list, o state.Object, x checkContext) {
			if x.old == nil {
				l.jobName(o.(*batchv1.Job))
			}
			l.job(&o.(*batchv1.Job).Spec, spec, x.old == nil)
		},
		fixed: keeps((*list).jobUnchanged),
	},
	state.CronJobs: {
		name:  cronJobName,
		fill:  fills(func(c *batchv1.CronJob, _ Settings) { defaultCronJob(&c.Spec) }),
		check: func(l *list, o state.Object, x checkContext) { l.cronJob(&o.(*batchv1.CronJob).Spec, x.old) },
	},
	state.ControllerRevisions: {
		check: checks((*list).revision),
		fixed: keeps((*list).revisionUnchanged),
	},
	state.ConfigMaps: {check: checks((*list).configMap), fixed: keeps((*list).configMapUnchanged)},
	state.Secrets: {
		fill:  fills(func(s *corev1.Secret, _ Settings) { defaultSecret(s) }),
		check: checks((*list).secret),
		fixed: keeps((*list).secretUnchanged),
	},
	state.Namespaces: {
		name: apivalidation.NameIsDNSLabel,
		fill: fills(defaultNamespace),
		check: func(l *list, o state.Object, x checkContext) {
			l.namespace(o.(*corev1.Namespace))
			l.podSecurityLabels(o.(*corev1.Namespace), x.old)
		},
	},
	state.Events: {check: checks((*list).event), texts: shows((*list).eventTexts)},
	state.Nodes: {
		fill:  fills(defaultNode),
		check: checks((*list).node),
		fixed: keeps((*list).nodeUnchanged),
		texts: shows((*list).nodeTexts),
	},
	state.Leases: {check: checks(func(l *list, o *coordv1.Lease) { l.lease(&o.Spec, spec) })},
	state.PodDisruptionBudgets: {check: checks(func(l *list, b *policyv1.PodDisruptionBudget) {
		l.budget(&b.Spec, spec)
	})},
	state.JoinRequests: {check: checks((*list).joinRequest), fixed: keeps((*list).decision)},
	state.Sites: {
		name:  siteName,
		check: func(l *list, o state.Object, x checkContext) { l.site(o.(*fleet.Site), x.Settings) },
		texts: shows((*list).siteTexts),
	},
	state.Claims:         {fill: fills(defaultClaim), check: checks((*list).claim), fixed: keeps((*list).claimUnchanged)},
	state.Volumes:        {check: checks((*list).persistentVolume), fixed: keeps((*list).volumeUnchanged)},
	state.StorageClasses: {fill: fills(defaultClass), check: checks((*list).class), fixed: keeps((*list).classUnchanged)},
	state.RuntimeClasses: {check: checks((*list).runtimeClass), fixed: keeps(func(l *list, c, old *nodev1.RuntimeClass) {
		l.same(c.Handler, old.Handler, field.NewPath("handler"))
	})},
	state.DeviceReports: {check: checks((*list).report)},
	state.Incidents:     {check: checks((*list).incident), fixed: keeps((*list).incidentUnchanged)},
	state.PriorityClasses: {
		fill:  fills(func(c *schedulingv1.PriorityClass, _ Settings) { defaultPriorityClass(c) }),
		check: checks((*list).priorityClass), fixed: keeps((*list).priorityClassUnchanged),
		texts: shows(func(l *list, c *schedulingv1.PriorityClass) {
			l.displayText(field.NewPath("description"), c.Description)
		}),
	},
	state.ResourceQuotas: {
		fill:  fills(func(q *corev1.ResourceQuota, _ Settings) { defaultQuota(q) }),
		check: checks((*list).quota), fixed: keeps((*list).quotaUnchanged),
	},
	state.LimitRanges: {
		fill:  fills(func(r *corev1.LimitRange, _ Settings) { defaultRange(r) }),
		check: checks((*list).limitRange),
	},
	// Only the hub writes objects of these kinds.
	state.Services: {check: unchecked}, state.Endpoints: {check: unchecked}, state.EndpointSlices: {check: unchecked},
	state.ServiceAccounts: {check: unchecked},
	state.FirmwareRollouts: {
		fill:  fills(func(r *fleet.FirmwareRollout, _ Settings) { r.Spec.Default() }),
		check: checks((*list).firmwareRollout), fixed: keeps((*list).rolloutUnchanged),
	},
	state.AgentRollouts: {
		fill:  fills(func(r *fleet.AgentRollout, _ Settings) { r.Spec.Default() }),
		check: checks((*list).agentRollout), fixed: keeps((*list).agentRolloutUnchanged),
	},
	state.BoardProfiles: {
		check: checks((*list).profile),
		texts: shows(func(l *list, p *fleet.BoardProfile) { l.displayText(spec.Child("title"), p.Spec.Title) }),
	},
}

// unchecked checks nothing, because only the hub writes such objects.
func unchecked(*list, state.Object, checkContext) {}

// The adapters turn functions on one type into functions on any object.

func fills[P state.Object](f func(P, Settings)) func(state.Object, Settings) {
	return func(o state.Object, s Settings) { f(o.(P), s) }
}

func checks[P state.Object](f func(*list, P)) func(*list, state.Object, checkContext) {
	return func(l *list, o state.Object, _ checkContext) { f(l, o.(P)) }
}

func keeps[P state.Object](f func(l *list, o, old P)) func(l *list, o, old state.Object) {
	return func(l *list, o, old state.Object) { f(l, o.(P), old.(P)) }
}

func shows[P state.Object](f func(*list, P)) func(*list, state.Object) {
	return func(l *list, o state.Object) { f(l, o.(P)) }
}
