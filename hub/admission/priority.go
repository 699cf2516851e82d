package admission

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

func defaultPriorityClass(c *schedulingv1.PriorityClass) {
	set(&c.PreemptionPolicy, corev1.PreemptLowerPriority)
}

// priorityClass checks a class. Those of the system are as they are.
func (l *list) priorityClass(c *schedulingv1.PriorityClass) {
	at := func(name string) *field.Path { return field.NewPath(name) }
	switch system := state.SystemClass(c.Name); {
	case system != nil && (c.Value != system.Value || c.GlobalDefault || c.PreemptionPolicy != nil && *c.PreemptionPolicy != *system.PreemptionPolicy):
		l.forbidden(at("metadata").Child("name"), fmt.Sprintf("%s is the system's own class of value %d, which is no default", c.Name, system.Value))
	case system == nil && strings.HasPrefix(c.Name, state.SystemClassPrefix):
		l.forbidden(at("metadata").Child("name"), "priority class names with '"+state.SystemClassPrefix+"' prefix are reserved for system use only")
	case system == nil && c.Value > state.HighestUserPriority:
		l.forbidden(at("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %d", state.HighestUserPriority))
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

// prioritise gives a new pod the priority of its class, or of the default one: a number of its own it may not have.
func prioritise(spec *corev1.PodSpec, s state.Snapshot) error {
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
		return fmt.Errorf("the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *spec.Priority, class.Value)
	}
	if policy := class.PreemptionPolicy; policy != nil && class.Name != "" && spec.PreemptionPolicy != nil && *spec.PreemptionPolicy != *policy {
		return errors.New("the string value of PreemptionPolicy (" + string(*spec.PreemptionPolicy) + ") must not be provided in pod spec; priority admission controller computed " +
			string(*policy) + " from the given PriorityClass name")
	}
	spec.PriorityClassName, spec.Priority = class.Name, &class.Value
	if class.PreemptionPolicy != nil {
		set(&spec.PreemptionPolicy, *class.PreemptionPolicy)
	}
	return nil
}
