package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/wire"
)

func testSources() sources {
	p := makePod("web", "wait")
	p.Labels, p.Annotations = map[string]string{"app": "web", "tier": "front"}, map[string]string{"note": `a "b"`}
	w := newWorld()
	s := sourcesOf(w.d, &p, w.o.Node, "10.0.0.9")
	s.configMaps = []corev1.ConfigMap{{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"}, Data: map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"logo": {0, 1}}}}
	s.secrets = []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Name: "sec", Namespace: "default"}, Data: map[string][]byte{"k": []byte("s3")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "other"}}}
	return s
}

func TestEnvironment(t *testing.T) {
	yes := true
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	for _, c := range []struct {
		name string
		env  []corev1.EnvVar
		all  []corev1.EnvFromSource
		want []string
		err  string
	}{
		{name: "later variables use earlier ones, unknown ones stay", env: []corev1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: "$(A)/$(NONE)/$$(A)"}}, want: []string{"A=x", "B=x/$(NONE)/$(A)"}},
		{name: "the last of one name counts, at the place of the first", env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B"}, {Name: "A", Value: "2"}}, want: []string{"A=2", "B="}},
		{name: "a whole config map with a prefix", all: []corev1.EnvFromSource{{Prefix: "C_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("conf")}}}, want: []string{"C_a=1", "C_b=2"}},
		{name: "env overrides envFrom", all: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("conf")}}}, env: []corev1.EnvVar{{Name: "a", Value: "9"}}, want: []string{"a=9", "b=2"}},
		{name: "a key of a secret", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("sec"), Key: "k"}}}}, want: []string{"K=s3"}},
		{name: "a key that is not there", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("conf"), Key: "z"}}}}, err: "couldn't find key z in ConfigMap default/conf"},
		{name: "an optional key that is not there", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("conf"), Key: "z", Optional: &yes}}}}, want: []string{}},
		{name: "what is no text is a file, and no variable", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("conf"), Key: "logo"}}}}, err: "couldn't find key logo in ConfigMap default/conf"},
		{name: "a secret of another namespace is not found", all: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("conf")}}}, err: `secret "conf" not found`},
		{name: "facts about the pod", env: []corev1.EnvVar{{Name: "N", ValueFrom: field("metadata.name")}, {Name: "IP", ValueFrom: field("status.podIP")}, {Name: "H", ValueFrom: field("status.hostIP")},
			{Name: "L", ValueFrom: field("metadata.labels['tier']")}, {Name: "NODE", ValueFrom: field("spec.nodeName")}}, want: []string{"N=web", "IP=10.0.0.9", "H=192.0.2.7", "L=front", "NODE=pi-1"}},
		{name: "a field that nobody knows", env: []corev1.EnvVar{{Name: "N", ValueFrom: field("spec.colour")}}, err: "spec.colour"},
		{name: "its own limits, rounded up", env: []corev1.EnvVar{
			{Name: "M", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "C", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}}}, want: []string{"M=64", "C=4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			box := corev1.Container{Name: "c", Env: c.env, EnvFrom: c.all, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}}}
			got, _, err := testSources().environment(&box)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("environment %q (%v), want %q", got, err, c.want)
			}
		})
	}
}

// As the kubelet has it, also where a limit is 0.
func TestALimitThatIsNotSetIsWhatTheDeviceHas(t *testing.T) {
	s := testSources()
	s.milliCPU, s.memoryBytes = 4000, 2<<30
	s.node.Allocatable = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")}
	none := &corev1.Container{}
	zero := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("0"), corev1.ResourceMemory: resource.MustParse("0"), corev1.ResourceEphemeralStorage: resource.MustParse("0")}}}
	set := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}}}
	for name, want := range map[string][3]string{ // without a limit, with one, and as a request
		"cpu": {"4", "2", "0"}, "memory": {"2147483648", "67108864", "0"}, "ephemeral-storage": {"10737418240", "1073741824", "0"},
	} {
		get := func(c *corev1.Container, of string) string {
			v, err := s.resource(c, &corev1.ResourceFieldSelector{Resource: of + "." + name})
			if err != nil {
				t.Error(err)
			}
			return v
		}
		if got := [3]string{get(none, "limits"), get(set, "limits"), get(none, "requests")}; got != want || get(zero, "limits") != want[0] {
			t.Errorf("%s: %q and with a limit of 0 %s, want %q", name, got, get(zero, "limits"), want)
		}
	}
}

