package admission

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// AdmitEphemeral is Admit for the subresource ephemeralcontainers: containers may be added, but not
// changed or removed.
func AdmitEphemeral(p, old *corev1.Pod, s Settings) (warnings []string, errs field.ErrorList) {
	return admitPart(p, old, s, (*list).ephemeralAdded)
}

// admitPart is Admit for an update of a pod through a subresource; rule is the subresource's own
// rule.
func admitPart(next, live *corev1.Pod, s Settings,
	rule func(l *list, next, live *corev1.Pod)) (warnings []string, errs field.ErrorList) {
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

// noEphemeral refuses ephemeral containers in templates and new pods.
func (l *list) noEphemeral(s *corev1.PodSpec, p *field.Path, kind state.Kind, old state.Object) {
	switch {
	case len(s.EphemeralContainers) == 0:
	case kind != state.Pods:
		l.forbidden(p.Child("ephemeralContainers"), "ephemeral containers not allowed in pod template")
	case old == nil:
		l.forbidden(p.Child("ephemeralContainers"), "cannot be set on create")
	}
}

// ephemeral checks the rules that apply only to ephemeral containers.
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

// asContainer converts an ephemeral container to a container, which has the same fields.
func asContainer(c *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&c.EphemeralContainerCommon)
}

// Resized returns live with the resources and managed fields of next; pods/resize ignores all other
// changes (KEP-1287). Added containers stay, so that AdmitResize refuses them.
func Resized(next, live *corev1.Pod) *corev1.Pod {
	out := live.DeepCopy()
	out.ManagedFields = next.ManagedFields
	for _, list := range []struct {
		to   *[]corev1.Container
		from []corev1.Container
	}{{&out.Spec.Containers, next.Spec.Containers}, {&out.Spec.InitContainers, next.Spec.InitContainers}} {
		same := slices.EqualFunc(*list.to, list.from, func(a, b corev1.Container) bool { return a.Name == b.Name })
		if !same {
			*list.to = list.from
			continue
		}
		for i := range list.from {
			(*list.to)[i].Resources, (*list.to)[i].ResizePolicy = list.from[i].Resources, list.from[i].ResizePolicy
		}
	}
	return out
}

// AdmitResize is Admit for a change of a running pod's resources. next is the result of Resized.
func AdmitResize(next, live *corev1.Pod, s Settings) (warnings []string, errs field.ErrorList) {
	return admitPart(next, live, s, (*list).resized)
}

// resized has kube-apiserver's rules and messages (ValidatePodResize).
func (l *list) resized(next, live *corev1.Pod) {
	if qos(&next.Spec) != qos(&live.Spec) {
		l.invalid(spec, next.Status.QOSClass, "Pod QOS Class may not change as a result of resizing")
	}
	for _, c := range live.Status.ContainerStatuses {
		if c.State.Running != nil && c.Resources == nil { // the agent does not support resize
			l.forbidden(spec, "Pod running on node without support for resize")
			break
		}
	}
	if !l.sameOrder(next.Spec.Containers, live.Spec.Containers, "containers") ||
		!l.sameOrder(next.Spec.InitContainers, live.Spec.InitContainers, "initContainers") {
		return
	}
	for i := range live.Spec.InitContainers {
		c, was, at := &next.Spec.InitContainers[i], &live.Spec.InitContainers[i], spec.Child("initContainers").Index(i)
		l.limitsKept(c, was, at)
		if !onlyResources(c, was) {
			l.forbidden(at, "only cpu and memory resources for init or sidecar containers are mutable")
		}
	}
	for i := range live.Spec.Containers {
		c, was := &next.Spec.Containers[i], &live.Spec.Containers[i]
		l.limitsKept(c, was, spec.Child("containers").Index(i))
		if !onlyResources(c, was) {
			l.forbidden(spec, "only cpu and memory resources are mutable")
		}
	}
}

func (l *list) sameOrder(now, was []corev1.Container, what string) bool {
	at, n := spec.Child(what), len(l.errs)
	if len(now) != len(was) {
		l.forbidden(at, what+" may not be added or removed on resize")
		return false
	}
	for i := range was {
		if now[i].Name != was[i].Name {
			l.forbidden(at.Index(i).Child("name"), what+" may not be renamed or reordered on resize")
		}
	}
	return len(l.errs) == n
}

// limitsKept refuses the removal of a limit, because no runtime can remove one.
func (l *list) limitsKept(c, was *corev1.Container, p *field.Path) {
	for _, list := range []struct {
		what     string
		now, was corev1.ResourceList
	}{{"requests", c.Resources.Requests, was.Resources.Requests}, {"limits", c.Resources.Limits, was.Resources.Limits}} {
		for name := range list.was {
			if _, has := list.now[name]; !has {
				l.forbidden(p.Child("resources", list.what), "resource "+list.what+" cannot be removed")
				break
			}
		}
	}
}

// onlyResources reports whether only the cpu and memory of a container have changed.
func onlyResources(c, was *corev1.Container) bool {
	rest := func(c *corev1.Container) *corev1.Container {
		out := *c
		out.Resources.Requests, out.Resources.Limits = maps.Clone(c.Resources.Requests), maps.Clone(c.Resources.Limits)
		for _, list := range []corev1.ResourceList{out.Resources.Requests, out.Resources.Limits} {
			delete(list, corev1.ResourceCPU)
			delete(list, corev1.ResourceMemory)
		}
		return &out
	}
	return equality.Semantic.DeepEqual(rest(c), rest(was))
}

// resizePolicy checks a container's resize policies.
func (l *list) resizePolicy(c *corev1.Container, of corev1.RestartPolicy, once bool, p *field.Path) {
	seen := map[corev1.ResourceName]bool{}
	for i, r := range c.ResizePolicy {
		if seen[r.ResourceName] {
			l.duplicate(p.Index(i), r.ResourceName)
		}
		seen[r.ResourceName] = true
		oneOf(l, p, r.ResourceName, corev1.ResourceCPU, corev1.ResourceMemory)
		oneOf(l, p, r.RestartPolicy, corev1.NotRequired, corev1.RestartContainer)
		switch {
		case r.RestartPolicy == corev1.NotRequired:
		case of == corev1.RestartPolicyNever:
			l.invalid(p, r.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		case once && r.RestartPolicy == corev1.RestartContainer:
			l.invalid(p.Index(i).Child("restartPolicy"), r.RestartPolicy,
				"must not be set to 'RestartContainer' for non-sidecar initContainers")
		}
	}
}

// Resize checks the result of AdmitResize against limit ranges and quotas. It returns the changes
// of the quotas, which the caller commits with the pod, or an error in Kubernetes' words. Unlike in
// Kubernetes, limit ranges fill in no defaults, since the running pod does not have them.
func Resize(next, live *corev1.Pod, s state.Snapshot, now time.Time) (changes []state.Change, err error) {
	if err := checkPodRange(next, s); err != nil {
		return nil, err
	}
	for q := range s.Quotas(next.Namespace) {
		more, had := state.Charged(q, next, now), state.Charged(q, live, now)
		for name, amount := range more {
			amount = amount.DeepCopy()
			amount.Sub(had[name])
			more[name] = amount
		}
		maps.DeleteFunc(more, func(_ corev1.ResourceName, amount resource.Quantity) bool { return amount.IsZero() })
		if err := exceeded(q, more); err != nil {
			return nil, err
		}
		if counted := state.WithUsage(q, more); counted != nil {
			changes = append(changes, state.Put(counted,
				fmt.Sprintf("count pod %s again in quota %s: it is resized", state.Display(next), q.Name)))
		}
	}
	return changes, nil
}
