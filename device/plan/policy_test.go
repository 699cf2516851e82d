package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/policy/policytest"
)

func underPolicy(c policytest.Case, spec corev1.PodSpec) (corev1.Pod, Policy) {
	pod := makePod("b", "wait")
	pod.Spec.Volumes, pod.Spec.SecurityContext = spec.Volumes, spec.SecurityContext
	pod.Spec.HostNetwork, pod.Spec.HostPID = spec.HostNetwork, spec.HostPID
	pod.Spec.InitContainers, pod.Spec.Containers = spec.InitContainers, spec.Containers
	return pod, Policy{Document: c.Policy()}
}

// The hub tests the same table, see package policytest. A forbidden pod does not run: as a new pod,
// after a restart of the agent, and after a change.
func TestThePolicyIsEnforced(t *testing.T) {
	for _, c := range policytest.Table {
		t.Run(c.Name, func(t *testing.T) {
			pod, p := underPolicy(c, c.Spec())
			rejects := func(how string, w *world, field string) {
				t.Helper()
				got := sentences(w.look())
				want := "reject default/b: PolicyForbidden: " + c.Field(field)
				refused := slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, want) })
				if c.Refused == "" {
					refused = slices.ContainsFunc(got,
						func(s string) bool { return strings.Contains(s, "PolicyForbidden") })
				}
				if refused != (c.Refused != "") {
					t.Errorf("%s: steps %q, want %q", how, got, want)
				}
			}
			w := newWorld(pod)
			w.o.Policy = p
			rejects("a new pod", w, "spec.containers[0]")

			if strings.Contains(c.Refused, "WEB") {
				first, _ := underPolicy(c, c.InInit())
				w = newWorld(first)
				w.o.Policy = p
				rejects("an init container", w, "spec.initContainers[0]")
			}

			w = newWorld(pod) // the owner changes the policy while the agent is off
			w.o.Policy.Document = everything
			w.settle(t)
			w.o.Pods, w.o.Policy = nil, p
			rejects("a pod under a changed policy", w, "spec.containers[0]")

			before := makePod("b", "wait")
			before.Spec.Containers[0].Name, before.Spec.Containers[0].Image = "web",
				"registry.example.org/team/before@sha256:"+strings.Repeat("b", 64)
			w = newWorld(before) // the hub changes a running pod
			w.o.Policy = p
			w.settle(t)
			w.d.Pods = []corev1.Pod{pod}
			rejects("a changed pod", w, "spec.containers[0]")
		})
	}
}

var everything = func() (d policytest.Case) {
	d.Document = "{privileged: true, hostNetwork: true, hostPID: true, hostPaths: [/], allowNewPrivileges: true}"
	return d
}().Policy()

func TestAForbiddenPodIsStoppedAndDoesNotStartAgain(t *testing.T) {
	yes := true
	pod := With(makePod("b", "wait"), func(p *corev1.Pod) {
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	})
	w := newWorld(pod, makePod("a", "wait"))
	w.o.Policy.Document = everything
	w.settle(t)
	w.o.Pods, w.o.Policy = nil, DefaultPolicy()
	w.settle(t)
	if got, want := w.states(), []string{"a/c0#0 running", "b/c0#0 exited"}; !slices.Equal(got, want) {
		t.Fatalf("in the end the containers are %q, want %q", got, want)
	}
	w.now = w.now.Add(time.Hour)
	if got := sentences(w.look()); len(got) > 0 {
		t.Errorf("an hour later the steps are %q, want none", got)
	}
}

func TestAnEndedPodIsNotRejected(t *testing.T) {
	yes := true
	pod := With(makePod("b", "exit 0"), func(p *corev1.Pod) {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	})
	w := newWorld(pod)
	w.ends = func(string, *corev1.Pod) (int, bool) { return 0, true }
	w.o.Policy.Document = everything
	w.settle(t)
	w.o.Policy = DefaultPolicy()
	if got := sentences(w.look()); slices.ContainsFunc(got,
		func(s string) bool { return strings.Contains(s, "PolicyForbidden") }) {
		t.Errorf("the policy rejects a pod that has succeeded: steps %q", got)
	}
}

