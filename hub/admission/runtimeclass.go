package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func (l *list) runtimeClass(c *nodev1.RuntimeClass) {
	if c.Handler == "" {
		l.required(field.NewPath("handler"), "")
	} else if errs := validation.IsDNS1123Label(c.Handler); errs != nil {
		l.invalid(field.NewPath("handler"), c.Handler, strings.Join(errs, "; "))
	}
	if c.Overhead != nil {
		for name := range c.Overhead.PodFixed {
			l.overhead(name, c.Overhead.PodFixed, field.NewPath("overhead", "podFixed").Key(string(name)))
		}
	}
	if s := c.Scheduling; s != nil {
		at := field.NewPath("scheduling")
		l.all(metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector")))
		for i, t := range s.Tolerations {
			l.toleration(t, at.Child("tolerations").Index(i))
		}
	}
}

func (l *list) overhead(name corev1.ResourceName, of corev1.ResourceList, at *field.Path) {
	if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
		l.forbidden(at, "is not supported: a runtime takes cpu, memory or ephemeral-storage")
		return
	}
	l.resource(name, of, at)
}

// withRuntime gives a pod what its RuntimeClass says, in the words of Kubernetes' admission; the device learns the handler
// from an annotation, so that a class that is gone takes nothing from the pods that it has had.
func withRuntime(p *corev1.Pod, s state.Snapshot) error {
	delete(p.Annotations, fleet.RuntimeHandlerAnnotation)
	name := p.Spec.RuntimeClassName
	if name == nil {
		if len(p.Spec.Overhead) > 0 {
			return errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
		}
		return nil
	}
	c := s.RuntimeClass(*name)
	if c == nil {
		return fmt.Errorf("pod rejected: RuntimeClass %q not found", *name)
	}
	var overhead corev1.ResourceList
	if c.Overhead != nil {
		overhead = c.Overhead.PodFixed
	}
	if len(p.Spec.Overhead) > 0 && !apiequality.Semantic.DeepEqual(p.Spec.Overhead, overhead) {
		if len(overhead) == 0 {
			return errors.New("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
		}
		return errors.New("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
	}
	if len(overhead) > 0 {
		p.Spec.Overhead = overhead.DeepCopy()
	}
	if g := c.Scheduling; g != nil {
		for _, key := range slices.Sorted(maps.Keys(g.NodeSelector)) {
			if have, ok := p.Spec.NodeSelector[key]; ok && have != g.NodeSelector[key] {
				return fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, g.NodeSelector[key], key, have)
			}
		}
		if len(g.NodeSelector) > 0 && p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		maps.Copy(p.Spec.NodeSelector, g.NodeSelector)
		for _, t := range g.Tolerations {
			if !slices.ContainsFunc(p.Spec.Tolerations, func(have corev1.Toleration) bool { return apiequality.Semantic.DeepEqual(have, t) }) {
				p.Spec.Tolerations = append(p.Spec.Tolerations, *t.DeepCopy())
			}
		}
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[fleet.RuntimeHandlerAnnotation] = c.Handler
	return nil
}
