package admission

import (
	"maps"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/policy"
)

func shop(labels ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{}}}
	for _, l := range labels {
		k, v, _ := strings.Cut(l, "=")
		ns.Labels["pod-security.kubernetes.io/"+k] = v
	}
	ns.Status.Phase = corev1.NamespaceActive
	return ns
}

const hardened = "securityContext: {runAsNonRoot: true, runAsUser: 1000, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}"

func TestPodSecurity(t *testing.T) {
	open := normal
	open.Policy = policy.Document{Privileged: true, HostNetwork: true, HostPaths: []string{"/"}}
	restricted := normal
	restricted.PodSecurity = "restricted"
	lax := normal
	lax.PodSecurity = "privileged"
	const privileged = "securityContext: {privileged: true}"
	for _, c := range []struct {
		name      string
		ns        *corev1.Namespace
		s         Settings
		container bool
		lines     string
		want      Verdict
	}{
		{"an ordinary pod in a namespace without labels", shop(), normal, true, "", Verdict{}},
		{"a privileged pod in a baseline namespace, whatever the policy allows", shop("enforce=baseline"), open, true, privileged,
			Verdict{Refused: `violates PodSecurity "baseline:latest": privileged (container "web" must not set securityContext.privileged=true)`}},
		{"a pod on the device's network in a baseline namespace", shop("enforce=baseline"), open, false, "hostNetwork: true",
			Verdict{Refused: `violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`}},
		{"a host path in a baseline namespace", shop("enforce=baseline"), normal, false, "volumes: [{name: v, hostPath: {path: /var/lib/flotilla/volumes/a}}]",
			Verdict{Refused: `violates PodSecurity "baseline:latest": hostPath volumes (volume "v")`}},
		{"a host path that the policy allows in a namespace without labels", shop(), normal, false, "volumes: [{name: v, hostPath: {path: /var/lib/flotilla/volumes/a}}]", Verdict{}},
		{"a host port in a namespace without labels", shop(), normal, true, "ports: [{containerPort: 80, hostPort: 80}]", Verdict{}},
		{"a host port in a baseline namespace", shop("enforce=baseline"), normal, true, "ports: [{containerPort: 80, hostPort: 80}]",
			Verdict{Refused: `violates PodSecurity "baseline:latest": hostPort (container "web" uses hostPort 80)`}},
		{"a privileged pod that the policy allows in a namespace without labels", shop(), open, true, privileged, Verdict{}},
		{"a probe of another machine in a namespace without labels", shop(), normal, true, "livenessProbe: {httpGet: {port: 80, host: 169.254.169.254}}",
			Verdict{Refused: `violates PodSecurity "baseline:latest": probe or lifecycle host (container "web" uses probe or lifecycle host "169.254.169.254")`}},
		{"a probe of another machine in a privileged namespace", shop("enforce=privileged"), normal, true, "livenessProbe: {httpGet: {port: 80, host: 169.254.169.254}}", Verdict{}},
		{"a probe of another machine with an older version of the standard", shop("enforce=baseline", "enforce-version=v1.30"), normal, true, "livenessProbe: {httpGet: {port: 80, host: 169.254.169.254}}", Verdict{}},
		{"an ordinary pod in a restricted namespace", shop("enforce=restricted"), normal, true, "",
			Verdict{Refused: `violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "web" must set securityContext.allowPrivilegeEscalation=false), ` +
				`unrestricted capabilities (container "web" must set securityContext.capabilities.drop=["ALL"]), ` +
				`runAsNonRoot != true (pod or container "web" must set securityContext.runAsNonRoot=true), ` +
				`seccompProfile (pod or container "web" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")`}},
		{"a hardened pod in a restricted namespace", shop("enforce=restricted"), normal, true, hardened, Verdict{}},
		{"an ordinary pod while the default is restricted", shop(), restricted, true, "", Verdict{Refused: "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false"}},
		{"a label overrides the default", shop("enforce=baseline"), restricted, true, "", Verdict{}},
		{"no check while the default is privileged", shop(), lax, true, "livenessProbe: {httpGet: {port: 80, host: 169.254.169.254}}", Verdict{}},
		{"a violation that only warns", shop("warn=restricted", "warn-version=v1.24"), normal, true, "securityContext: {privileged: false}",
			Verdict{Warning: `would violate PodSecurity "restricted:v1.24": allowPrivilegeEscalation != false`}},
		{"the warn level is checked strictly even if no level is enforced", shop("warn=baseline"), normal, true, "ports: [{containerPort: 80, hostPort: 80}]",
			Verdict{Warning: `would violate PodSecurity "baseline:latest": hostPort`}},
		{"a violation of the audit level only", shop("audit=restricted"), normal, true, "", Verdict{Audit: `would violate PodSecurity "restricted:latest": allow`}},
		{"a refusal has no additional warning", shop("enforce=baseline", "warn=restricted"), open, true, privileged, Verdict{Refused: `violates PodSecurity "baseline:latest": privileged`}},
		{"an invalid label means restricted", shop("enforce=strict"), normal, true, "", Verdict{Refused: `violates PodSecurity "restricted:latest": `}},
	} {
		t.Run(c.name, func(t *testing.T) {
			make := aPod
			if c.container {
				make = aContainer
			}
			pod := make(t, c.lines)
			got := PodSecurity(pod, nil, c.ns, c.s)
			for _, pair := range [][2]string{
				{got.Refused, c.want.Refused}, {got.Warning, c.want.Warning}, {got.Audit, c.want.Audit},
			} {
				if (pair[0] == "") != (pair[1] == "") || !strings.HasPrefix(pair[0], pair[1]) {
					t.Errorf("got  %+v\nwant %+v", got, c.want)
				}
			}
			// A workload gets a warning with the reason why its pods would be refused.
			d := sample(t, state.Deployments).(*appsv1.Deployment)
			d.Spec.Template.Spec = pod.Spec
			of := PodSecurity(d, nil, c.ns, c.s)
			_, enforced := c.ns.Labels["pod-security.kubernetes.io/enforce"]
			if of.Refused != "" || c.want.Refused != "" && of.Warning == "" &&
				(!enforced || c.ns.Labels["pod-security.kubernetes.io/enforce"] != "strict") {
				t.Errorf("a Deployment of the pod must only get a warning: %+v", of)
			}
			if why := MayCreate(pod, c.ns, c.s); c.want.Refused != "" && why != got.Refused {
				t.Errorf("MayCreate returns %q, want %q", why, got.Refused)
			}
		})
	}
	pod := aContainer(t, privileged)
	if PodSecurity(pod, pod.DeepCopy(), shop("enforce=baseline"), open).Refused != "" {
		t.Error("an unchanged pod is checked again")
	}
	other := pod.DeepCopy()
	other.Spec.Containers[0].Image = "other:1"
	if PodSecurity(other, pod, shop("enforce=baseline"), open).Refused == "" {
		t.Error("a pod with a new image is not checked again")
	}
	if why := MayCreate(pod, shop(), normal); !strings.Contains(why,
		"spec.containers[0].securityContext.privileged: Forbidden: privileged containers are not allowed") {
		t.Errorf("MayCreate allows a pod that the policy refuses: %q", why)
	}
}

