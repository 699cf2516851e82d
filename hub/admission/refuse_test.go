package admission

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"flotilla.dev/hub/state"
)

func TestWhatMayRun(t *testing.T) {
	allowed := func(s Settings) Settings { s.NotReadySeconds, s.UnreachableSeconds = 300, 300; return s }
	for _, c := range []struct {
		name      string
		container bool
		lines     string
		want      string    // refused so by default
		open      *Settings // and allowed by these settings
	}{
		{"privileged", true, "securityContext: {privileged: true}", "spec.containers[0].securityContext.privileged: Forbidden: disallowed by cluster policy: allowed only where the hub runs with --allow-privileged", &Settings{AllowPrivileged: true}},
		{"privilege escalation", true, "securityContext: {allowPrivilegeEscalation: true}", "spec.containers[0].securityContext.allowPrivilegeEscalation: Forbidden", &Settings{AllowPrivileged: true}},
		{"the host's network", false, "hostNetwork: true", "spec.hostNetwork: Forbidden: pods may not use the device's network unless the hub runs with --allow-host-network", &Settings{AllowHostNetwork: true}},
		{"the host's processes", false, "hostPID: true", "spec.hostPID: Forbidden: pods may not see the device's processes unless the hub runs with --allow-host-pid", &Settings{AllowHostPID: true}},
		{"the host's IPC, which no setting allows", false, "hostIPC: true", "spec.hostIPC: Forbidden: is not supported", nil},
		{"a capability", true, "securityContext: {capabilities: {add: [CAP_SYS_ADMIN]}}", "spec.containers[0].securityContext.capabilities.add[0]: Forbidden: capability CAP_SYS_ADMIN is not allowed unless the hub runs with --allowed-capabilities=SYS_ADMIN", &Settings{AllowedCapabilities: []string{"SYS_ADMIN"}}},
		{"every capability", true, "securityContext: {capabilities: {add: [all]}}", "spec.containers[0].securityContext.capabilities.add[0]: Forbidden", &Settings{AllowedCapabilities: []string{"ALL"}}},
		{"one of the engine's own capabilities is free", true, "securityContext: {capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}}", "", nil},
		{"the root of the device", false, "volumes: [{name: v, hostPath: {path: /}}]", `spec.volumes[0].hostPath.path: Forbidden: "/" is outside /var/lib/flotilla/volumes: use a path inside, or run the hub with --host-path-prefixes`, &Settings{HostPathPrefixes: []string{"/"}}},
		{"the engine's socket", false, "volumes: [{name: v, hostPath: {path: /var/run/docker.sock}}]", "spec.volumes[0].hostPath.path: Forbidden", &Settings{HostPathPrefixes: []string{"/var/run/docker.sock"}}},
		{"/proc", false, "volumes: [{name: v, hostPath: {path: /proc}}]", "spec.volumes[0].hostPath.path: Forbidden", nil},
		{"a name that only begins like the allowed one", false, "volumes: [{name: v, hostPath: {path: /var/lib/flotilla/volumes2}}]", "spec.volumes[0].hostPath.path: Forbidden", nil},
		{"slashes that hide nothing", false, "volumes: [{name: v, hostPath: {path: //var//lib/flotilla/./volumes/a/}}]", "", nil},
		{"a relative path", false, "volumes: [{name: v, hostPath: {path: var/lib/flotilla/volumes/a}}]", "spec.volumes[0].hostPath.path: Forbidden", nil},
		{"the allowed place itself", false, "volumes: [{name: v, hostPath: {path: /var/lib/flotilla/volumes}}]", "", nil},
		{"nothing is allowed by an empty list", false, "volumes: []", "", &Settings{HostPathPrefixes: []string{}}},
		{"a sysctl that acts on others", false, "securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", "spec.securityContext.sysctls[0].name: Forbidden: is not one of the safe sysctls", &Settings{AllowPrivileged: true}},
		{"a sysctl that is no name", false, "securityContext: {sysctls: [{name: 'a b', value: '1'}]}", "spec.securityContext.sysctls[0].name: Invalid value", nil},
		{"another scheduler", false, "schedulerName: mine", "spec.schedulerName: Forbidden: is not supported", nil},
		{"no seccomp profile", true, "securityContext: {seccompProfile: {type: Unconfined}}", "spec.containers[0].securityContext.seccompProfile.type: Forbidden: is not supported: use RuntimeDefault", nil},
		{"an open /proc", true, "securityContext: {procMount: Unmasked}", "spec.containers[0].securityContext.procMount: Forbidden", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			make := aPod
			if c.container {
				make = aContainer
			}
			expect(t, Validate(make(t, c.lines), normal), c.want)
			if c.open != nil {
				expect(t, Validate(make(t, c.lines), allowed(*c.open)), "")
			}
			if c.container { // the choke point is one: init containers and templates too
				p := make(t, c.lines)
				p.Spec.InitContainers = []corev1.Container{*p.Spec.Containers[0].DeepCopy()}
				p.Spec.InitContainers[0].Name = "prepare"
				p.Spec.Containers[0].SecurityContext = nil
				expect(t, Validate(p, normal), strings.Replace(c.want, "spec.containers", "spec.initContainers", 1))
			}
			d := sample(t, state.Deployments).(*appsv1.Deployment)
			d.Spec.Template.Spec = make(t, c.lines).Spec
			if c.want == "" {
				expect(t, Validate(d, normal), "")
			} else {
				expect(t, Validate(d, normal), "spec.template."+c.want)
			}
		})
	}
}