// What no program can be given is not worked out either: a pod of a few kilobytes can ask for
// terabytes.
func TestVariablesThatNameEachOtherHaveAnEnd(t *testing.T) {
	times := func(name string, n int) string { return strings.Repeat("$("+name+")", n) }
	tower := []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 1000)}, {Name: "B", Value: times("A", 100)}, {Name: "C", Value: times("B", 100)}, {Name: "D", Value: times("C", 100)}}
	wide := tower[:2:2]
	for i := range 40 {
		wide = append(wide, corev1.EnvVar{Name: fmt.Sprint("C", i), Value: times("B", 1)})
	}
	args := slices.Repeat([]string{times("B", 1)}, 40)
	for what, c := range map[string]*corev1.Container{
		"one after the other":   {Env: tower},
		"one beside the other":  {Env: wide},
		"arguments":             {Env: tower[:2], Args: args},
		"the program":           {Env: tower[:2], Command: args},
		"one argument":          {Env: tower[:2], Args: []string{times("B", 10)}},
		"a config map's entry":  {EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "long"}}}}},
		"one that no one needs": {Env: append(slices.Clone(tower), corev1.EnvVar{Name: "E"})},
	} {
		src := testSources()
		src.configMaps = append(src.configMaps, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "long", Namespace: "default"}, Data: map[string]string{"a": strings.Repeat("x", 200<<10)}})
		before := allocated()
		_, err := containerSpec(Step{Spec: c, Pod: src.pod}, src, Policy{})
		if spent := allocated() - before; !errors.Is(err, errTooLong) || spent > 16<<20 {
			t.Errorf("%s: %v, %d MiB", what, err, spent>>20)
		}
	}
	if sub := expand(times("D", 100), map[string]string{"D": strings.Repeat("y", 100<<10)}); len(sub) > 256<<10 {
		t.Errorf("a subPathExpr has %d bytes", len(sub))
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// A label that the agent reads is the agent's, whatever the image has.
func TestAnImageSaysNothingForTheAgent(t *testing.T) {
	l := labels(Step{Pod: testSources().pod}, Facts{Name: "pi-1"})
	for _, key := range []string{LabelAgent, LabelStateDir, LabelPodUID, LabelPodName, LabelNamespace, LabelContainer, LabelKind, LabelRestarts,
		LabelBoot, LabelGrace, LabelPodStart, LabelPodUptime, LabelSpecHash, LabelDevices, LabelShares} {
		if _, set := l[key]; !set {
			t.Errorf("%s is left to the image", key)
		}
	}
}

// Files of config maps change all at once, and only when they differ.
func TestVolumeFiles(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	write := func(files map[string]file) string {
		t.Helper()
		if err := writeFiles(root, files, -1); err != nil {
			t.Fatal(err)
		}
		now, err := os.Readlink(filepath.Join(dir, dataLink))
		if err != nil {
			t.Fatal(err)
		}
		return now
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "none"
		}
		return string(b)
	}
	one := write(map[string]file{"a": {[]byte("1"), 0o644}, "sub/b": {[]byte("2"), 0o400}})
	if read("a") != "1" || read("sub/b") != "2" {
		t.Fatalf("a=%s sub/b=%s", read("a"), read("sub/b"))
	}
	if again := write(map[string]file{"a": {[]byte("1"), 0o644}, "sub/b": {[]byte("2"), 0o400}}); again != one {
		t.Error("the same files were written again")
	}
	write(map[string]file{"a": {[]byte("new"), 0o644}, "c": {[]byte("3"), 0o644}})
	if read("a") != "new" || read("sub/b") != "none" || read("c") != "3" {
		t.Errorf("a=%s sub/b=%s c=%s", read("a"), read("sub/b"), read("c"))
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 { // a, c, ..data, and what it leads to
		t.Errorf("the directory holds %v (%v)", entries, err)
	}
	// An agent that was killed between showing files and naming them.
	for _, lost := range []string{"c", "a"} {
		if err := os.Remove(filepath.Join(dir, lost)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "..files-old"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(map[string]file{"a": {[]byte("new"), 0o644}, "c": {[]byte("3"), 0o644}})
	if entries, _ := os.ReadDir(dir); read("a") != "new" || read("c") != "3" || len(entries) != 4 {
		t.Errorf("after a kill a=%s c=%s, and the directory holds %v", read("a"), read("c"), entries)
	}
	for _, bad := range []string{"../x", "/etc/passwd", "..data", "a/../../b", ".."} {
		if err := addFile(map[string]file{}, bad, nil, 0o644); err == nil {
			t.Errorf("the path %q is taken", bad)
		}
	}
}

// The others are not concerned: see package wire.
func TestWhatCannotBeReadIsAnErrorForThoseWhoUseIt(t *testing.T) {
	optional := true
	broken := metav1.ObjectMeta{Name: "s", Namespace: "default", Annotations: map[string]string{wire.Unreadable: "data is hushhush"}}
	for name, c := range map[string]struct {
		env    corev1.EnvVarSource
		volume corev1.VolumeSource
	}{
		"a secret": {corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k", Optional: &optional}},
			corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", Optional: &optional}}},
		"a config map": {corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "k", Optional: &optional}},
			corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Optional: &optional}}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := makePod("p", "wait")
			pod.Namespace = "default"
			src := sources{pod: &pod, secrets: []corev1.Secret{{ObjectMeta: broken}}, configMaps: []corev1.ConfigMap{{ObjectMeta: broken}}}
			container := corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "X", ValueFrom: &c.env}}}
			_, _, err := src.environment(&container)
			_, err2 := src.files(&corev1.Volume{Name: "v", VolumeSource: c.volume})
			for _, err := range []error{err, err2} {
				if err == nil || !strings.Contains(err.Error(), "cannot read") || name == "a secret" && strings.Contains(err.Error(), "hushhush") {
					t.Errorf("it is used: %v", err)
				}
			}
		})
	}
}

