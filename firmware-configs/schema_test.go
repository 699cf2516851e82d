package firmwareconfigs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// The schema accepts everything that the parser accepts, and refuses these mistakes, as the parser
// does.
func TestTheSchemaAgreesWithTheParser(t *testing.T) {
	s := new(spec.Schema)
	if err := json.Unmarshal(Schema(), s); err != nil {
		t.Fatal(err)
	}
	v := validate.NewSchemaValidator(s, nil, "", strfmt.Default)
	check := func(name, text string, want bool) {
		t.Helper()
		var tree any
		if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, err := json.Marshal(tree)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := json.Unmarshal(body, &tree); err != nil {
			t.Fatal(err)
		}
		_, parsed := Parse([]byte(text))
		if (parsed == nil) != want {
			t.Errorf("%s: the parser's result is %v, want it accepted: %t", name, parsed, want)
		}
		if r := v.Validate(tree); r.IsValid() != want {
			t.Errorf("%s: the schema's result is %v, want it accepted: %t", name, r.Errors, want)
		}
	}
	files, err := filepath.Glob("profiles/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		check(file, string(text), true)
	}
	const ok = "spec:\n  match: {arch: [arm]}\n"
	for name, body := range map[string]string{
		"the least": ok,
		"all": ok + `  title: A board
  platforms: [linux/arm/v6]
  extends: [onewire]
  resources:
    systemReserved: {cpu: 200m, memory: 1Gi}
    evictionHard: {memory.available: 64Mi, nodefs.available: "10%", temperature.celsius: "88"}
    evictionSoft: {memory.available: {value: 120Mi, for: 90s}}
    evictionMaxPodGracePeriod: 30
    sharing: {i2c-1: 4}
  labels: {gpio: "true", empty: ""}
  taints: [{key: camera, value: "yes", effect: NoSchedule}]
  peripherals: [{name: env, type: i2c, bus: 1, address: 0x76}, {name: door, type: gpio-in, line: GPIO17, pull: up}, {name: probe, type: onewire, family: "28"}, {name: radio, type: serial, byID: "usb-*"}]
  boot: {backend: rpi-config-txt, trial: auto, config: {all: {gpu_mem: "16"}, dtparam: [i2c_arm=on]}, cmdline: {add: [psi=1]}}
  watchdog: {hardware: true, runtimeSec: 14}
  health: {deadline: 5m, stableFor: 30s, checks: [engine-ping, expected-peripherals]}
`,
	} {
		check(name, head+body, true)
	}
	for name, text := range map[string]string{
		"another kind":                       strings.Replace(head, "BoardProfile", "Pod", 1) + ok,
		"another version":                    strings.Replace(head, "v1alpha1", "v2", 1) + ok,
		"an invalid name":                    strings.Replace(head, "board}", "Board_1}", 1) + ok,
		"no name":                            "apiVersion: flotilla.dev/v1alpha1\nkind: BoardProfile\nmetadata: {}\n" + ok,
		"no match":                           head + "spec: {title: x}\n",
		"an empty match":                     head + "spec: {match: {}}\n",
		"an unknown key":                     head + ok + "  Labels: {}\n",
		"an unknown key in a mapping":        head + ok + "  boot: {backend: none, loader: x}\n",
		"a text in place of a list":          head + "spec: {match: {arch: arm}}\n",
		"an unknown architecture":            head + "spec: {match: {arch: [mips]}}\n",
		"an unknown platform":                head + ok + "  platforms: [linux/arm/v5]\n",
		"an unknown overlay":                 head + ok + "  extends: [nonsense]\n",
		"a label that is not a string":       head + ok + "  labels: {gpio: true}\n",
		"an invalid value of a label":        head + ok + "  labels: {gpio: \"a b\"}\n",
		"an unknown effect of a taint":       head + ok + "  taints: [{key: a, effect: Nope}]\n",
		"a taint without an effect":          head + ok + "  taints: [{key: a}]\n",
		"an unknown signal":                  head + ok + "  resources: {evictionHard: {fan.rpm: \"1\"}}\n",
		"an invalid threshold":               head + ok + "  resources: {evictionHard: {memory.available: lots}}\n",
		"a resource that cannot be reserved": head + ok + "  resources: {agentReserved: {pods: \"1\"}}\n",
		"a soft threshold without a time":    head + ok + "  resources: {evictionSoft: {memory.available: {value: 1Gi}}}\n",
		"a soft threshold that is a string":  head + ok + "  resources: {evictionSoft: {memory.available: 1Gi}}\n",
		"a soft threshold of OutOfDisk":      head + ok + "  resources: {evictionSoft: {outofdisk.available: {value: 1Gi, for: 1m}}}\n",
		"a negative grace period":            head + ok + "  resources: {evictionMaxPodGracePeriod: -1}\n",
		"a sharing of 0":                     head + ok + "  resources: {sharing: {i2c-1: 0}}\n",
		"an unknown type of peripheral":      head + ok + "  peripherals: [{name: a, type: bluetooth}]\n",
		"an address beyond 7 bits":           head + ok + "  peripherals: [{name: a, type: i2c, bus: 1, address: 0x80}]\n",
		"an unknown pull":                    head + ok + "  peripherals: [{name: a, type: gpio-in, line: GPIO4, pull: left}]\n",
		"a peripheral without a type":        head + ok + "  peripherals: [{name: a}]\n",
		"an unknown backend":                 head + ok + "  boot: {backend: coreboot}\n",
		"a watchdog that is a text":          head + ok + "  boot: {backend: rpi-config-txt}\n  watchdog: {hardware: \"true\"}\n",
		"an unknown health check":            head + ok + "  boot: {backend: rpi-config-txt}\n  health: {checks: [luck]}\n",
	} {
		check(name, text, false)
	}
}
