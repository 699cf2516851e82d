// Package admission validates objects: it fills in defaults, refuses invalid fields, and refuses or
// warns about fields that devices do not implement.
//
// Every object that a user or controller writes passes through it. Values and messages are those of
// kube-apiserver. The supported fields are an allow-list, so fields of a newer Kubernetes are
// refused until the devices implement them. The package is pure and never checks roles or resource
// versions: package kube does. Package policy decides which pods may run; a device also has its own
// policy.
package admission

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/policy"
)

// Settings configure admission. The zero value allows no access beyond the container.
type Settings struct {
	// NotReadySeconds and UnreachableSeconds are the default tolerations of pods for a node that is
	// not ready or unreachable. 0: evict at once.
	NotReadySeconds, UnreachableSeconds int64

	Policy      policy.Document // what may run on devices; each device can restrict it further
	PodSecurity string          // default level of namespaces: privileged, baseline or restricted; "": baseline

	LeaseInterval time.Duration // of devices; 0: 10 s. A site's grace period is at least four lease intervals
}

// Admit fills in an object's defaults in place, and returns warnings and errors. old is nil for a
// new object. An object with errors must not be stored.
func Admit(o, old state.Object, s Settings) (warnings []string, errs field.ErrorList) {
	if errs := bounds(o); errs != nil {
		return nil, errs
	}
	Default(o, s)
	switch o := o.(type) {
	case *corev1.Node:
		keepTaintTimes(o, old)
	case *corev1.Pod:
		keepCompleted(o, old)
	}
	if old == nil {
		errs = Validate(o, s)
	} else {
		errs = ValidateUpdate(o, old, s)
	}
	if len(errs) > 0 {
		return nil, shorten(errs)
	}
	return Warnings(o), nil
}

// Validate returns the errors of a new object. The caller has applied Default.
func Validate(o state.Object, s Settings) field.ErrorList {
	return validate(o, nil, s)
}

// ValidateUpdate returns the errors of an object that replaces old. An unchanged pod spec stays
// admitted even if new settings would refuse it.
func ValidateUpdate(o, old state.Object, s Settings) field.ErrorList {
	if state.KindOf(o) != state.KindOf(old) {
		return field.ErrorList{field.Invalid(field.NewPath("kind"), state.KindOf(o), "may not change")}
	}
	if errs := bounds(o); errs != nil {
		return errs
	}
	return append(unchanged(o, old), validate(o, old, s)...)
}

// validate checks an object without other objects. old is nil or of the same kind.
func validate(o, old state.Object, s Settings) field.ErrorList {
	if errs := bounds(o); errs != nil {
		return errs // the other checks rely on these limits
	}
	var l list
	l.meta(o)
	l.readable(o)
	kind := state.KindOf(o)
	if check := rules[kind].check; check != nil {
		check(&l, o, checkContext{s, old})
	} else if kind.Served() {
		l.errs = append(l.errs, field.InternalError(field.NewPath("kind"), fmt.Errorf("admission has no rule for %T", o)))
	}
	runs, at := podSpecOf(o)
	if runs == nil {
		l.unsupported(o, nil)
		return l.errs
	}
	l.noEphemeral(runs, at, kind, old)
	if old != nil && equality.Semantic.DeepEqual(runs, state.PodSpecOf(old)) {
		l.dropUnchanged(at)
		return l.errs
	}
	// Check that devices implement the fields, and that the policy allows the pod.
	l.unsupported(runs, at)
	l.mayRun(runs, at, s)
	return l.errs
}

// dropUnchanged drops the errors of an unchanged pod spec. Rules change with the hub's version and
// settings. They must not block other changes of an existing object, such as its deletion or
// scaling.
func (l *list) dropUnchanged(at *field.Path) {
	inside := at.String() + "."
	l.errs = slices.DeleteFunc(l.errs, func(e *field.Error) bool {
		return e.Field == at.String() || strings.HasPrefix(e.Field, inside)
	})
}

// podSpecOf returns an object's pod spec and its path, nil if it has none.
func podSpecOf(o state.Object) (*corev1.PodSpec, *field.Path) {
	at := spec
	switch {
	case state.KindOf(o) == state.CronJobs:
		at = spec.Child("jobTemplate", "spec", "template", "spec")
	case state.KindOf(o) == state.PodTemplates:
		at = field.NewPath("template", "spec")
	case state.TemplateOf(o) != nil:
		at = spec.Child("template", "spec")
	}
	return state.PodSpecOf(o), at
}
