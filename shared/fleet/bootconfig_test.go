package fleet

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func bootConfig() *BootConfig {
	return &BootConfig{
		Profile: "raspberrypi-4", Revision: 3, Backend: BootConfigTxt,
		Config: BootSettings{All: map[string]string{"gpu_mem": "16"}, DTParam: []string{"i2c_arm=on"},
			DTOverlay: []string{"w1-gpio,gpiopin=4"}},
		Cmdline: BootCmdline{Add: []string{"cgroup_enable=memory"}, Remove: []string{"quiet"}},
		Health:  BootHealth{Deadline: metav1.Duration{Duration: 5 * time.Minute}, Checks: []string{CheckEnginePing}},
	}
}

func TestABootConfigHasOneCanonicalForm(t *testing.T) {
	text, err := bootConfig().Encode()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"profile":"raspberrypi-4","revision":3,"backend":"rpi-config-txt","config":{"all":{"gpu_mem":"16"},"dtparam":["i2c_arm=on"],"dtoverlay":["w1-gpio,gpiopin=4"]},"cmdline":{"add":["cgroup_enable=memory"],"remove":["quiet"]},"health":{"deadline":"5m0s","checks":["engine-ping"]}}`
	if string(text) != want {
		t.Errorf("got the document\n%s, want\n%s", text, want)
	}
	if _, err := ParseBootConfig(text); err != nil {
		t.Error(err)
	}
	for name, bad := range map[string]string{
		"a space":        strings.Replace(want, ",", ", ", 1),
		"an unknown key": strings.Replace(want, `"revision"`, `"more":1,"revision"`, 1),
		"a doubled key":  strings.Replace(want, `"revision":3`, `"revision":2,"revision":3`, 1),
		"text after it":  want + "{}",
		"a long text":    strings.Replace(want, "quiet", strings.Repeat("q", MaxBootConfig), 1),
	} {
		if _, err := ParseBootConfig([]byte(bad)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

func TestValidateBootConfig(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*BootConfig)
		want   string // empty: valid
	}{
		{"a valid configuration", func(*BootConfig) {}, ""},
		{"backend none without changes", func(b *BootConfig) { b.Backend, b.Config, b.Cmdline = BootNone, BootSettings{}, BootCmdline{} }, ""},
		{"backend none with a change", func(b *BootConfig) { b.Backend = BootNone }, "backend: is none"},
		{"an unsupported backend", func(b *BootConfig) { b.Backend = "systemd-boot" }, `backend: "systemd-boot" is not supported`},
		{"GRUB has no config.txt", func(b *BootConfig) { b.Backend = BootGrub }, "config: has settings of config.txt"},
		{"GRUB cannot remove words", func(b *BootConfig) { b.Backend, b.Config = BootGrub, BootSettings{} }, "cmdline.remove: Flotilla cannot remove words"},
		{"GRUB has no tryboot", func(b *BootConfig) {
			b.Backend, b.Config, b.Cmdline.Remove, b.Trial = BootGrub, BootSettings{}, nil, TrialTryboot
		}, "trial: tryboot is not supported by"},
		{"uEnv.txt has a command line", func(b *BootConfig) { b.Backend, b.Config, b.Trial = BootUEnv, BootSettings{}, TrialDeadman }, ""},
		{"a reserved word", func(b *BootConfig) { b.Cmdline.Add = []string{"flotilla.trial=x"} }, "is refused"},
		{"an unknown trial", func(b *BootConfig) { b.Trial = "altboot" }, `trial: "altboot" is not supported`},
		{"an invalid profile name", func(b *BootConfig) { b.Profile = "../x" }, "profile:"},
		{"a key that loads a file", func(b *BootConfig) { b.Config.All["kernel"] = "evil.img" }, `config.all."kernel": is refused`},
		{"a key that selects another command line", func(b *BootConfig) { b.Config.All["cmdline"] = "x" }, `config.all."cmdline": is refused`},
		{"an unknown key", func(b *BootConfig) { b.Config.All["over_voltage"] = "6" }, `config.all."over_voltage": is not a key`},
		{"a value with a second line", func(b *BootConfig) { b.Config.All["gpu_mem"] = "16\nkernel=x" }, "has the value"},
		{"a value that ends in a line break", func(b *BootConfig) { b.Config.All["gpu_mem"] = "16\n" }, "has the value"},
		{"a long line", func(b *BootConfig) { b.Config.DTParam = []string{"a=" + strings.Repeat("b", 100)} }, "more than 98"},
		{"an overlay with a path", func(b *BootConfig) { b.Config.DTOverlay = []string{"../x"} }, "does not begin with the name of an overlay"},
		{"an overlay without a name", func(b *BootConfig) { b.Config.DTOverlay = []string{",x"} }, "does not begin with the name of an overlay"},
		{"a parameter without a name", func(b *BootConfig) { b.Config.DTParam = []string{"=on"} }, "does not begin with a name"},
		{"a parameter with an invalid name", func(b *BootConfig) { b.Config.DTParam = []string{"/x=on"} }, "does not begin with a name"},
		{"another init", func(b *BootConfig) { b.Cmdline.Add = []string{"init=/bin/sh"} }, "is refused"},
		{"another root", func(b *BootConfig) { b.Cmdline.Add = []string{"root=/dev/sda1"} }, "is refused"},
		{"a removed root", func(b *BootConfig) { b.Cmdline.Remove = []string{"root=PARTUUID=1"} }, "is refused"},
		{"another target", func(b *BootConfig) { b.Cmdline.Add = []string{"systemd.unit=x.target"} }, "is refused"},
		{"a command at boot", func(b *BootConfig) { b.Cmdline.Add = []string{"systemd.run=/x"} }, "is refused"},
		{"single-user mode", func(b *BootConfig) { b.Cmdline.Add = []string{"single"} }, "is refused"},
		{"two words", func(b *BootConfig) { b.Cmdline.Add = []string{"a b"} }, "cmdline.add[0]"},
		{"a word in both lists", func(b *BootConfig) { b.Cmdline.Remove = b.Cmdline.Add }, "choose one"},
		{"too many words", func(b *BootConfig) { b.Cmdline.Add = make([]string, 65) }, "has 65 entries"},
		{"an unknown check", func(b *BootConfig) { b.Health.Checks = []string{"bluetooth-paired"} }, "is not supported"},
		{"a short deadline", func(b *BootConfig) { b.Health.Deadline.Duration = time.Second }, "health.deadline"},
		{"stableFor of more than half the deadline", func(b *BootConfig) { b.Health.StableFor.Duration = 3 * time.Minute }, "health.stableFor"},
		{"a timeout that a Raspberry Pi does not support", func(b *BootConfig) { b.Watchdog = &BootWatchdog{Hardware: true, RuntimeSec: 16} }, "watchdog.runtimeSec: is 16: use 5 to 15"},
		{"a watchdog without hardware", func(b *BootConfig) { b.Watchdog = &BootWatchdog{RuntimeSec: 14} }, "watchdog.runtimeSec: has no effect without hardware"},
		{"a watchdog timeout for reboots", func(b *BootConfig) { b.Watchdog = &BootWatchdog{Hardware: true, RebootSec: 120} }, "watchdog.rebootSec: is not supported"},
		{"the watchdog's word in cmdline.add", func(b *BootConfig) { b.Cmdline.Add = []string{"systemd.watchdog_sec=14"} }, "is refused"},
		{"a word that disables the watchdog", func(b *BootConfig) {
			b.Cmdline.Add, b.Watchdog = []string{"systemd.watchdog_sec=off"},
				&BootWatchdog{Hardware: true, RuntimeSec: 14}
		}, "is refused"},
		{"a watchdog that systemd feeds", func(b *BootConfig) { b.Watchdog = &BootWatchdog{Hardware: true, RuntimeSec: 14} }, ""},
		{"a watchdog", func(b *BootConfig) { b.Watchdog = &BootWatchdog{Hardware: true} }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := bootConfig()
			c.change(b)
			err := b.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	for _, k := range bootRefused {
		b := bootConfig()
		b.Config.All[k] = "1"
		if b.Validate() == nil {
			t.Errorf("%s is accepted", k)
		}
	}
}

func FuzzParseBootConfig(f *testing.F) {
	text, _ := bootConfig().Encode()
	f.Add(text)
	f.Add([]byte(`{"profile":"a","revision":0,"backend":"none"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := ParseBootConfig(data)
		if err != nil {
			return
		}
		again, err := b.DeepCopy().Encode()
		if err != nil || string(again) != string(data) {
			t.Errorf("%q is encoded as %q, %v", data, again, err)
		}
		for k, v := range b.Config.All {
			if strings.ContainsAny(k+v, "\r\n# \x00") {
				t.Errorf("%q is accepted", data)
			}
		}
		if _, err := json.Marshal(b); err != nil {
			t.Error(err)
		}
	})
}