func TestAnEmptyListOfPrefixesAllowsNoHostPath(t *testing.T) {
	s := normal
	s.HostPathPrefixes = []string{}
	if s.AllowsHostPath(VolumesRoot) {
		t.Error("an empty list allows the default")
	}
}

func TestWhatDevicesDoNotDoIsRefusedByName(t *testing.T) {
	for _, c := range []struct {
		name      string
		container bool
		lines     string
		want      string
	}{
		{"hooks", true, "lifecycle: {preStop: {exec: {command: [x]}}}", "spec.containers[0].lifecycle: Forbidden: is not supported: devices run no hooks"},
		{"grpc probes", true, "livenessProbe: {grpc: {port: 1}}", "spec.containers[0].livenessProbe.grpc: Forbidden: is not supported: use exec, httpGet or tcpSocket"},
		{"block volumes", true, "volumeDevices: [{name: data, devicePath: /dev/x}]", "spec.containers[0].volumeDevices: Forbidden: is not supported"},
		{"mount propagation", true, "volumeMounts: [{name: data, mountPath: /d, mountPropagation: Bidirectional}]", "spec.containers[0].volumeMounts[0].mountPropagation: Forbidden: is not supported"},
		{"huge pages", true, "resources: {requests: {hugepages-2Mi: 2Mi, cpu: 1}}", "spec.containers[0].resources.requests[hugepages-2Mi]: Forbidden: is not supported"},
		{"claims", true, "resources: {claims: [{name: gpu}]}", "spec.containers[0].resources.claims: Forbidden: is not supported"},
		{"one process namespace", false, "shareProcessNamespace: true", "spec.shareProcessNamespace: Forbidden: is not supported"},
		{"runtime classes", false, "runtimeClassName: kata", "spec.runtimeClassName: Forbidden: is not supported"},
		{"user namespaces", false, "hostUsers: false", "spec.hostUsers: Forbidden: is not supported"},
		{"gates", false, "schedulingGates: [{name: a}]", "spec.schedulingGates: Forbidden: is not supported"},
		{"readiness gates", false, "readinessGates: [{conditionType: a}]", "spec.readinessGates: Forbidden: is not supported"},
		{"subdomains", false, "subdomain: a", "spec.subdomain: Forbidden: is not supported: there is no cluster DNS"},
		{"Windows", false, "os: {name: windows}", "spec.os.name: Unsupported value"},
		{"claimed volumes", false, "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", "spec.volumes[0].persistentVolumeClaim: Forbidden: is not supported: there are no persistent volume claims"},
		{"network volumes", false, "volumes: [{name: v, nfs: {server: s, path: /}}]", "spec.volumes[0].nfs: Forbidden: is not supported: use emptyDir, hostPath, configMap, secret, downwardAPI or projected"},
		{"service account tokens", false, "volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]", "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: is not supported"},
		{"SELinux", false, "securityContext: {seLinuxOptions: {level: s0}}", "spec.securityContext.seLinuxOptions: Forbidden: is not supported"},
		{"resources of a pod", false, "resources: {limits: {cpu: 1}}", "spec.resources: Forbidden: is not supported: devices limit containers, not pods"},
		{"what asks for nothing is no wish", false, "shareProcessNamespace: false\nhostUsers: true\nsetHostnameAsFQDN: false\nautomountServiceAccountToken: false\nreadinessGates: []", ""},
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

func TestWhatHasNoEffectIsWarnedOf(t *testing.T) {
	p := aContainer(t, "stdin: true\nstdinOnce: true\nterminationMessagePath: /x\nterminationMessagePolicy: FallbackToLogsOnError")
	p.Spec.ServiceAccountName = "default"
	p.Spec.Volumes[0].EmptyDir.SizeLimit = p.Spec.Containers[0].Resources.Limits.Memory()
	expect(t, Validate(p, normal), "")
	want := []string{
		"spec.volumes[0].emptyDir.sizeLimit has no effect: the size of the volume is not limited",
		"spec.serviceAccountName has no effect: there are no service accounts, and no token is mounted",
		"spec.containers[0].terminationMessagePath has no effect: devices read no termination message",
		"spec.containers[0].terminationMessagePolicy has no effect: devices read no termination message: use kubectl logs --previous",
	}
	if got := Warnings(p); !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	d := sample(t, state.Deployments).(*appsv1.Deployment)
	d.Spec.Template.Spec = p.Spec
	if got := Warnings(d); len(got) != len(want) || !strings.HasPrefix(got[0], "spec.template.spec.volumes[0]") {
		t.Errorf("got %q", got)
	}
}

// A field that a newer Kubernetes adds to a type must be thought about: is it
// supported? Types of pods refuse it until then, these are checked here.
func TestNoFieldOfAWorkloadIsNew(t *testing.T) {
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
			t.Errorf("%s has the fields %s, known are %s", typ, got, c.known)
		}
	}
}

// The allow-list must name fields that exist, or it allows nothing by mistake.
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
	walk(reflect.TypeOf(sample(t, state.Leases)))
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
			t.Errorf("%s is no type of a pod, a node or a lease", name)
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
			t.Errorf("there is no field %s", name)
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
