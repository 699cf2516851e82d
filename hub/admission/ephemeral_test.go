package admission_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/admission"
)

func TestEphemeralContainers(t *testing.T) {
	base := "metadata: {name: p, namespace: default, resourceVersion: \"1\"}\nspec:\n  nodeName: pi-1\n  initContainers: [{name: i, image: a}]\n  containers: [{name: c, image: a}]\n  volumes: [{name: v, emptyDir: {}}]\n"
	pod := func(text string) *corev1.Pod {
		var p corev1.Pod
		if err := yaml.UnmarshalStrict([]byte(base+text), &p); err != nil {
			t.Fatal(err)
		}
		admission.Default(&p, admission.Settings{})
		return &p
	}
	for _, c := range []struct{ name, old, next, want string }{
		{"one more", "", "  ephemeralContainers: [{name: e, image: busybox, stdin: true, tty: true, targetContainerName: c, volumeMounts: [{name: v, mountPath: /v}]}]\n", ""},
		{"another", "  ephemeralContainers: [{name: e, image: a}]\n", "  ephemeralContainers: [{name: e, image: a}, {name: f, image: a, targetContainerName: i}]\n", ""},
		{"existing containers in another order", "  ephemeralContainers: [{name: e, image: a}, {name: f, image: b}]\n", "  ephemeralContainers: [{name: f, image: b}, {name: e, image: a}]\n", ""},
		{"one less", "  ephemeralContainers: [{name: e, image: a}]\n", "", `spec.ephemeralContainers: Forbidden: existing ephemeral containers "e" may not be removed`},
		{"another image", "  ephemeralContainers: [{name: e, image: a}]\n", "  ephemeralContainers: [{name: e, image: b}]\n", `spec.ephemeralContainers: Forbidden: existing ephemeral containers "e" may not be changed`},
		{"the name of a container", "", "  ephemeralContainers: [{name: c, image: a}]\n", `spec.ephemeralContainers[0].name: Duplicate value: "c"`},
		{"a duplicate name", "", "  ephemeralContainers: [{name: e, image: a}, {name: e, image: a}]\n", `spec.ephemeralContainers[1].name: Duplicate value: "e"`},
		{"no name", "", "  ephemeralContainers: [{image: a}]\n", "spec.ephemeralContainers[0].name: Required value"},
		{"no image", "", "  ephemeralContainers: [{name: e}]\n", "spec.ephemeralContainers[0].image: Required value"},
		{"a missing target", "", "  ephemeralContainers: [{name: e, image: a, targetContainerName: x}]\n", `spec.ephemeralContainers[0].targetContainerName: Not found: "x"`},
		{"a target that is an ephemeral container", "", "  ephemeralContainers: [{name: e, image: a}, {name: f, image: a, targetContainerName: e}]\n", `spec.ephemeralContainers[1].targetContainerName: Not found: "e"`},
		{"a missing volume", "", "  ephemeralContainers: [{name: e, image: a, volumeMounts: [{name: w, mountPath: /v}]}]\n", `spec.ephemeralContainers[0].volumeMounts[0].name: Not found: "w"`},
		{"a subPath of a volume", "", "  ephemeralContainers: [{name: e, image: a, volumeMounts: [{name: v, mountPath: /v, subPath: x}]}]\n", "spec.ephemeralContainers[0].volumeMounts[0].subPath: Forbidden: cannot be set for an Ephemeral Container"},
		{"ports", "", "  ephemeralContainers: [{name: e, image: a, ports: [{containerPort: 80}]}]\n", "spec.ephemeralContainers[0].ports: Forbidden: is not supported: cannot be set for an Ephemeral Container"},
		{"a probe", "", "  ephemeralContainers: [{name: e, image: a, livenessProbe: {tcpSocket: {port: 1}}}]\n", "spec.ephemeralContainers[0].livenessProbe: Forbidden"},
		{"a hook", "", "  ephemeralContainers: [{name: e, image: a, lifecycle: {preStop: {sleep: {seconds: 1}}}}]\n", "spec.ephemeralContainers[0].lifecycle: Forbidden"},
		{"resources", "", "  ephemeralContainers: [{name: e, image: a, resources: {limits: {cpu: 1}}}]\n", "spec.ephemeralContainers[0].resources: Forbidden"},
		{"forbidden by the hub's policy", "", "  ephemeralContainers: [{name: e, image: a, securityContext: {privileged: true}}]\n", "spec.ephemeralContainers[0].securityContext.privileged: Forbidden"},
	} {
		_, errs := admission.AdmitEphemeral(pod(c.next), pod(c.old), admission.Settings{})
		text := ""
		if len(errs) > 0 {
			text = errs.ToAggregate().Error()
		}
		if c.want == "" && text != "" || !strings.Contains(text, c.want) {
			t.Errorf("%s: %q, want %q", c.name, text, c.want)
		}
	}
	with := pod("  ephemeralContainers: [{name: e, image: a}]\n")
	if e := with.Spec.EphemeralContainers[0]; e.ImagePullPolicy != corev1.PullAlways || e.TerminationMessagePath == "" {
		t.Errorf("the container lacks defaults: %+v", e)
	}
	if _, errs := admission.Admit(with.DeepCopy(), pod(""), admission.Settings{}); errs == nil ||
		!strings.Contains(errs.ToAggregate().Error(), "pod updates may not change fields other than") {
		t.Errorf("an update without the subresource: %v", errs)
	}
	fresh := with.DeepCopy()
	fresh.ResourceVersion = ""
	if _, errs := admission.Admit(fresh, nil, admission.Settings{}); errs == nil ||
		!strings.Contains(errs.ToAggregate().Error(), "spec.ephemeralContainers: Forbidden: cannot be set on create") {
		t.Errorf("a new pod: %v", errs)
	}
}
