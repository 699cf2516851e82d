package firmwareconfigs

import (
	"slices"
	"strings"
	"testing"
)

const pi = "apiVersion: flotilla.dev/v1alpha1\nkind: BoardProfile\nmetadata: {name: pi}\nspec:\n  match: {arch: [arm64]}\n"

func TestAProfileIsMergedWithItsOverlays(t *testing.T) {
	p, err := Parse([]byte(pi + `  extends: [low-memory, onewire, can-hat]
  labels: {can: "mine"}
  resources: {evictionHard: {nodefs.available: "10%"}}
  boot:
    backend: rpi-config-txt
    config: {dtparam: [i2c_arm=on, spi=off], dtoverlay: ["w1-gpio,gpiopin=17"]}
    cmdline: {remove: [quiet]}
`))
	if err != nil {
		t.Fatal(err)
	}
	document, _, err := Render(p)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"profile":"pi","revision":0,"backend":"rpi-config-txt","config":{"all":{"gpu_mem":"16"},"dtparam":["spi=off","i2c_arm=on"],"dtoverlay":["w1-gpio,gpiopin=17","mcp2515-can0,oscillator=16000000,interrupt=25"]},"cmdline":{"add":["cgroup_enable=memory"],"remove":["quiet"]}}`
	if string(document) != want {
		t.Errorf("rendered\n%s\nwant\n%s", document, want)
	}
	effective, _ := Effective(p)
	if l := effective.Spec.Labels; l["can"] != "mine" || l["onewire"] != "true" || len(l) != 2 {
		t.Errorf("the labels are %v, want can=mine and onewire=true", l)
	}
	if e := effective.Spec.Resources.EvictionHard; e["memory.available"] != "48Mi" || e["nodefs.available"] != "10%" {
		t.Errorf("the thresholds are %v, want 48Mi of memory and 10%% of the disk", e)
	}
	if len(p.Spec.Labels) != 1 || len(p.Spec.Boot.Config.DTParam) != 2 {
		t.Errorf("Effective changed the profile: %+v", p.Spec)
	}
	if all, err := overlays(); err != nil || len(all) != 3 || all["onewire"].Spec.Labels["can"] != "" ||
		len(all["low-memory"].Spec.Boot.Cmdline.Remove) != 0 {
		t.Errorf("Effective changed the overlays: %v, %v", all, err)
	}
}

// Some device-tree overlays are loaded several times with different pins, for example one 1-Wire
// bus on each.
func TestAProfileKeepsRepeatedDeviceTreeOverlays(t *testing.T) {
	p, err := Parse([]byte(pi + `  extends: [onewire, can-hat]
  boot:
    backend: rpi-config-txt
    config: {dtparam: [i2c_arm=on, spi=off], dtoverlay: ["w1-gpio,gpiopin=17", "i2c-gpio", "w1-gpio,gpiopin=27"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	_, c, err := Render(p)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(c.Config.DTOverlay,
		" "); got != "w1-gpio,gpiopin=17 mcp2515-can0,oscillator=16000000,interrupt=25 i2c-gpio w1-gpio,gpiopin=27" {
		t.Errorf("the overlays are %s", got)
	}
	if got := lists([]string{"a=1", "a=2", "b=1"}, []string{"a=3"}, parameter); strings.Join(got, " ") != "a=3 b=1" {
		t.Errorf("two entries of a subject are not replaced by one: %v", got)
	}
}

// The boot configuration has no labels, so a change of labels reboots no board.
func TestTheDigestCoversOnlyTheBootConfiguration(t *testing.T) {
	const boot = "  boot: {backend: rpi-config-txt, config: {dtparam: [spi=on]}}\n"
	a, errA := Parse([]byte(pi + boot))
	b, errB := Parse([]byte(pi + boot + "  title: another\n  labels: {x: y}\n"))
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	x, _, _ := Render(a)
	y, _, _ := Render(b)
	if len(x) == 0 || !slices.Equal(x, y) {
		t.Errorf("got\n%s, want it unchanged:\n%s", x, y)
	}
}

func TestTheErrorNamesThePlaceInAHostileProfile(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"an unknown overlay", "  extends: [../../etc/passwd]\n", `spec.extends[0]: is "../../etc/passwd": use one of can-hat, low-memory, onewire`},
		{"a repeated overlay", "  extends: [onewire, onewire]\n  boot: {backend: rpi-config-txt}\n", "spec.extends[1]: repeats"},
		{"an overlay without a backend", "  extends: [onewire]\n", "spec.boot.backend: is missing"},
		{"a backend that is not supported", "  boot: {backend: extlinux}\n", `spec.boot: backend: "extlinux" is not supported`},
		{"another kernel", "  boot: {backend: rpi-config-txt, config: {all: {kernel: evil.img}}}\n", "spec.boot: config.all.\"kernel\": is refused"},
		{"another file", "  boot: {backend: rpi-config-txt, config: {all: {include: evil.txt}}}\n", "spec.boot: config.all.\"include\": is refused"},
		{"a line break in a value", "  boot: {backend: rpi-config-txt, config: {all: {gpu_mem: \"16\\nkernel=evil.img\"}}}\n", "spec.boot: config.all.\"gpu_mem\": has the value"},
		{"a path as overlay", "  boot: {backend: rpi-config-txt, config: {dtoverlay: [../evil]}}\n", "spec.boot: config.dtoverlay[0]"},
		{"another init", "  boot: {backend: rpi-config-txt, cmdline: {add: [init=/bin/sh]}}\n", "spec.boot: cmdline.add[0]: \"init=/bin/sh\" is refused"},
		{"another root", "  boot: {backend: rpi-config-txt, cmdline: {remove: [root=/dev/mmcblk0p2]}}\n", "spec.boot: cmdline.remove[0]"},
		{"an unknown check", "  boot: {backend: rpi-config-txt}\n  health: {checks: [all-good]}\n", `spec: health.checks[0]: "all-good" is not supported`},
		{"a deadline of a day", "  boot: {backend: rpi-config-txt}\n  health: {deadline: 24h}\n", "spec: health.deadline: is 24h0m0s"},
		{"an invalid key", "  boot: {backend: rpi-config-txt, eeprom: {}}\n", "spec.boot.eeprom (line 6): unknown key"},
		{"a text in place of true or false", "  boot: {backend: rpi-config-txt}\n  watchdog: {hardware: sure}\n", `spec.watchdog.hardware (line 7): is "sure": write true or false`},
		{"a setting for the backend none", "  boot: {backend: none, cmdline: {add: [quiet]}}\n", "spec.boot: backend: is none"},
	} {
		_, err := Parse([]byte(pi + c.text))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		} else if n := strings.Count(err.Error(), "\n"); n > 0 {
			t.Errorf("%s: the error has %d sentences, want 1: %v", c.name, n+1, err)
		}
	}
}
