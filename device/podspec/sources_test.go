package podspec

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/wire"
)

// aPod returns a pod with one container.
func aPod(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c0", Image: "tool"}}}}
}

func testSources() Sources {
	p := aPod("web")
	p.Labels, p.Annotations = map[string]string{"app": "web", "tier": "front"}, map[string]string{"note": `a "b"`}
	s := Sources{
		Pod:      &p,
		NodeName: "pi-1",
		HostIPs:  []string{"192.0.2.7"},
		PodIP:    "10.0.0.9",
		Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("1Gi"),
		},
	}
	s.ConfigMaps = []corev1.ConfigMap{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "default"},
			Data:       map[string]string{"a": "1", "b": "2"},
			BinaryData: map[string][]byte{"logo": {0, 1}},
		},
	}
	s.Secrets = []corev1.Secret{
		{ObjectMeta: metav1.ObjectMeta{Name: "sec", Namespace: "default"}, Data: map[string][]byte{"k": []byte("s3")}},
		{ObjectMeta: metav1.ObjectMeta{Name: "conf", Namespace: "other"}},
	}
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
		{name: "a variable may use earlier ones, and unknown references stay", env: []corev1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: "$(A)/$(NONE)/$$(A)"}}, want: []string{"A=x", "B=x/$(NONE)/$(A)"}},
		{name: "the last value of a name counts, at the first position", env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B"}, {Name: "A", Value: "2"}}, want: []string{"A=2", "B="}},
		{name: "a whole config map with a prefix", all: []corev1.EnvFromSource{{Prefix: "C_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("conf")}}}, want: []string{"C_a=1", "C_b=2"}},
		{name: "env overrides envFrom", all: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("conf")}}}, env: []corev1.EnvVar{{Name: "a", Value: "9"}}, want: []string{"a=9", "b=2"}},
		{name: "a key of a secret", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("sec"), Key: "k"}}}}, want: []string{"K=s3"}},
		{name: "a missing key", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("conf"), Key: "z"}}}}, err: "couldn't find key z in ConfigMap default/conf"},
		{name: "a missing optional key", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("conf"), Key: "z", Optional: &yes}}}}, want: []string{}},
		{name: "binary data is not a variable", env: []corev1.EnvVar{{Name: "K", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref("conf"), Key: "logo"}}}}, err: "couldn't find key logo in ConfigMap default/conf"},
		{name: "a secret of another namespace is not found", all: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("conf")}}}, err: `secret "conf" not found`},
		{name: "facts about the pod", env: []corev1.EnvVar{{Name: "N", ValueFrom: field("metadata.name")}, {Name: "IP", ValueFrom: field("status.podIP")}, {Name: "H", ValueFrom: field("status.hostIP")},
			{Name: "L", ValueFrom: field("metadata.labels['tier']")}, {Name: "NODE", ValueFrom: field("spec.nodeName")}}, want: []string{"N=web", "IP=10.0.0.9", "H=192.0.2.7", "L=front", "NODE=pi-1"}},
		{name: "an unknown field", env: []corev1.EnvVar{{Name: "N", ValueFrom: field("spec.colour")}}, err: "spec.colour"},
		{name: "the container's own limits, rounded up", env: []corev1.EnvVar{
			{Name: "M", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.memory", Divisor: resource.MustParse("1Mi")}}},
			{Name: "C", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}}}, want: []string{"M=64", "C=4"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			box := corev1.Container{
				Name:    "c",
				Env:     c.env,
				EnvFrom: c.all,
				Resources: corev1.ResourceRequirements{
					Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")},
				},
			}
			got, _, err := testSources().Environment(&box)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want an error with %q", err, c.err)
				}
				return
			}
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("environment %q (%v), want %q", got, err, c.want)
			}
		})
	}
}

