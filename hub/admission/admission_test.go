package admission

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

func messages(errs field.ErrorList) []string {
	out := []string{}
	for _, e := range errs {
		out = append(out, e.Error())
	}
	return out
}

// expect fails unless errs is exactly one error with the prefix want, or is empty if want is "".
func expect(t *testing.T, errs field.ErrorList, want string) {
	t.Helper()
	switch got := messages(errs); {
	case want == "" && len(got) > 0:
		t.Errorf("refused:\n%s", strings.Join(got, "\n"))
	case want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], want)):
		t.Errorf("got:\n%s\nwant: %s", strings.Join(got, "\n"), want)
	}
}

func TestEverySampleIsAdmittedWithoutAWarning(t *testing.T) {
	for _, k := range state.Kinds() {
		if !k.Served() {
			continue
		}
		t.Run(string(k), func(t *testing.T) {
			o := sample(t, k)
			warnings, errs := Admit(o, nil, normal)
			expect(t, errs, "")
			if len(warnings) > 0 {
				t.Errorf("warnings: %q", warnings)
			}
			_, errs = Admit(o.DeepCopyObject().(state.Object), o, normal)
			expect(t, errs, "")
		})
	}
}

func TestAnotherKindCannotReplaceAnObject(t *testing.T) {
	expect(t, ValidateUpdate(&corev1.ConfigMap{}, &corev1.Pod{}, normal), "kind: Invalid value")
}

// holds checks properties that any decoded object must have.
func holds(t testing.TB, o state.Object) {
	t.Helper()
	Default(o, normal)
	once := o.DeepCopyObject().(state.Object)
	Default(o, normal)
	if !equality.Semantic.DeepEqual(o, once) {
		b, _ := json.Marshal(once)
		t.Fatalf("a second Default changes the object: %s", b)
	}
	errs := Validate(o, normal)
	if repeated := Validate(once, normal); !slices.Equal(messages(repeated), messages(errs)) {
		t.Fatalf("two validations of one object differ:\n%s\n%s", errs, repeated)
	}
	Warnings(o)
	if update := ValidateUpdate(o, once, normal); len(errs) == 0 && len(update) > 0 && o.GetResourceVersion() != "" {
		t.Fatalf("an admitted object cannot be written again: %v", update)
	}
}

// TestMutatedObjectsAreHandledConsistently mutates the samples at random, with a fixed seed.
func TestMutatedObjectsAreHandledConsistently(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	values := []any{nil, "", "x", "a/b", "-1", "../..", "ALL", true, false, -1.0, 0.0, 1.0, 70000.0, 1e18, "100%",
		"999999999999%", map[string]any{}, []any{}, "metadata.labels['']", "1e3"}
	decoded := 0
	for range 6000 {
		k := state.Kinds()[r.IntN(len(state.Kinds()))]
		for !k.Served() {
			k = state.Kinds()[r.IntN(len(state.Kinds()))]
		}
		b, err := json.Marshal(sample(t, k))
		if err != nil {
			t.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(b, &tree); err != nil {
			t.Fatal(err)
		}
		for range 1 + r.IntN(4) {
			tree = mutate(r, tree, values)
		}
		if b, err = json.Marshal(tree); err != nil {
			t.Fatal(err)
		}
		o, _ := state.New(k)
		if json.Unmarshal(b, o) != nil {
			continue
		}
		decoded++
		holds(t, o)
	}
	if decoded < 2000 {
		t.Errorf("only %d mutated objects can be decoded, want 2000", decoded)
	}
}

func mutate(r *rand.Rand, tree any, values []any) any {
	switch node := tree.(type) {
	case map[string]any:
		keys := sortedKeys(node)
		if len(keys) == 0 {
			return values[r.IntN(len(values))]
		}
		switch key := keys[r.IntN(len(keys))]; r.IntN(8) {
		case 0:
			delete(node, key)
		case 1:
			node[key] = values[r.IntN(len(values))]
		case 2:
			node[keys[r.IntN(len(keys))]] = node[key]
		default:
			node[key] = mutate(r, node[key], values)
		}
		return node
	case []any:
		if len(node) == 0 {
			return []any{map[string]any{}}
		}
		i := r.IntN(len(node))
		if r.IntN(6) == 0 {
			return append(node, node[i])
		}
		node[i] = mutate(r, node[i], values)
		return node
	}
	return values[r.IntN(len(values))]
}

func FuzzAdmission(f *testing.F) {
	for i, k := range state.Kinds() {
		if !k.Served() {
			continue
		}
		b, err := json.Marshal(sample(f, k))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	f.Fuzz(func(t *testing.T, i uint8, b []byte) {
		o, err := state.New(state.Kinds()[int(i)%len(state.Kinds())])
		if err != nil || json.Unmarshal(b, o) != nil {
			return
		}
		holds(t, o)
	})
}

func TestAnAdmittedObjectStaysAdmitted(t *testing.T) {
	open := normal
	open.Policy.Privileged = true
	pod := aContainer(t, "securityContext: {privileged: true}")
	expect(t, Validate(pod, open), "")
	expect(t, Validate(pod, normal), "spec.containers[0].securityContext.privileged: Forbidden")

	labelled := pod.DeepCopy()
	labelled.Labels = map[string]string{"new": "label"}
	expect(t, ValidateUpdate(labelled, pod, normal), "")

	deploy := sample(t, state.Deployments).(*appsv1.Deployment)
	deploy.Spec.Template.Spec.HostPID = true
	scaled := deploy.DeepCopy()
	scaled.Spec.Replicas = new(int32)
	expect(t, ValidateUpdate(scaled, deploy, normal), "")
	changed := scaled.DeepCopy()
	changed.Spec.Template.Spec.Containers[0].Image = "kiosk:2"
	expect(t, ValidateUpdate(changed, deploy, normal), "spec.template.spec.hostPID: Forbidden")
}

func ExampleAdmit() {
	pod := &corev1.Pod{}
	pod.Name, pod.Namespace = "kiosk", "shop"
	pod.Spec.Containers = []corev1.Container{{Name: "web", Image: "kiosk:1"}}
	pod.Spec.HostIPC = true
	_, errs := Admit(pod, nil, Settings{})
	fmt.Println(errs.ToAggregate())
	// Output: spec.hostIPC: Forbidden: is not supported: containers on devices never share the device's IPC
}