// A container that asks for a path that it cannot have waits as it does at a kubelet,
// whose volumes are mounted by then.
func TestABadSubPathIsTheContainersFault(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for i, path := range []string{"/tmp", "..", "a/../../b"} {
			p := makePod(fmt.Sprintf("bad%d", i), "wait")
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			c := &p.Spec.Containers[0]
			c.Env = []corev1.EnvVar{{Name: "WHERE", Value: path}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPathExpr: "$(WHERE)"}}
			d.desire(int64(i+1), p)
			time.Sleep(time.Second)
			st := d.wantPhase(p.Name, corev1.PodPending, "")
			if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerConfigError" || !strings.Contains(w.Message, "subPath") {
				t.Errorf("with the subPath %q it waits with %+v", path, w)
			}
		}
	})
}

// Who looks for a key that is missing is told whose key, not where this device keeps its files.
func TestASubPathOfAKeyThatIsMissingNamesTheObjectAndTheKey(t *testing.T) {
	items := []corev1.KeyToPath{{Key: "there", Path: "there"}}
	secret, config := corev1.LocalObjectReference{Name: "web-tls"}, corev1.LocalObjectReference{Name: "web-conf"}
	for name, c := range map[string]struct {
		volume corev1.VolumeSource
		want   []string
	}{
		"a secret":     {corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret.Name}}, []string{`secret "web-tls"`}},
		"a config map": {corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: config, Items: items}}, []string{`configmap "web-conf"`}},
		"both": {corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{Secret: &corev1.SecretProjection{LocalObjectReference: secret}}, {ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: config}},
		}}}, []string{`secret "web-tls"`, `configmap "web-conf"`}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := makePod("web", "wait")
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: c.volume}}
				p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPath: ".key"}}
				meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
				made(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "hub-1", Pods: []corev1.Pod{p},
					Secrets:    []corev1.Secret{{ObjectMeta: meta("web-tls"), Data: map[string][]byte{"there": nil}}},
					ConfigMaps: []corev1.ConfigMap{{ObjectMeta: meta("web-conf"), Data: map[string]string{"there": ""}}}}))
				time.Sleep(time.Second)
				w := d.wantPhase("web", corev1.PodPending, "").ContainerStatuses[0].State.Waiting
				for _, want := range append(c.want, `".key"`) {
					if w == nil || w.Reason != "CreateContainerConfigError" || !strings.Contains(w.Message, want) || strings.Contains(w.Message, d.dir) {
						t.Errorf("it waits with %+v, want %s", w, want)
					}
				}
			})
		})
	}
}

// A variable that is missing or empty leaves nothing of a subPathExpr but the volume itself, or a directory that all pods
// share whose variable is missing: as at a kubelet the container waits.
func TestASubPathWithoutItsVariableIsNotTheWholeVolume(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		for i, expr := range []string{"$(EMPTY)", "$(MISSING)", "logs/$(EMPTY)", "$(WHERE)/$(MISSING)", "$(OPTIONAL)"} {
			p := makePod(fmt.Sprintf("lost%d", i), "wait")
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
			c := &p.Spec.Containers[0]
			optional := &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "k", Optional: new(true)}
			c.Env = []corev1.EnvVar{{Name: "EMPTY"}, {Name: "WHERE", Value: "a"}, {Name: "OPTIONAL", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: optional}}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", SubPathExpr: expr}}
			d.desire(int64(i+1), p)
			time.Sleep(time.Second)
			st := d.wantPhase(p.Name, corev1.PodPending, "")
			if w := st.ContainerStatuses[0].State.Waiting; w == nil || w.Reason != "CreateContainerConfigError" || !strings.Contains(w.Message, "subPath") {
				t.Errorf("with the subPathExpr %q it waits with %+v", expr, w)
			}
		}
	})
	values := map[string]string{"WHERE": "a", "EMPTY": ""}
	if sub, err := expandSubPath("$(WHERE)/$$(MISSING)/$WHERE", values); sub != "a/$(MISSING)/$WHERE" || err != nil {
		t.Errorf("what names no other variable becomes %q, %v", sub, err)
	}
}
