// Package admission says what an object's fields may be: it fills in what its
// writer left out, refuses what is wrong, and refuses or warns of what devices
// would not do. It is the one place where the hub decides what may run.
//
// Every object that a person or a controller writes passes through it, on
// whichever way it comes. Values and messages are those of kube-apiserver where
// it has one; what devices do not implement is refused by the field's name and
// never silently accepted: the list of supported fields is an allow-list, so a
// field that a newer Kubernetes invents is refused until somebody has thought
// about it.
//
// The room is pure. It never looks at other objects (does the config map exist,
// is the name taken), at roles, or at resource versions: package kube does. The
// device has a policy of its own, which its owner writes and which this room
// cannot change.
package admission

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// VolumesRoot is the only place on a device that pods may mount from unless
// Settings.HostPathPrefixes says otherwise.
const VolumesRoot = "/var/lib/flotilla/volumes"

// Settings are what an administrator decides about admission. The zero value
// allows nothing that reaches out of a container.
type Settings struct {
	// NotReadySeconds and UnreachableSeconds are how long a pod that does not say
	// so itself stays on a node that is not ready or unreachable. 0 means at once.
	NotReadySeconds, UnreachableSeconds int64

	AllowPrivileged     bool     // privileged containers, privilege escalation, every capability and host path
	AllowHostNetwork    bool     // pods on the device's own network
	AllowHostPID        bool     // pods that see the device's processes
	AllowedCapabilities []string // beyond Docker's default set, such as NET_ADMIN; ALL for every one
	HostPathPrefixes    []string // clean absolute paths, by whole path elements; nil: VolumesRoot

	LeaseInterval time.Duration // of devices; 0: 10 s. A site's graces are four of them at least
}

// Admit makes an object complete, in place, and tells what is wrong with it and
// what its writer should know. old is nil for a new object. An object with errors
// must not be stored.
func Admit(o, old state.Object, s Settings) (warnings []string, errs field.ErrorList) {
	Default(o, s)
	if old == nil {
		errs = Validate(o, s)
	} else {
		errs = ValidateUpdate(o, old, s)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return Warnings(o), nil
}

// Validate tells what is wrong with a new object. Default has been applied to it.
func Validate(o state.Object, s Settings) field.ErrorList {
	return validate(o, nil, s)
}

// ValidateUpdate tells what is wrong with an object that is to replace old. What
// was admitted stays admitted: a pod spec that has not changed is not judged anew
// by settings that have.
func ValidateUpdate(o, old state.Object, s Settings) field.ErrorList {
	if state.KindOf(o) != state.KindOf(old) {
		return field.ErrorList{field.Invalid(field.NewPath("kind"), state.KindOf(o), "may not change")}
	}
	return append(unchanged(o, old), validate(o, old, s)...)
}

// validate checks an object for itself. old is nil or of the same kind.
func validate(o, old state.Object, s Settings) field.ErrorList {
	var l list
	l.meta(o)
	spec := field.NewPath("spec")
	switch o := o.(type) {
	case *corev1.Pod:
		var before *corev1.PodSpec
		if old, ok := old.(*corev1.Pod); ok {
			before = &old.Spec
		}
		l.podSpec(&o.Spec, spec, ofPod)
		l.judge(&o.Spec, before, spec, s)
	case *appsv1.Deployment:
		l.deployment(&o.Spec, spec)
		l.judgeTemplate(&o.Spec.Template, templateOf(old), spec, s)
	case *appsv1.ReplicaSet:
		l.replicaSet(&o.Spec, spec)
		l.judgeTemplate(&o.Spec.Template, templateOf(old), spec, s)
	case *appsv1.DaemonSet:
		l.daemonSet(&o.Spec, spec)
		l.judgeTemplate(&o.Spec.Template, templateOf(old), spec, s)
	case *appsv1.ControllerRevision:
		l.revision(o)
	case *corev1.ConfigMap:
		l.configMap(o)
	case *corev1.Secret:
		l.secret(o)
	case *corev1.Namespace:
		l.namespace(o)
	case *corev1.Event:
		l.event(o)
	case *corev1.Node:
		l.node(o)
	case *coordv1.Lease:
		l.lease(&o.Spec, spec)
	case *policyv1.PodDisruptionBudget:
		l.budget(&o.Spec, spec)
	case *fleet.Site:
		l.site(o, s)
	case *fleet.BoardProfile:
		l.profile(o)
	}
	if _, ok := podSpecOf(o); !ok {
		l.unsupported(o, nil)
	}
	return l.errs
}

// judge checks a pod spec against what devices can do and what may run, unless it
// is the one that was admitted before.
func (l *list) judge(spec, before *corev1.PodSpec, p *field.Path, s Settings) {
	if before != nil && equality.Semantic.DeepEqual(spec, before) {
		return
	}
	l.unsupported(spec, p)
	l.mayRun(spec, p, s)
}

func (l *list) judgeTemplate(t *corev1.PodTemplateSpec, before *corev1.PodSpec, spec *field.Path, s Settings) {
	l.judge(&t.Spec, before, spec.Child("template", "spec"), s)
}

// templateOf returns the pod spec that a workload makes pods of, nil if it has none.
func templateOf(o state.Object) *corev1.PodSpec {
	if t := podTemplateOf(o); t != nil {
		return &t.Spec
	}
	return nil
}

func podTemplateOf(o state.Object) *corev1.PodTemplateSpec {
	switch o := o.(type) {
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	}
	return nil
}

// podSpecOf returns the pod spec in an object, and where it stands.
func podSpecOf(o state.Object) (*corev1.PodSpec, bool) {
	if pod, ok := o.(*corev1.Pod); ok {
		return &pod.Spec, true
	}
	t := templateOf(o)
	return t, t != nil
}
