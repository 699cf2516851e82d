package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Consulted are the kinds that Complete reads. Its result is valid until an object of these kinds
// changes.
var Consulted = slices.DeleteFunc(slices.Clone(state.Kinds()), func(k state.Kind) bool { return !k.Row().Consulted })

// Complete fills in, in place, the fields of a new object that come from the fleet and the
// namespace. Its error is in Kubernetes' words. The caller has applied Default.
func Complete(o state.Object, s state.Snapshot) error {
	switch o := o.(type) {
	case *corev1.Pod:
		if err := applyRuntimeClass(o, s); err != nil {
			return err
		}
		if err := setPriority(&o.Spec, s); err != nil {
			return err
		}
		return applyLimitRanges(o, s)
	case *corev1.PersistentVolumeClaim:
		return checkClaimRange(o, s)
	case *schedulingv1.PriorityClass:
		return onlyDefault(o, s)
	}
	return nil
}

// MayReplace returns an error if other objects in the fleet do not allow o to replace an existing
// object.
func MayReplace(o state.Object, s state.Snapshot) error {
	if c, ok := o.(*schedulingv1.PriorityClass); ok {
		return onlyDefault(c, s)
	}
	return nil
}

func defaultPriorityClass(c *schedulingv1.PriorityClass) {
	set(&c.PreemptionPolicy, corev1.PreemptLowerPriority)
}

// priorityClass checks a class. The built-in classes cannot change.
func (l *list) priorityClass(c *schedulingv1.PriorityClass) {
	at := func(name string) *field.Path { return field.NewPath(name) }
	switch system := state.SystemClass(c.Name); {
	case system != nil && (c.Value != system.Value || c.GlobalDefault ||
		c.PreemptionPolicy != nil && *c.PreemptionPolicy != *system.PreemptionPolicy):
		l.forbidden(at("metadata").Child("name"),
			fmt.Sprintf("%s is a system class with value %d and cannot be the default", c.Name, system.Value))
	case system == nil && strings.HasPrefix(c.Name, state.SystemClassPrefix):
		l.forbidden(at("metadata").Child("name"), "priority class names with '"+state.SystemClassPrefix+
			"' prefix are reserved for system use only")
	case system == nil && c.Value > state.HighestUserPriority:
		l.forbidden(at("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %d",
			state.HighestUserPriority))
	}
	if c.PreemptionPolicy != nil {
		oneOf(l, at("preemptionPolicy"), *c.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
}

func (l *list) priorityClassUnchanged(c, was *schedulingv1.PriorityClass) {
	if c.Value != was.Value {
		l.forbidden(field.NewPath("value"), "may not be changed in an update.")
	}
	l.same(c.PreemptionPolicy, was.PreemptionPolicy, field.NewPath("preemptionPolicy"))
}

// onlyDefault refuses a second default class.
func onlyDefault(c *schedulingv1.PriorityClass, s state.Snapshot) error {
	if d := s.DefaultPriorityClass(); c.GlobalDefault && d != nil && d.Name != c.Name {
		return fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", d.Name)
	}
	return nil
}

// setPriority gives a new pod the priority of its class or of the default class. It refuses a
// different number.
func setPriority(spec *corev1.PodSpec, s state.Snapshot) error {
	class := schedulingv1.PriorityClass{PreemptionPolicy: new(corev1.PreemptLowerPriority)}
	switch named := spec.PriorityClassName != ""; {
	case named && s.PriorityClass(spec.PriorityClassName) == nil:
		return fmt.Errorf("no PriorityClass with name %v was found", spec.PriorityClassName)
	case named:
		class = *s.PriorityClass(spec.PriorityClassName)
	default:
		if d := s.DefaultPriorityClass(); d != nil {
			class = *d
		}
	}
	if spec.Priority != nil && *spec.Priority != class.Value {
		return fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission "+
			"controller computed %d from the given PriorityClass name", *spec.Priority, class.Value)
	}
	if policy := class.PreemptionPolicy; policy != nil && class.Name != "" && spec.PreemptionPolicy != nil &&
		*spec.PreemptionPolicy != *policy {
		return errors.New("the string value of PreemptionPolicy (" + string(*spec.PreemptionPolicy) +
			") must not be provided in pod spec; priority admission controller computed " +
			string(*policy) + " from the given PriorityClass name")
	}
	spec.PriorityClassName, spec.Priority = class.Name, &class.Value
	if class.PreemptionPolicy != nil {
		set(&spec.PreemptionPolicy, *class.PreemptionPolicy)
	}
	return nil
}

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
		l.forbidden(at, "is not supported: write cpu, memory or ephemeral-storage")
		return
	}
	l.resource(name, of, at)
}

// applyRuntimeClass applies a pod's RuntimeClass, in the words of Kubernetes' admission. It stores
// the handler in an annotation for the device, so that deleting the class does not affect existing
// pods.
func applyRuntimeClass(p *corev1.Pod, s state.Snapshot) error {
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
				return fmt.Errorf("conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key,
					g.NodeSelector[key], key, have)
			}
		}
		if len(g.NodeSelector) > 0 && p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		maps.Copy(p.Spec.NodeSelector, g.NodeSelector)
		for _, t := range g.Tolerations {
			if !slices.ContainsFunc(p.Spec.Tolerations, func(have corev1.Toleration) bool {
				return apiequality.Semantic.DeepEqual(have, t)
			}) {
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
