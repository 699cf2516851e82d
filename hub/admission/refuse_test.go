package admission

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/policy/policytest"
)

// Devices use the same table of cases.
func TestOnlyAllowedPodsRun(t *testing.T) {
	for _, c := range policytest.Table {
		t.Run(c.Name, func(t *testing.T) {
			s := normal
			s.Policy = c.Policy()
			want := func(container, prefix string) string {
				if c.Refused == "" {
					return ""
				}
				return prefix + strings.Replace(c.Field(container), ": ", ": Forbidden: ", 1)
			}
			pod := func(spec corev1.PodSpec) *corev1.Pod {
				p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "kiosk", Namespace: "shop"}, Spec: spec}
				Default(p, s)
				return p
			}
			expectFirst(t, Validate(pod(c.Spec()), s), want("spec.containers[0]", ""))
			if strings.Contains(c.Refused, "WEB") { // the same rule applies to init containers
				expectFirst(t, Validate(pod(c.InInit()), s), want("spec.initContainers[0]", ""))
			}
			d := sample(t, state.Deployments).(*appsv1.Deployment)
			d.Spec.Template.Spec = pod(c.Spec()).Spec
			expectFirst(t, Validate(d, s), strings.Replace(want("spec.containers[0]", ""), "spec.", "spec.template.spec.", 1))
			ds := sample(t, state.DaemonSets).(*appsv1.DaemonSet)
			ds.Spec.Template.Spec = pod(c.Spec()).Spec
			expectFirst(t, Validate(ds, s), strings.Replace(want("spec.containers[0]", ""), "spec.", "spec.template.spec.", 1))
			if c.OfImage() { // a pod may change its image, but not to a refused one
				old := pod(c.Spec())
				old.Spec.Containers[0].Image = "registry.example.org/team/before@sha256:" + strings.Repeat("b", 64)
				now := pod(c.Spec())
				now.ResourceVersion, old.ResourceVersion = "1", "1"
				expectFirst(t, ValidateUpdate(now, old, s), want("spec.containers[0]", ""))
			}
		})
	}
}

// expectFirst fails unless the first error has the prefix want, or errs is empty if want is "".
func expectFirst(t *testing.T, errs field.ErrorList, want string) {
	t.Helper()
	if i := slices.IndexFunc(messages(errs), func(m string) bool { return strings.HasPrefix(m, want) }); i >= 0 {
		errs = errs[i : i+1]
	}
	expect(t, errs, want)
}

func TestARefusalSaysHowTheHubWouldAllowIt(t *testing.T) {
	for lines, want := range map[string]string{
		"hostNetwork: true":                                                   "spec.hostNetwork: Forbidden: pods may not use the device's network: allowed only where the hub runs with --allow-host-network, or a --policy with `hostNetwork: true`",
		"volumes: [{name: v, hostPath: {path: /srv}}]":                        "spec.volumes[0].hostPath.path: Forbidden: \"/srv\" is outside /var/lib/flotilla/volumes: allowed only where the hub runs with --host-path-prefixes, or a --policy with `hostPaths: [/srv]`",
		"securityContext: {seccompProfile: {type: Unconfined}}":               "spec.securityContext.seccompProfile.type: Forbidden: is not supported: use RuntimeDefault",
		"securityContext: {sysctls: [{name: 'a b', value: '1'}]}":             "spec.securityContext.sysctls[0].name: Invalid value",
		"schedulerName: mine":                                                 "spec.schedulerName: Forbidden: is not supported",
		"shareProcessNamespace: true\nhostNetwork: true":                      "spec.shareProcessNamespace: Forbidden: is not supported together with hostNetwork",
		"hostIPC: true":                                                       "spec.hostIPC: Forbidden: is not supported",
		"ephemeralContainers: [{name: e, image: e}]":                          "spec.ephemeralContainers: Forbidden: cannot be set on create",
		"volumes: [{name: v, hostPath: {path: /var/lib/flotilla/volumes/a}}]": "",
	} {
		expectFirst(t, Validate(aPod(t, lines), normal), want)
	}
}

func TestUnsupportedFieldsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		name      string
		container bool
		lines     string
		want      string
	}{
		{"a hook that Kubernetes ignores", true, "lifecycle: {preStop: {tcpSocket: {port: 1}}}", "spec.containers[0].lifecycle.preStop.tcpSocket: Forbidden: is not supported: Kubernetes ignores it: use exec, httpGet or sleep"},
		{"a working directory below /proc", true, "workingDir: /proc/self/fd/8", "spec.containers[0].workingDir: Invalid value: \"/proc/self/fd/8\": must not be /proc or below it"},
		{"a working directory below /proc with dots", true, "workingDir: /x/..//proc/../proc/./self/fd/8", "spec.containers[0].workingDir: Invalid value: \"/x/..//proc/../proc/./self/fd/8\": must not be /proc or below it"},
		{"a relative working directory that leads to /proc", true, "workingDir: ../proc/self", "spec.containers[0].workingDir: Invalid value: \"../proc/self\": must not be /proc or below it"},
		{"a working directory that only begins with /proc", true, "workingDir: /processes", ""},
		{"a relative message path", true, "terminationMessagePath: tmp", "spec.containers[0].terminationMessagePath: Invalid value: \"tmp\": must be an absolute path"},
		{"resolver options", false, "dnsConfig: {options: [{name: ndots, value: '2'}, {name: rotate}]}", ""},
		{"a resolver option with a space", false, "dnsConfig: {options: [{name: ndots, value: '2 rotate'}]}", "spec.dnsConfig.options[0].value: Invalid value: \"2 rotate\": must not contain spaces"},
		{"stop signals", true, "lifecycle: {stopSignal: SIGUSR1}", "spec.containers[0].lifecycle.stopSignal: Forbidden: is not supported: write STOPSIGNAL into the image"},
		{"hooks that devices run", true, "lifecycle: {preStop: {exec: {command: [x]}}, postStart: {httpGet: {port: 80}}}", ""},
		{"a hook that sleeps", true, "lifecycle: {preStop: {sleep: {seconds: 30}}}", ""},
		{"a hook that sleeps longer than the grace period", true, "lifecycle: {preStop: {sleep: {seconds: 31}}}", "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)"},
		{"a hook without a handler", true, "lifecycle: {postStart: {}}", "spec.containers[0].lifecycle.postStart: Required value: must specify a handler type"},
		{"a hook with two handlers", true, "lifecycle: {postStart: {exec: {command: [x]}, sleep: {seconds: 1}}}", "spec.containers[0].lifecycle.postStart.sleep: Forbidden: may not specify more than 1 handler type"},
		{"grpc probes are run", true, "livenessProbe: {grpc: {port: 1}}", ""},
		{"a grpc probe without a port", true, "livenessProbe: {grpc: {port: 0}}", "spec.containers[0].livenessProbe.grpc.port: Invalid value: 0: must be between 1 and 65535"},
		{"block volumes", true, "volumeDevices: [{name: data, devicePath: /dev/x}]", "spec.containers[0].volumeDevices: Forbidden: is not supported"},
		{"mount propagation", true, "volumeMounts: [{name: data, mountPath: /d, mountPropagation: Bidirectional}]", "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: is not supported"},
		{"huge pages", true, "resources: {requests: {hugepages-2Mi: 2Mi, cpu: 1}}", "spec.containers[0].resources.requests[hugepages-2Mi]: Forbidden: is not supported"},
		{"claims", true, "resources: {claims: [{name: gpu}]}", "spec.containers[0].resources.claims: Forbidden: is not supported"},
		{"a shared process namespace", false, "shareProcessNamespace: true", ""},
		{"an invalid name of a runtime class", false, "runtimeClassName: Kata!", "spec.runtimeClassName: Invalid value"},
		{"overhead of an extended resource", false, "overhead: {example.com/gpu: 1}", "spec.overhead[example.com/gpu]: Forbidden"},
		{"a runtime class", false, "runtimeClassName: kata", ""},
		{"user namespaces", false, "hostUsers: false", "spec.hostUsers: Forbidden: is not supported"},
		{"a subdomain is only a name", false, "subdomain: a", ""},
		{"an invalid subdomain", false, "subdomain: a.b", "spec.subdomain: Invalid value"},
		{"Windows", false, "os: {name: windows}", "spec.os.name: Unsupported value"},
		{"claimed volumes", false, "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", ""},
		{"a claim volume without a claim's name", false, "volumes: [{name: v, persistentVolumeClaim: {}}]", "spec.volumes[0].persistentVolumeClaim.claimName: Required value"},
		{"ephemeral volumes", false, "volumes: [{name: v, ephemeral: {}}]", "spec.volumes[0].ephemeral: Forbidden: is not supported"},
		{"network volumes", false, "volumes: [{name: v, nfs: {server: s, path: /}}]", "spec.volumes[0].nfs: Forbidden: is not supported: use emptyDir, hostPath, persistentVolumeClaim, image, configMap, secret, downwardAPI or projected"},
		{"service account tokens", false, "volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]", "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: is not supported"},
		{"resources of a whole pod", false, "resources: {limits: {cpu: 1}}", "spec.resources: Forbidden: is not supported: devices limit containers, not pods"},
		{"values equal to the default", false, "shareProcessNamespace: false\nhostUsers: true\nsetHostnameAsFQDN: false\nautomountServiceAccountToken: false\nreadinessGates: []", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			make := aPod
			if c.container {
				make = aContainer
			}
			expect(t, Validate(make(t, c.lines), normal), c.want)
		})
	}
	n := sample(t, state.Nodes).(*corev1.Node)
	n.Spec.PodPreemptionPolicy = new(corev1.NodePodPreemptionPolicy)
	expect(t, Validate(n, normal), "spec.podPreemptionPolicy: Forbidden: is not supported")
}

