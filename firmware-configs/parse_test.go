package firmwareconfigs

import (
	"strings"
	"testing"
	"time"

	"flotilla.dev/shared/fleet"
)

const head = "apiVersion: flotilla.dev/v1alpha1\nkind: BoardProfile\nmetadata: {name: board}\n"

func TestParse(t *testing.T) {
	p, err := Parse([]byte(head + `
spec:
  title: A board
  match: {compatible: ["a,b"], arch: [arm], memoryMiB: {min: 1, max: 2}}
  platforms: [linux/arm/v6]
  resources:
    systemReserved: {cpu: 200m, memory: 1Gi, ephemeral-storage: 1Gi}
    agentReserved: {cpu: "1"}
    evictionHard: {memory.available: 64Mi, nodefs.available: "10%", pid.available: "0", temperature.celsius: "88"}
    evictionSoft: {memory.available: {value: 120Mi, for: 90s}, temperature.celsius: {value: "82", for: 2m}}
    evictionMaxPodGracePeriod: 30
    sharing: {i2c-1: 4}
  labels: {gpio: "true"}
  taints: [{key: camera, value: "yes", effect: NoSchedule}]
  peripherals: [{name: lorawan-gateway, type: serial, byID: "usb-RAK*"}, {name: env, type: i2c, bus: 1, address: 0x76}, {name: probe, type: onewire, family: "28"}, {name: door, type: gpio-in, line: GPIO17, pull: up}, {name: lamp, type: gpio-out, line: GPIO4}]
`))
	if err != nil {
		t.Fatal(err)
	}
	s := p.Spec
	if p.Name != "board" || s.Title != "A board" || *s.Match.MemoryMiB != (fleet.MiBBounds{Min: 1, Max: 2}) ||
		s.Labels["gpio"] != "true" ||
		s.Resources.AgentReserved["cpu"] != "1" || len(s.Taints) != 1 || s.Taints[0].Effect != "NoSchedule" ||
		s.Resources.EvictionSoft["memory.available"].For.Duration != 90*time.Second ||
		s.Resources.EvictionMaxPodGracePeriod != 30 ||
		s.Resources.Sharing["i2c-1"] != 4 || s.Peripherals[0] != (fleet.Peripheral{Name: "lorawan-gateway",
		Type: "serial",
		ByID: "usb-RAK*"}) || *s.Peripherals[1].Bus != 1 || s.Peripherals[1].Address != 0x76 ||
		s.Peripherals[3].Pull != "up" {
		t.Errorf("the profile was parsed as %+v", p)
	}
	if _, err := Parse([]byte(`{"apiVersion":"flotilla.dev/v1alpha1","kind":"BoardProfile","metadata":{"name":"board"},"spec":{"match":{"arch":["arm"]}}}`)); err != nil {
		t.Errorf("JSON: %v", err)
	}
}

