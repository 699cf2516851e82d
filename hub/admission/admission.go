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
// is the name taken), at roles, or at resource versions: package kube does, and
// shows PodSecurity the namespace. What may run is said by package policy, for the
// hub and for devices alike; a device has a document of its own, which its owner
// writes and which this room cannot change.
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

// Settings are what an administrator decides about admission. The zero value
// allows nothing that reaches out of a container.
type Settings struct {
	// NotReadySeconds and UnreachableSeconds are how long a pod that does not say
	// so itself stays on a node that is not ready or unreachable. 0 means at once.
	NotReadySeconds, UnreachableSeconds int64

	Policy      policy.Document // what may run on devices, beside each device's own policy
	PodSecurity string          // the level of namespaces that name none: privileged, baseline or restricted; "": baseline

	LeaseInterval time.Duration // of devices; 0: 10 s. A site's graces are four of them at least
}

// Admit makes an object complete, in place, and tells what is wrong with it and
// what its writer should know. old is nil for a new object. An object with errors
// must not be stored.
func Admit(o, old state.Object, s Settings) (warnings []string, errs field.ErrorList) {
	if errs := bounds(o); errs != nil {
		return nil, errs
	}
	Default(o, s)
	switch o := o.(type) {
	case *corev1.Node:
		stillTainted(o, old)
	case *corev1.Pod:
		stillComplete(o, old)
	}
	if old == nil {
		errs = Validate(o, s)
	} else {
		errs = ValidateUpdate(o, old, s)
	}
	if len(errs) > 0 {
		return nil, legible(errs)
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
	if errs := bounds(o); errs != nil {
		return errs
	}
	return append(unchanged(o, old), validate(o, old, s)...)
}

// validate checks an object for itself. old is nil or of the same kind.
func validate(o, old state.Object, s Settings) field.ErrorList {
	if errs := bounds(o); errs != nil {
		return errs // nothing else may look at it
	}
	var l list
	l.meta(o)
	l.readable(o)
	kind := state.KindOf(o)
	if check := rules[kind].check; check != nil {
		check(&l, o, given{s, old})
	} else if kind.Served() {
		l.errs = append(l.errs, field.InternalError(field.NewPath("kind"), fmt.Errorf("nothing says what a %T may be", o)))
	}
	runs, at := podSpecOf(o)
	if runs == nil {
		l.unsupported(o, nil)
		return l.errs
	}
	l.noEphemeral(runs, at, kind, old)
	if old != nil && equality.Semantic.DeepEqual(runs, state.PodSpecOf(old)) {
		l.forget(at)
		return l.errs
	}
	// What devices can do, and what may run.
	l.unsupported(runs, at)
	l.mayRun(runs, at, s)
	return l.errs
}

// forget leaves out what is wrong with the fields of a pod spec, which stands as it was admitted,
// or as the hub made it of what was admitted. Rules come and go with versions and settings of the
// hub: who lets such a pod go, or wants more of it, has said nothing new of its spec.
func (l *list) forget(at *field.Path) {
	inside := at.String() + "."
	l.errs = slices.DeleteFunc(l.errs, func(e *field.Error) bool {
		return e.Field == at.String() || strings.HasPrefix(e.Field, inside)
	})
}

// podSpecOf returns the pod spec in an object and where it stands, nil if there is none.
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