// An unset limit, or a limit of 0, stands for the device's allocatable amount, as with the kubelet.
func TestAnUnsetLimitIsTheDevicesAllocatable(t *testing.T) {
	s := testSources()
	s.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("2Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("10Gi")}
	none := &corev1.Container{}
	zero := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(
			"0"), corev1.ResourceMemory: resource.MustParse("0"), corev1.ResourceEphemeralStorage: resource.MustParse("0")}}}
	set := &corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(
			"1500m",
		), corev1.ResourceMemory: resource.MustParse("64Mi"), corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}}}
	for name, want := range map[string][3]string{ // limit without a value, limit with a value, request without a value
		"cpu": {"4", "2", "0"}, "memory": {"2147483648", "67108864", "0"}, "ephemeral-storage": {"10737418240", "1073741824", "0"},
	} {
		get := func(c *corev1.Container, of string) string {
			v, err := s.resource(c, &corev1.ResourceFieldSelector{Resource: of + "." + name})
			if err != nil {
				t.Error(err)
			}
			return v
		}
		if got := [3]string{get(none, "limits"), get(set, "limits"), get(none, "requests")}; got != want ||
			get(zero, "limits") != want[0] {
			t.Errorf("%s: got %q, with a limit of 0 %s, want %q", name, got, get(zero, "limits"), want)
		}
	}
}

// Expansion stops at Linux's limits: a pod of a few kilobytes could expand to terabytes.
func TestExpansionOfVariablesIsLimited(t *testing.T) {
	times := func(name string, n int) string { return strings.Repeat("$("+name+")", n) }
	tower := []corev1.EnvVar{
		{Name: "A", Value: strings.Repeat("x", 1000)},
		{Name: "B", Value: times("A", 100)},
		{Name: "C", Value: times("B", 100)},
		{Name: "D", Value: times("C", 100)},
	}
	wide := tower[:2:2]
	for i := range 40 {
		wide = append(wide, corev1.EnvVar{Name: fmt.Sprint("C", i), Value: times("B", 1)})
	}
	args := slices.Repeat([]string{times("B", 1)}, 40)
	for what, c := range map[string]*corev1.Container{
		"nested variables":             {Env: tower},
		"many variables":               {Env: wide},
		"arguments":                    {Env: tower[:2], Args: args},
		"the program":                  {Env: tower[:2], Command: args},
		"one argument":                 {Env: tower[:2], Args: []string{times("B", 10)}},
		"a long entry of a config map": {EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "long"}}}}},
		"an unused variable":           {Env: append(slices.Clone(tower), corev1.EnvVar{Name: "E"})},
	} {
		src := testSources()
		src.ConfigMaps = append(
			src.ConfigMaps,
			corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: "long", Namespace: "default"},
				Data:       map[string]string{"a": strings.Repeat("x", 200<<10)},
			},
		)
		before := allocated()
		_, values, err := src.Environment(c)
		if err == nil {
			_, err = ExpandAll(c.Command, values)
		}
		if err == nil {
			_, err = ExpandAll(c.Args, values)
		}
		if spent := allocated() - before; !errors.Is(err, errTooLong) || spent > 16<<20 {
			t.Errorf("%s: error %v after %d MiB of allocations, want errTooLong and at most 16", what, err, spent>>20)
		}
	}
	if sub := expand(times("D", 100), map[string]string{"D": strings.Repeat("y", 100<<10)}); len(sub) > 256<<10 {
		t.Errorf("an expanded subPathExpr has %d bytes, want at most 256 KiB", len(sub))
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// An object that package wire marks as unreadable is an error only for the containers and volumes
// that use it.
func TestAnUnreadableObjectIsAnErrorForItsUsersOnly(t *testing.T) {
	optional := true
	broken := metav1.ObjectMeta{
		Name:        "s",
		Namespace:   "default",
		Annotations: map[string]string{wire.Unreadable: "data is hushhush"},
	}
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
			pod := aPod("p")
			pod.Namespace = "default"
			src := Sources{
				Pod:        &pod,
				Secrets:    []corev1.Secret{{ObjectMeta: broken}},
				ConfigMaps: []corev1.ConfigMap{{ObjectMeta: broken}},
			}
			container := corev1.Container{Name: "c", Env: []corev1.EnvVar{{Name: "X", ValueFrom: &c.env}}}
			_, _, err := src.Environment(&container)
			_, err2 := src.Files(&corev1.Volume{Name: "v", VolumeSource: c.volume})
			for _, err := range []error{err, err2} {
				if err == nil || !strings.Contains(err.Error(), "cannot read") ||
					name == "a secret" && strings.Contains(err.Error(), "hushhush") {
					t.Errorf("using an unreadable object: got %v, want an error without the object's text", err)
				}
			}
		})
	}
}

