package admission

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// AdmitEphemeral is Admit for an update that may change the ephemeral containers of a pod, and
// nothing else: more of them, and those that are there stay as they are.
func AdmitEphemeral(p, old *corev1.Pod, s Settings) (warnings []string, errs field.ErrorList) {
	return admitPart(p, old, s, (*list).ephemeralAdded)
}

// admitPart is Admit for an update of a pod that is there, by a subresource with a rule of its own.
func admitPart(next, live *corev1.Pod, s Settings, rule func(l *list, next, live *corev1.Pod)) (warnings []string, errs field.ErrorList) {
	if errs := bounds(next); errs != nil {
		return nil, errs
	}
	Default(next, s)
	var l list
	l.metaUnchanged(next, live)
	rule(&l, next, live)
	if errs := append(l.errs, validate(next, live, s)...); len(errs) > 0 {
		return nil, errs
	}
	return Warnings(next), nil
}

// ephemeralAdded compares by name, as kube-apiserver does.
func (l *list) ephemeralAdded(p, old *corev1.Pod) {
	at := spec.Child("ephemeralContainers")
	now := map[string]*corev1.EphemeralContainer{}
	for i := range p.Spec.EphemeralContainers {
		now[p.Spec.EphemeralContainers[i].Name] = &p.Spec.EphemeralContainers[i]
	}
	for i := range old.Spec.EphemeralContainers {
		was := &old.Spec.EphemeralContainers[i]
		switch c := now[was.Name]; {
		case c == nil:
			l.forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be removed\n", was.Name))
		case !equality.Semantic.DeepEqual(c, was):
			l.forbidden(at, fmt.Sprintf("existing ephemeral containers %q may not be changed\n", was.Name))
		}
	}
}

// noEphemeral refuses ephemeral containers where there is no pod yet.
func (l *list) noEphemeral(s *corev1.PodSpec, p *field.Path, kind state.Kind, old state.Object) {
	switch {
	case len(s.EphemeralContainers) == 0:
	case kind != state.Pods:
		l.forbidden(p.Child("ephemeralContainers"), "ephemeral containers not allowed in pod template")
	case old == nil:
		l.forbidden(p.Child("ephemeralContainers"), "cannot be set on create")
	}
}

// ephemeral checks one of a pod's ephemeral containers, beside what is checked of every container.
func (l *list) ephemeral(c *corev1.EphemeralContainer, s *corev1.PodSpec, p *field.Path) {
	if target := c.TargetContainerName; target != "" {
		known := false
		eachContainer(s, func(c *corev1.Container) { known = known || c.Name == target })
		if !known {
			l.errs = append(l.errs, field.NotFound(p.Child("targetContainerName"), target))
		}
	}
	for i, m := range c.VolumeMounts {
		at := p.Child("volumeMounts").Index(i)
		if m.SubPath != "" {
			l.forbidden(at.Child("subPath"), "cannot be set for an Ephemeral Container")
		}
		if m.SubPathExpr != "" {
			l.forbidden(at.Child("subPathExpr"), "cannot be set for an Ephemeral Container")
		}
	}
}

// asContainer is an ephemeral container as what every container is. They have the same fields.
func asContainer(c *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&c.EphemeralContainerCommon)
}
