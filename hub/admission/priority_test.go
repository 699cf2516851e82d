package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// having returns a snapshot with the objects.
func having(objects ...state.Object) state.Snapshot {
	var changes []state.Change
	for _, o := range objects {
		changes = append(changes, state.Put(o, ""))
	}
	s, _ := state.Apply(state.Empty("hub", time.Unix(0, 0)), changes)
	return s
}

func class(name string, value int32, change ...func(*schedulingv1.PriorityClass)) *schedulingv1.PriorityClass {
	c := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
	defaultPriorityClass(c)
	for _, f := range change {
		f(c)
	}
	return c
}

func isDefault(c *schedulingv1.PriorityClass) { c.GlobalDefault = true }
func never(c *schedulingv1.PriorityClass)     { c.PreemptionPolicy = new(corev1.PreemptNever) }

func TestAPodHasThePriorityOfItsClass(t *testing.T) {
	gold := having(class("gold", 1000, never), class("system-node-critical", 7, isDefault))
	usual := having(class("gold", 1000), class("usual", 10, isDefault), class("other", 20, isDefault))
	for _, tt := range []struct {
		name     string
		s        state.Snapshot
		spec     string
		priority int32
		policy   corev1.PreemptionPolicy
		class    string
		refused  string
	}{
		{"a pod without a class has priority 0", gold, "", 0, corev1.PreemptLowerPriority, "", ""},
		{"a pod gets the value and preemption policy of its class", gold, "priorityClassName: gold", 1000, corev1.PreemptNever, "gold", ""},
		{"a pod may set both to the class's values", gold, "priorityClassName: gold\npriority: 1000\npreemptionPolicy: Never", 1000, corev1.PreemptNever, "gold", ""},
		{"a different value is refused", gold, "priorityClassName: gold\npriority: 5", 0, "", "", "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name"},
		{"a different preemption policy is refused", gold, "priorityClassName: gold\npreemptionPolicy: PreemptLowerPriority", 0, "", "", "the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name"},
		{"a missing class is refused", gold, "priorityClassName: silver", 0, "", "", "no PriorityClass with name silver was found"},
		{"the database cannot change a built-in class", gold, "priorityClassName: system-node-critical", 2000001000, corev1.PreemptLowerPriority, "system-node-critical", ""},
		{"of two default classes the one with the lower value applies", usual, "", 10, corev1.PreemptLowerPriority, "usual", ""},
		{"a number without a class is refused", having(), "priority: 7", 0, "", "", "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name"},
		{"a number different from the default class's is refused", usual, "priority: -7", 0, "", "", "the integer value of priority (-7) must not be provided in pod spec; priority admission controller computed 10 from the given PriorityClass name"},
		{"priority 0 without a class is allowed", gold, "priority: 0", 0, corev1.PreemptLowerPriority, "", ""},
		{"a preemption policy without a class is allowed", gold, "preemptionPolicy: Never", 0, corev1.PreemptNever, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := aPod(t, tt.spec)
			Default(p, normal)
			err := Complete(p, tt.s)
			if tt.refused != "" {
				if err == nil || err.Error() != tt.refused {
					t.Fatalf("refused with %v, want %s", err, tt.refused)
				}
				return
			}
			if err != nil || *p.Spec.Priority != tt.priority || p.Spec.PriorityClassName != tt.class ||
				*p.Spec.PreemptionPolicy != tt.policy {
				t.Errorf("%v: priority %d, class %q, policy %s", err, *p.Spec.Priority, p.Spec.PriorityClassName,
					*p.Spec.PreemptionPolicy)
			}
			expect(t, Validate(p, normal), "")
			if err := Complete(p, tt.s); err != nil {
				t.Errorf("the completed pod is refused: %v", err)
			}
		})
	}
}

func TestPriorityClassesAreValidated(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    *schedulingv1.PriorityClass
		want string
	}{
		{"the highest value", class("gold", 1000000000), ""},
		{"a value above the highest", class("gold", 1000000001), "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"},
		{"below zero", class("gold", -2147483648), ""},
		{"a name with the reserved prefix", class("system-gold", 1), "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved"},
		{"a built-in class as it is", class("system-cluster-critical", 2000000000), ""},
		{"a built-in class with another value", class("system-cluster-critical", 5), "metadata.name: Forbidden"},
		{"a built-in class as the default", class("system-cluster-critical", 2000000000, isDefault), "metadata.name: Forbidden"},
		{"an unknown policy", class("gold", 1, func(c *schedulingv1.PriorityClass) { c.PreemptionPolicy = new(corev1.PreemptionPolicy("Soon")) }), `preemptionPolicy: Unsupported value: "Soon"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			Default(tt.c, normal)
			expect(t, Validate(tt.c, normal), tt.want)
		})
	}
	was := class("gold", 1)
	Default(was, normal)
	for want, change := range map[string]func(*schedulingv1.PriorityClass){
		"value: Forbidden: may not be changed in an update.": func(c *schedulingv1.PriorityClass) { c.Value = 2 },
		"preemptionPolicy: Invalid value":                    never,
		"":                                                   func(c *schedulingv1.PriorityClass) { c.Description, c.GlobalDefault = "new", true },
	} {
		c := was.DeepCopy()
		change(c)
		expect(t, ValidateUpdate(c, was, normal), want)
	}
}

func TestASecondDefaultClassIsRefused(t *testing.T) {
	s := having(class("usual", 10, isDefault))
	for _, c := range []*schedulingv1.PriorityClass{class("other", 10, isDefault), class("other", 10),
		class("usual", 10, isDefault)} {
		refused := c.Name == "other" && c.GlobalDefault
		for _, err := range []error{Complete(c, s), MayReplace(c, s)} {
			if (err != nil) != refused || refused && err.Error() != "PriorityClass usual is already marked as default. Only one default can exist" {
				t.Errorf("class %s, default %t: refused with %v, want refused: %t", c.Name, c.GlobalDefault, err, refused)
			}
		}
	}
}
