package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestRuntimeClasses(t *testing.T) {
	s := state.Empty("", time.Time{})
	for _, text := range []string{
		"metadata: {name: plain}\nhandler: runc",
		"metadata: {name: kata}\nhandler: kata-qemu\noverhead: {podFixed: {memory: 120Mi, cpu: 250m}}\nscheduling: {nodeSelector: {vm: 'yes'}, tolerations: [{key: vm, operator: Exists}]}",
	} {
		s, _ = state.Apply(s, []state.Change{state.Put(parse[*nodev1.RuntimeClass](t, text), "")})
	}
	for _, c := range []struct{ name, pod, refused string }{
		{"none", "", ""},
		{"plain", "runtimeClassName: plain", ""},
		{"all fields", "runtimeClassName: kata\nnodeSelector: {a: b}", ""},
		{"fields equal to the class's", "runtimeClassName: kata\nnodeSelector: {vm: 'yes'}\noverhead: {memory: 120Mi, cpu: 250m}\ntolerations: [{key: vm, operator: Exists}]", ""},
		{"an unknown class", "runtimeClassName: gone", `pod rejected: RuntimeClass "gone" not found`},
		{"an overhead different from the class's", "runtimeClassName: kata\noverhead: {memory: 1Mi}", "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
		{"an overhead without a class", "overhead: {memory: 1Mi}", "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"an overhead that the class does not have", "runtimeClassName: plain\noverhead: {memory: 1Mi}", "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"a node selector that conflicts with the class's", "runtimeClassName: kata\nnodeSelector: {vm: 'no'}", "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := aPod(t, c.pod)
			p.Annotations = map[string]string{fleet.RuntimeHandlerAnnotation: "of-the-client"}
			err := Complete(p, s)
			if got := ""; err != nil || c.refused != "" {
				if err != nil {
					got = err.Error()
				}
				if got != c.refused {
					t.Errorf("refused with %q, want %q", got, c.refused)
				}
				return
			}
			name, handler := p.Spec.RuntimeClassName, p.Annotations[fleet.RuntimeHandlerAnnotation]
			switch {
			case name == nil:
				if handler != "" || p.Spec.Overhead != nil {
					t.Errorf("handler %q, overhead %v, want none", handler, p.Spec.Overhead)
				}
			case *name == "plain":
				if handler != "runc" || p.Spec.Overhead != nil {
					t.Errorf("handler %q, overhead %v, want runc without overhead", handler, p.Spec.Overhead)
				}
			default:
				n := 0
				for _, have := range p.Spec.Tolerations {
					if have.Key == "vm" {
						n++
					}
				}
				if handler != "kata-qemu" || p.Spec.NodeSelector["vm"] != "yes" || n != 1 {
					t.Errorf("the pod lacks the class's fields: handler %q, node selector %v, tolerations %v", handler,
						p.Spec.NodeSelector, p.Spec.Tolerations)
				}
				bare := p.DeepCopy()
				bare.Spec.Overhead = nil
				overhead, without := state.Requests(p)[corev1.ResourceMemory], state.Requests(bare)[corev1.ResourceMemory]
				overhead.Sub(without)
				if overhead.String() != "120Mi" {
					t.Errorf("the requests include an overhead of %s, want 120Mi", overhead.String())
				}
			}
		})
	}

	old := aPod(t, "runtimeClassName: plain")
	old.Annotations = map[string]string{fleet.RuntimeHandlerAnnotation: "runc"}
	next := old.DeepCopy()
	next.Annotations[fleet.RuntimeHandlerAnnotation] = "nvidia"
	expect(t, ValidateUpdate(next, old, normal), "metadata.annotations[flotilla.dev/runtime-handler]: Forbidden")
}