func TestParseNamesMistakes(t *testing.T) {
	const ok = "spec:\n  match: {arch: [arm]}\n"
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"an empty file", "", []string{"empty"}},
		{"a file of comments", "# nothing\n", []string{"empty"}},
		{"no YAML", "a: [", []string{"YAML"}},
		{"a list in place of a profile", "- a\n", []string{"the profile", "mapping"}},
		{"two documents", head + ok + "---\n" + head + ok, []string{"one profile per file"}},
		{"too large", head + ok + "# " + strings.Repeat("x", MaxSize), []string{"65536"}},
		{"another kind", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n" + ok, []string{`apiVersion: is "v1"`, `kind: is "Pod"`}},
		{"an invalid name", strings.Replace(head, "board}", "Board_1}", 1) + ok, []string{`metadata.name: is "Board_1"`}},
		{"no name", "apiVersion: flotilla.dev/v1alpha1\nkind: BoardProfile\n" + ok, []string{"metadata.name"}},
		{"no criterion", head + "spec: {title: x}\n", []string{"spec.match: is empty"}},
		{"an unknown key, with its place and the known ones", head + "spec:\n  match: {arch: [arm], board: x}\n", []string{"spec.match.board (line 5): unknown key: use one of arch, compatible, memoryMiB"}},
		{"a key in the wrong case", head + ok + "  Labels: {}\n", []string{"spec.Labels (line 6): unknown key"}},
		{"a repeated key", head + ok + "  title: a\n  title: b\n", []string{"spec.title (line 7): appears twice"}},
		{"a repeated free key", head + ok + "  labels: {a: x, a: y}\n", []string{"spec.labels.a", "twice"}},
		{"anchors", head + "spec:\n  match: &m {arch: [arm]}\n", []string{"spec.match", "anchors"}},
		{"aliases", head + ok + "  labels: {a: &x one, b: *x}\n", []string{"spec.labels.a", "spec.labels.b"}},
		{"a key without a value", head + ok + "  title:\n", []string{"spec.title", "no value"}},
		{"a text in place of a list", head + "spec:\n  match: {arch: arm}\n", []string{"spec.match.arch", "must be a list"}},
		{"a mapping in place of a text", head + ok + "  title: {a: b}\n", []string{"spec.title", "single value"}},
		{"a label that YAML parses as a boolean", head + ok + "  labels: {gpio: true}\n", []string{`spec.labels.gpio (line 6): true is not a text in YAML: write it in quotes, "true"`}},
		{"an invalid amount of memory", head + "spec:\n  match: {memoryMiB: {min: 1.5, max: big}}\n", []string{`memoryMiB.min`, `"1.5"`, `memoryMiB.max`, `"big"`}},
		{"a minimum of memory above the maximum", head + "spec:\n  match: {memoryMiB: {min: 9, max: 3}}\n", []string{"min 9 is above max 3"}},
		{"memory without bounds", head + "spec:\n  match: {memoryMiB: {}}\n", []string{"has no bound"}},
		{"negative memory", head + "spec:\n  match: {memoryMiB: {min: -1}}\n", []string{"min -1"}},
		{"an unknown architecture", head + "spec:\n  match: {arch: [aarch64]}\n", []string{`spec.match.arch[0]: is "aarch64": use one of amd64, arm, arm64`}},
		{"a repeated architecture", head + "spec:\n  match: {arch: [arm, arm]}\n", []string{`spec.match.arch[1]: repeats`}},
		{"an empty compatible name", head + "spec:\n  match: {compatible: [\" \"]}\n", []string{"spec.match.compatible[0]"}},
		{"an unknown platform", head + ok + "  platforms: [linux/arm/v5]\n", []string{`spec.platforms[0]: is "linux/arm/v5"`}},
		{"an invalid quantity", head + ok + "  resources: {systemReserved: {memory: 160MB!}}\n", []string{`spec.resources.systemReserved.memory: "160MB!"`}},
		{"a resource that cannot be reserved", head + ok + "  resources: {agentReserved: {pods: \"1\"}}\n", []string{"spec.resources.agentReserved.pods", "cpu, ephemeral-storage, memory"}},
		{"an invalid percentage", head + ok + "  resources: {evictionHard: {nodefs.available: \"110%\"}}\n", []string{`spec.resources.evictionHard.nodefs.available: "110%"`}},
		{"an unknown signal", head + ok + "  resources: {evictionHard: {fan.rpm: \"88\"}}\n", []string{"fan.rpm", "memory.available"}},
		{"an invalid temperature", head + ok + "  resources: {evictionHard: {temperature.celsius: \"88%\"}}\n", []string{"evictionHard.temperature.celsius", "is not a temperature"}},
		{"soft thresholds without a time and without a value", head + ok + "  resources: {evictionSoft: {memory.available: {value: 120Mi}, nodefs.available: {for: 90s}}}\n", []string{"evictionSoft.memory.available: for: is 0s", "evictionSoft.nodefs.available: value"}},
		{"soft thresholds that are not a mapping and with an unknown key", head + ok + "  resources: {evictionSoft: {memory.available: 120Mi, nodefs.available: {after: 1s}}}\n", []string{"evictionSoft.memory.available (line 6): must be a mapping", "evictionSoft.nodefs.available.after (line 6): unknown key: use one of for, value"}},
		{"a soft threshold beyond the hard one", head + ok + "  resources: {evictionHard: {temperature.celsius: \"80\", memory.available: 64Mi}, evictionSoft: {temperature.celsius: {value: \"82\", for: 2m}, memory.available: {value: 64Mi, for: 2m}}}\n", []string{"evictionSoft.temperature.celsius: value: 82 is not crossed before the 80", "evictionSoft.memory.available: value: 64Mi"}},
		{"a soft threshold of a signal without evictions", head + ok + "  resources: {evictionSoft: {outofdisk.available: {value: 1Gi, for: 1m}}}\n", []string{"evictionSoft.outofdisk.available: \"outofdisk.available\" has no soft threshold"}},
		{"an invalid grace period", head + ok + "  resources: {evictionMaxPodGracePeriod: -1}\n", []string{"spec.resources.evictionMaxPodGracePeriod: is -1"}},
		{"a label key of another domain", head + ok + "  labels: {kubernetes.io/os: linux}\n", []string{"spec.labels.kubernetes.io/os", "slash"}},
		{"an invalid label key and value", head + ok + "  labels: {\"a b\": \"c d\"}\n", []string{"cannot be a label", `has the value "c d"`}},
		{"a taint's effect", head + ok + "  taints: [{key: a, effect: NoRun}]\n", []string{`spec.taints[0].effect: is "NoRun"`, "NoExecute, NoSchedule, PreferNoSchedule"}},
		{"a taint's key and value", head + ok + "  taints: [{key: \"a b\", value: \"c d\", effect: NoSchedule}]\n", []string{"spec.taints[0].key", "spec.taints[0].value"}},
		{"a taint of the hub", head + ok + "  taints: [{key: node.kubernetes.io/not-ready, effect: NoExecute}]\n", []string{"belongs to the hub"}},
		{"a repeated taint", head + ok + "  taints: [{key: a, effect: NoExecute}, {key: a, value: b, effect: NoExecute}]\n", []string{"spec.taints[1]: repeats a:NoExecute"}},
		{"a taint's time", head + ok + "  taints: [{key: a, effect: NoExecute, timeAdded: x}]\n", []string{"spec.taints[0].timeAdded", "unknown key"}},
		{"an invalid sharing", head + ok + "  resources: {sharing: {i2c-1: 0, \"a b\": 2, spi0: few}}\n", []string{`spec.resources.sharing.spi0 (line 6): is "few"`}},
		{"invalid shares", head + ok + "  resources: {sharing: {i2c-1: 0, \"a b\": 2}}\n", []string{"spec.resources.sharing.i2c-1: is 0", "spec.resources.sharing.a b: cannot be a resource"}},
		{"an invalid peripheral", head + ok + "  peripherals: [{name: i2c-1, type: i2c, byID: \"[\"}, {name: A}]\n",
			[]string{"spec.peripherals[0].name", "a name that devices have already",
				"spec.peripherals[0].byID: does not belong to the type i2c",
				"spec.peripherals[0].bus", "spec.peripherals[0].address: is 0x0", "spec.peripherals[1].name", "spec.peripherals[1].type", "onewire, serial, video"}},
		{"an invalid peripheral of each type", head + ok + "  peripherals: [{name: a, type: onewire, family: \"2g\"}, {name: b, type: gpio-in, line: \"\", pull: left}, {name: c, type: gpio-out, line: GPIO4, pull: up}, {name: d, type: i2c, bus: -1, address: 0x78}]\n",
			[]string{`[0].family: is "2g"`, `[1].line: is ""`, `[1].pull: is "left": use one of down, none, up`,
				"[2].pull: does not belong to the type gpio-out", "[3].bus", "[3].address: is 0x78"}},
		{"a repeated peripheral", head + ok + "  peripherals: [{name: a, type: serial, byID: x}, {name: a, type: serial, byID: y}]\n", []string{"spec.peripherals[1].name: repeats"}},
		{"a control character", head + ok + "  title: \"a\\u001bb\"\n", []string{"spec.title", "control character"}},
		{"one error names several mistakes", head + "spec:\n  match: {arch: [x86]}\n  platforms: [dos]\n  taints: [{}]\n", []string{"x86", "dos", "spec.taints[0].key", "spec.taints[0].effect"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.text))
			if err == nil {
				t.Fatal("Parse accepts the profile")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not contain %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestDefaultsAreSortedAndComplete(t *testing.T) {
	profiles, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range profiles {
		if i > 0 && profiles[i-1].Name >= p.Name {
			t.Errorf("profile %s comes after %s, want them sorted", p.Name, profiles[i-1].Name)
		}
		if p.Spec.Title == "" || len(p.Spec.Platforms) == 0 {
			t.Errorf("%s has no title or no platform", p.Name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "spec:\n  match: {arch: [arm]}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("<<: {a: b}\n? [x]\n: y"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if err == nil && Validate(p) != nil {
			t.Errorf("Parse accepts a profile that Validate refuses: %q", data)
		}
	})
}