// Engines accept an id or its prefix as an image name. So, with rules for images, the engine gets
// the full name.
func TestTheEngineGetsTheCheckedImageName(t *testing.T) {
	id := strings.Repeat("a", 64)
	for document, cases := range map[string]map[string]string{
		"":                        {"nginx": "nginx", "3f2a1b": "3f2a1b"},
		"registries: [docker.io]": {"nginx": "docker.io/library/nginx:latest", "3f2a1b": "docker.io/library/3f2a1b:latest", "sha256:" + id: "docker.io/library/sha256:" + id, "a/b:1@sha256:" + id: "docker.io/a/b@sha256:" + id},
	} {
		p, err := ParsePolicy([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		for image, want := range cases {
			if got := p.ImageOf(image); got != want {
				t.Errorf("policy %q: the image name for %s is %s, want %s", document, image, got, want)
			}
		}
	}
}

func TestAMirrorIsAskedFirst(t *testing.T) {
	for _, c := range []struct{ rule, policy, image, want string }{
		{"an image of a mirrored registry", "", "nginx:1", "at:1/docker.io/library/nginx:1 nginx:1"},
		{"by its digest", "", "nginx@sha256:" + strings.Repeat("a", 64), "at:1/docker.io/library/nginx@sha256:" +
			strings.Repeat("a", 64) + " nginx@sha256:" + strings.Repeat("a", 64)},
		{"a registry with a port", "", "reg.test:5000/app:1", "at:1/reg.test_5000/app:1 reg.test:5000/app:1"},
		{"a mirrored repository", "", "ghcr.io/acme/app:1", "at:1/ghcr.io/acme/app:1 ghcr.io/acme/app:1"},
		{"a repository beside it", "", "ghcr.io/acme2/app:1", "ghcr.io/acme2/app:1"},
		{"an image of the hub itself", "", "hub/app:1", "at:1/app:1"},
		{"a policy that allows the registry only", "registries: [docker.io/library]", "nginx:1", "docker.io/library/nginx:1"},
		{"a policy that allows the hub, too", "registries: [docker.io/library, docker.io/hub]", "nginx:1",
			"at:1/docker.io/library/nginx:1 docker.io/library/nginx:1"},
	} {
		p, err := ParsePolicy([]byte(c.policy))
		if err != nil {
			t.Fatal(err)
		}
		p.Mirror = "at:1"
		got := strings.Join(p.Sources(c.image, []string{"docker.io", "reg.test:5000", "ghcr.io/acme"}), " ")
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.rule, got, c.want)
		}
		if got := p.Sources(c.image, nil); len(got) != 1 || got[0] != p.ImageOf(c.image) {
			t.Errorf("%s: without rules %s", c.rule, got)
		}
	}
}

func TestAnImageOfTheHubIsPulledFromTheMirror(t *testing.T) {
	for image, want := range map[string]string{
		"hub/app:1.2":                 "127.0.0.1:5443/app:1.2",
		"docker.io/hub/shop/till@x":   "127.0.0.1:5443/shop/till@x",
		"hubble/app:1":                "hubble/app:1",
		"ghcr.io/hub/app:1":           "ghcr.io/hub/app:1",
		"registry.local/hub/hub/hub:": "registry.local/hub/hub/hub:",
	} {
		if got := (Policy{Mirror: "127.0.0.1:5443"}).ImageOf(image); got != want {
			t.Errorf("the image name for %s is %s, want %s", image, got, want)
		}
		if got := (Policy{}).ImageOf(image); got != image {
			t.Errorf("the image name for %s without a mirror is %s, want it unchanged", image, got)
		}
	}
}