// As in Kubernetes, a workload's template may have an invalid finalizer. A pod with an invalid
// finalizer could not be changed any more, so it is not created.
func TestAWorkloadsPodHasValidFinalizers(t *testing.T) {
	for finalizers, want := range map[string]string{
		"":                                   "",
		"example.org/a orphan":               "",
		"foo":                                `metadata.finalizers[0]: Invalid value: "foo": name is neither a standard finalizer name nor is it fully qualified`,
		"example.org/a example_org/b":        `metadata.finalizers: Invalid value: "example_org/b"`,
		"orphan foregroundDeletion":          "metadata.finalizers: Invalid value",
		"batch.kubernetes.io/job-tracking a": `metadata.finalizers[1]: Invalid value: "a"`,
	} {
		pod := aContainer(t, "")
		pod.Finalizers = strings.Fields(finalizers)
		switch why := MayCreate(pod, shop(), normal); {
		case want == "" && why != "", want != "" && !strings.Contains(why, want):
			t.Errorf("%q: %q, want %q", finalizers, why, want)
		}
	}
}

func TestTheLevelLabelsOfANamespaceMustBeValid(t *testing.T) {
	expect(t, Validate(shop("enforce=strict"), normal),
		`metadata.labels[pod-security.kubernetes.io/enforce]: Invalid value: "strict": must be one of privileged, baseline, restricted`)
	expect(t, Validate(shop("warn-version=1.24"), normal),
		`metadata.labels[pod-security.kubernetes.io/warn-version]: Invalid value: "1.24": must be "latest" or "v1.x"`)
	expect(t, Validate(shop("enforce=restricted", "enforce-version=v1.30", "audit=baseline", "warn=privileged"), normal),
		"")
	old, now := shop("enforce=strict"), shop("enforce=strict", "warn=baseline")
	old.ResourceVersion, now.ResourceVersion = "1", "1"
	expect(t, ValidateUpdate(now, old, normal), "") // an unchanged invalid label may stay
}

func TestANewLevelWarnsAboutViolatingPods(t *testing.T) {
	named := func(name, owner string, lines string) *corev1.Pod {
		p := aContainer(t, lines)
		p.Name = name
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{UID: "u-" + "1", Kind: "ReplicaSet", Name: owner,
				Controller: new(bool)}}
			*p.OwnerReferences[0].Controller = true
		}
		return p
	}
	done := named("done", "", "securityContext: {privileged: true}")
	done.Status.Phase = corev1.PodSucceeded
	pods := slices.Values([]*corev1.Pod{
		named("b", "set", "securityContext: {privileged: true}"), named("a", "set", "securityContext: {privileged: true}"),
		named("c", "", hardened),
		named("port", "", "ports: [{containerPort: 80, hostPort: 80}]"), done,
	})
	want := []string{`existing pods in namespace "shop" violate the new PodSecurity enforce level "baseline:latest"`,
		"a (and 1 other pod): privileged", "port: hostPort"}
	for _, c := range []struct {
		name     string
		old, now *corev1.Namespace
		want     []string
	}{
		{"a stricter label", shop("enforce=privileged"), shop("enforce=baseline"), want},
		{"a first label that is stricter than the default", shop(), shop("enforce=baseline"), want},
		{"the same level", shop("enforce=baseline"), shop("enforce=baseline", "warn=restricted"), nil},
		{"a less strict label", shop("enforce=restricted"), shop("enforce=baseline"), nil},
		{"a removed label", shop("enforce=baseline"), shop(), nil},
		{"the level privileged", shop("enforce=baseline"), shop("enforce=privileged"), nil},
	} {
		if got := LevelWarnings(c.now, c.old, pods, normal); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got := LevelWarnings(shop("enforce=restricted"), shop("enforce=privileged"),
		maps.Keys(map[*corev1.Pod]bool{named("c", "", hardened): true}), normal); got != nil {
		t.Errorf("a hardened pod causes the warnings %q", got)
	}
}