func TestIgnoredFieldsCauseAWarning(t *testing.T) {
	p := aContainer(t, "stdin: true\nstdinOnce: true")
	p.Spec.ServiceAccountName = "robot"
	p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}, {}}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0"}}
	p.Spec.Volumes[0].EmptyDir.SizeLimit = p.Spec.Containers[0].Resources.Limits.Memory()
	expect(t, Validate(p, normal), "")
	want := []string{
		"spec.containers[0].securityContext.seLinuxOptions has no effect: devices set no SELinux labels, like Kubernetes on a node without SELinux",
		"spec.serviceAccountName has no effect: there is no service account but default, and no token is mounted",
		"spec.securityContext.seLinuxOptions has no effect: devices set no SELinux labels, like Kubernetes on a node without SELinux",
		"spec.imagePullSecrets[1] has no effect: the secret's name is empty",
	}
	if got := Warnings(p); !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	d := sample(t, state.Deployments).(*appsv1.Deployment)
	d.Spec.Template.Spec = p.Spec
	if got := Warnings(d); len(got) != len(want) || !strings.HasPrefix(got[0], "spec.template.spec.containers[0]") {
		t.Errorf("the warnings about a workload are %q, want %d about spec.template.spec", got, len(want))
	}
}

// For a field that a newer Kubernetes adds, somebody must decide whether it is supported. In a
// pod's types such a field is refused; this test finds it in all other types.
func TestEveryFieldOfAWorkloadIsKnown(t *testing.T) {
	for _, c := range []struct {
		of    any
		known string
	}{
		{appsv1.DeploymentSpec{}, "replicas selector template strategy minReadySeconds revisionHistoryLimit paused progressDeadlineSeconds"},
		{appsv1.DeploymentStrategy{}, "type rollingUpdate"},
		{appsv1.ReplicaSetSpec{}, "replicas minReadySeconds selector template"},
		{appsv1.DaemonSetSpec{}, "selector template updateStrategy minReadySeconds revisionHistoryLimit"},
		{appsv1.DaemonSetUpdateStrategy{}, "type rollingUpdate"},
		{policyv1.PodDisruptionBudgetSpec{}, "minAvailable selector maxUnavailable unhealthyPodEvictionPolicy"},
		{corev1.NamespaceSpec{}, "finalizers"},
	} {
		typ := reflect.TypeOf(c.of)
		var have []string
		for i := range typ.NumField() {
			name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
			have = append(have, name)
		}
		if got := strings.Join(have, " "); got != c.known {
			t.Errorf("%s has the fields %s, want %s: decide about the new ones", typ, got, c.known)
		}
	}
}

func TestTheAllowListNamesRealFields(t *testing.T) {
	types := map[string]reflect.Type{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || !strings.HasPrefix(typ.PkgPath(), k8sAPI) || types[typ.Name()] != nil {
			return
		}
		types[typ.Name()] = typ
		for i := range typ.NumField() {
			walk(typ.Field(i).Type)
		}
	}
	walk(reflect.TypeOf(corev1.PodSpec{}))
	walk(reflect.TypeOf(corev1.NodeSpec{}))
	for _, k := range []state.Kind{state.Leases, state.Claims, state.Volumes} {
		walk(reflect.TypeOf(sample(t, k)))
	}
	var fields func(reflect.Type) []string
	fields = func(typ reflect.Type) (out []string) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" {
				out = append(out, fields(f.Type)...)
			} else {
				out = append(out, name)
			}
		}
		return out
	}
	for name, list := range supported {
		if types[name] == nil {
			t.Errorf("%s is not a type of a pod, a node, a lease, a claim or a volume", name)
			continue
		}
		have := fields(types[name])
		for _, f := range strings.Fields(list) {
			if f = strings.TrimPrefix(f, "~"); f != "*" && !slices.Contains(have, f) {
				t.Errorf("%s has no field %s", name, f)
			}
		}
	}
	for name := range why {
		owner, f, _ := strings.Cut(name, ".")
		if types[owner] == nil || !slices.Contains(fields(types[owner]), f) {
			t.Errorf("why has the unknown field %s", name)
		}
	}
	for name, list := range supported {
		for _, f := range strings.Fields(list) {
			if f, ignored := strings.CutPrefix(f, "~"); ignored && why[name+"."+f] == "" {
				t.Errorf("the warning about %s.%s gives no reason", name, f)
			}
		}
	}
}

// The response is short and readable, however many errors there are and however long the values
// are.
func TestAnErrorResponseIsShort(t *testing.T) {
	r := &fleet.FirmwareRollout{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	r.Spec.Profile, r.Spec.Canary, r.Spec.Selector = strings.Repeat("A", 9000), strings.Repeat("é", 9000),
		&metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	r.Spec.Window = &fleet.FirmwareWindow{Days: slices.Repeat([]string{"Noday"}, 500), From: "1", To: "2"}
	_, errs := Admit(r, nil, Settings{})
	text := errs.ToAggregate().Error()
	if len(text) > 12_000 || !utf8.ValidString(text) || !strings.Contains(text, "more mistakes") ||
		!strings.Contains(text, "spec.profile") {
		t.Errorf("the errors have %d bytes, want at most 12,000 with spec.profile and a count: %.2000s", len(text), text)
	}
}