func TestPodsWithoutAValidIdentityAreLeftOut(t *testing.T) {
	good := aPod("good")
	duplicate, noUID, noName, nul := aPod("twin"), aPod("a"), aPod("b"), aPod("c")
	duplicate.UID, noUID.UID, noName.Name, nul.UID = good.UID, "", "", "a\x00b"
	kept, dropped := DropInvalid(wire.Desired{Generation: 3, Pods: []corev1.Pod{good, duplicate, noUID, noName, nul}})
	if len(kept.Pods) != 1 || kept.Pods[0].Name != "good" || kept.Generation != 3 || len(dropped) != 4 {
		t.Errorf("kept pods %v, dropped %q; want one kept and four dropped", kept.Pods, dropped)
	}
	many := make([]corev1.Pod, 40_000)
	for i := range many {
		many[i].ObjectMeta = metav1.ObjectMeta{Name: "x", Namespace: "y", UID: types.UID(fmt.Sprint(i))}
	}
	if kept, dropped := DropInvalid(wire.Desired{Pods: many}); len(kept.Pods) != wire.MaxPods || len(dropped) != 1 {
		t.Errorf("kept %d pods, dropped %q; want %d kept and one reason", len(kept.Pods), dropped, wire.MaxPods)
	}
}

// A NUL in a secret is an error only for a container that uses the secret as a variable.
func TestAVariableMustNotContainNUL(t *testing.T) {
	src := testSources()
	src.Secrets = []corev1.Secret{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: src.Pod.Namespace},
			Data:       map[string][]byte{"key": []byte("a\x00b")},
		},
	}
	c := &src.Pod.Spec.Containers[0]
	for name, from := range map[string]func(){
		"by key": func() {
			c.Env = []corev1.EnvVar{{Name: "key",
				ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "key"}}}}
		},
		"all keys": func() {
			c.Env, c.EnvFrom = nil,
				[]corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}}}
		},
	} {
		from()
		if _, _, err := src.Environment(c); err == nil || !strings.Contains(err.Error(), "environment variable key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestErrorsContainNoSecrets(t *testing.T) {
	of := func(data map[string]string) Sources {
		return Sources{
			Pod:     &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "kiosk"}},
			Secrets: []corev1.Secret{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "keys"}, StringData: data}},
		}
	}
	c := &corev1.Container{Name: "web", Env: []corev1.EnvVar{
		{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "a"}}},
	}}
	all := &corev1.Container{
		Name: "web",
		EnvFrom: []corev1.EnvFromSource{
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}}},
		},
	}
	for _, tt := range []struct{ name, value, text string }{
		{"the secret itself", "../hunter2", `"../hunter2" must be a relative path that stays in the volume`},
		{"the secret as Go quotes it", "hun\tter2", fmt.Sprintf("%q leads out of the volume", "hun\tter2")},
		{"a file name in a secret path", "deep/hunter2//x", "openat hunter2: not a directory"},
		{"the secret as a cleaned path", "deep//hunter2", "mkdir /run/x/deep/hunter2: no space left"},
		{"the secret inside a word", "hunter2", `exec: "/bin/run-hunter2-now": no such file`},
		{"one line of the secret", "first\nhunter2\n", "cannot open hunter2"},
	} {
		for _, c := range []*corev1.Container{c, all} {
			err := of(map[string]string{"a": tt.value}).MaskSecrets(c, fmt.Errorf("%s: %w", tt.text, engine.ErrUnavailable))
			if got := err.Error(); strings.Contains(got, "hunter2") || strings.Contains(got, "ter2") ||
				!strings.Contains(got, "(secret keys, key a)") {
				t.Errorf("%s: the error is %s, want the secret's name in place of its text", tt.name, got)
			}
			if !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("%s: the wrapped error is lost", tt.name)
			}
		}
	}
	plain := errors.New("no space left on device")
	if got := of(map[string]string{"a": "hunter2"}).MaskSecrets(c,
		plain); got != plain { //nolint:errorlint // must be the same value
		t.Errorf("an error without secrets becomes %v", got)
	}
	if got := of(map[string]string{"b": "no space"}).MaskSecrets(c, plain); got != plain { //nolint:errorlint // the same
		t.Errorf("a secret that the container does not use changes the error to %v", got)
	}
}

func TestAFileStaysInItsVolume(t *testing.T) {
	for _, bad := range []string{"../x", "/etc/passwd", "..data", "a/../../b", ".."} {
		if err := addFile(map[string]File{}, bad, nil, 0o644); err == nil {
			t.Errorf("the file path %q is accepted", bad)
		}
	}
}
