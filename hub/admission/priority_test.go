package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// having returns a fleet with objects.
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
		{"without a class it has none", gold, "", 0, corev1.PreemptLowerPriority, "", ""},
		{"a class gives its value and its policy", gold, "priorityClassName: gold", 1000, corev1.PreemptNever, "gold", ""},
		{"it may set both to the class's values", gold, "priorityClassName: gold\npriority: 1000\npreemptionPolicy: Never", 1000, corev1.PreemptNever, "gold", ""},
		{"another value is refused", gold, "priorityClassName: gold\npriority: 5", 0, "", "", "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed 1000 from the given PriorityClass name"},
		{"another policy is refused", gold, "priorityClassName: gold\npreemptionPolicy: PreemptLowerPriority", 0, "", "", "the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in pod spec; priority admission controller computed Never from the given PriorityClass name"},
		{"a class that is not there is refused", gold, "priorityClassName: silver", 0, "", "", "no PriorityClass with name silver was found"},
		{"the system's classes are what they are, whatever stands in the database", gold, "priorityClassName: system-node-critical", 2000001000, corev1.PreemptLowerPriority, "system-node-critical", ""},
		{"the lower of two default classes counts", usual, "", 10, corev1.PreemptLowerPriority, "usual", ""},
		{"a number without a class is refused", having(), "priority: 7", 0, "", "", "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name"},
		{"a number beside the default class is refused", usual, "priority: -7", 0, "", "", "the integer value of priority (-7) must not be provided in pod spec; priority admission controller computed 10 from the given PriorityClass name"},
		{"no class", gold, "priority: 0", 0, corev1.PreemptLowerPriority, "", ""},
		{"its own policy without a class", gold, "preemptionPolicy: Never", 0, corev1.PreemptNever, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := aPod(t, tt.spec)
			Default(p, normal)
			err := Complete(p, tt.s)
			if tt.refused != "" {
				if err == nil || err.Error() != tt.refused {
					t.Fatalf("it is refused with %v, want %s", err, tt.refused)
				}
				return
			}
			if err != nil || *p.Spec.Priority != tt.priority || p.Spec.PriorityClassName != tt.class || *p.Spec.PreemptionPolicy != tt.policy {
				t.Errorf("%v: priority %d, class %q, policy %s", err, *p.Spec.Priority, p.Spec.PriorityClassName, *p.Spec.PreemptionPolicy)
			}
			expect(t, Validate(p, normal), "")
			if err := Complete(p, tt.s); err != nil {
				t.Errorf("a second time it is refused: %v", err)
			}
		})
	}
}

func TestAPriorityClass(t *testing.T) {
	for _, tt := range []struct {
		name string
		c    *schedulingv1.PriorityClass
		want string
	}{
		{"the highest value", class("gold", 1000000000), ""},
		{"a value above the highest", class("gold", 1000000001), "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"},
		{"below zero", class("gold", -2147483648), ""},
		{"with the system's prefix", class("system-gold", 1), "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved"},
		{"the system's own", class("system-cluster-critical", 2000000000), ""},
		{"the system's own of another value", class("system-cluster-critical", 5), "metadata.name: Forbidden"},
		{"the system's own as a default", class("system-cluster-critical", 2000000000, isDefault), "metadata.name: Forbidden"},
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

func TestThereIsOneDefaultClass(t *testing.T) {
	s := having(class("usual", 10, isDefault))
	for _, c := range []*schedulingv1.PriorityClass{class("other", 10, isDefault), class("other", 10), class("usual", 10, isDefault)} {
		refused := c.Name == "other" && c.GlobalDefault
		for _, err := range []error{Complete(c, s), MayReplace(c, s)} {
			if (err != nil) != refused || refused && err.Error() != "PriorityClass usual is already marked as default. Only one default can exist" {
				t.Errorf("%s, default %t: %v", c.Name, c.GlobalDefault, err)
			}
		}
	}
}
