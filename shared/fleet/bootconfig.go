package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A BootConfig is a board's boot configuration: the changes, the kind of trial, and the checks that
// decide whether the trial succeeds. Hub and device use the same Validate. The digest is the hash
// of Encode's output.
type BootConfig struct {
	Profile  string        `json:"profile"`         // the profile's name
	Revision int64         `json:"revision"`        // revision of the profile, incremented with each change
	Backend  string        `json:"backend"`         // one of BootBackends
	Trial    string        `json:"trial,omitempty"` // one of BootTrials; empty: chosen automatically
	Config   BootSettings  `json:"config,omitzero"`
	Cmdline  BootCmdline   `json:"cmdline,omitzero"`
	Watchdog *BootWatchdog `json:"watchdog,omitempty"`
	Health   BootHealth    `json:"health,omitzero"`
}

// BootSettings are the lines of config.txt.
type BootSettings struct {
	All       map[string]string `json:"all,omitempty"`       // such as gpu_mem: "16"
	DTParam   []string          `json:"dtparam,omitempty"`   // such as i2c_arm=on
	DTOverlay []string          `json:"dtoverlay,omitempty"` // such as w1-gpio,gpiopin=4
}

// A BootCmdline changes the kernel's command line.
type BootCmdline struct {
	Add    []string `json:"add,omitempty"`    // words to append, unless present
	Remove []string `json:"remove,omitempty"` // whole words to remove
}

// A BootWatchdog is the board's hardware watchdog.
type BootWatchdog struct {
	Hardware   bool  `json:"hardware,omitempty"`
	RuntimeSec int32 `json:"runtimeSec,omitempty"`
	RebootSec  int32 `json:"rebootSec,omitempty"`
}

// BootHealth has the checks that decide whether a trial succeeds.
type BootHealth struct {
	Deadline  metav1.Duration `json:"deadline,omitzero"`  // counted from the boot; 0: 10m
	StableFor metav1.Duration `json:"stableFor,omitzero"` // how long all checks must succeed; 0: 60s
	Checks    []string        `json:"checks,omitempty"`   // from BootChecks; empty: DefaultBootChecks
}

// Backends and trials of a BootConfig.
const (
	BootConfigTxt = "rpi-config-txt" // config.txt and cmdline.txt of a Raspberry Pi
	BootGrub      = "grub-dropin"    // words of the kernel's command line, in GRUB's custom.cfg
	BootUEnv      = "uboot-uenv"     // cmdline of uEnv.txt, which U-Boot reads on a BeagleBone
	BootNone      = "none"           // no boot configuration

	TrialAuto    = "auto"
	TrialTryboot = "tryboot" // the firmware boots tryboot.txt once
	TrialDeadman = "deadman" // the files are replaced, and an early unit restores the old ones at the second boot
	TrialGrub    = "grubenv" // GRUB uses a variable of its environment block for one boot
)

// Checks of BootHealth.
const (
	CheckAgentRunning   = "agent-running"
	CheckEnginePing     = "engine-ping"
	CheckHubReconnected = "hub-reconnected-if-was"
	CheckDiskWritable   = "disk-writable"
	CheckPeripherals    = "expected-peripherals"
	CheckWorkloads      = "workloads-as-before"
	CheckUndervoltage   = "no-undervoltage"
)

// Values that this version supports. An error names any other value.
var (
	BootBackends = []string{BootNone, BootConfigTxt, BootGrub, BootUEnv}
	BootTrials   = []string{TrialAuto, TrialTryboot, TrialDeadman}
	BootChecks   = []string{CheckAgentRunning, CheckEnginePing, CheckHubReconnected, CheckDiskWritable, CheckPeripherals,
		CheckWorkloads, CheckUndervoltage}

	DefaultBootChecks = []string{CheckAgentRunning, CheckEnginePing, CheckHubReconnected, CheckDiskWritable}
)

// Limits of a BootConfig.
const (
	MaxBootConfig  = 64 << 10 // bytes of Encode's output
	MaxBootEntries = 64       // entries of each list
	// characters that a Raspberry Pi's firmware reads of a line in config.txt, see its
	// documentation
	MaxBootLine = 98

	DefaultBootDeadline  = 10 * time.Minute
	DefaultBootStableFor = time.Minute
	maxBootDeadline      = time.Hour
)

var (
	bootValue   = regexp.MustCompile(`^[A-Za-z0-9_.,:=@/+-]{1,128}$`)
	bootName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$`)
	bootProfile = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$`)

	// bootKeys are the keys of config.txt that a profile may set. None of them loads other files,
	// changes voltages, or undermines the trial.
	bootKeys = []string{
		"arm_64bit", "arm_boost", "arm_freq", "arm_freq_min", "auto_initramfs", "avoid_warnings", "camera_auto_detect",
		"core_freq_min",
		"disable_audio_dither", "disable_fw_kms_setup", "disable_overscan", "disable_poe_fan", "disable_splash",
		"display_auto_detect",
		"dtdebug", "enable_jtag_gpio", "enable_tvout", "enable_uart", "gpu_mem", "gpu_mem_1024", "gpu_mem_256",
		"gpu_mem_512",
		"hdmi_blanking", "hdmi_drive", "hdmi_force_hotplug", "hdmi_group", "hdmi_ignore_hotplug", "hdmi_mode",
		"kernel_watchdog_timeout",
		"max_framebuffers", "start_x", "temp_limit", "temp_soft_limit", "total_mem", "uart_2ndstage",
		"usb_max_current_enable",
	}
	// bootRefused are keys that stay refused even if a later version adds them to bootKeys.
	bootRefused = []string{
		"avoid_safe_mode", "boot_ramdisk", "cmdline", "device_tree", "device_tree_address", "disable_commandline_tags",
		"fixup_file",
		"force_eeprom_read", "include", "init_emmc_clock", "initramfs", "kernel", "kernel_address", "kernel_old", "os_prefix",
		"overlay_prefix", "ramfsaddr", "ramfsfile", "start_file", "tryboot_a_b",
	}
	// cmdlineRefused are words that start another system or pass the rest of the command line to
	// it.
	cmdlineRefused = []string{
		"--", "-b", "1", "2", "3", "4", "5", "S", "break", "emergency", "init", "initrd", "mount", "noinitrd",
		"overlayroot",
		"rdinit", "rescue", "resume", "root",
		"rootdelay", "rootflags", "rootfstype", "rootwait", "s", "single", "boot", "nfsroot", "ip",
	}
	cmdlineRefusedPrefixes = []string{"systemd.", "rd.", "luks.", "dm-mod.", "flotilla."}
)

// Encode returns the configuration as canonical JSON. The digest is the hash of these bytes.
func (b *BootConfig) Encode() ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(b); err != nil {
		return nil, fmt.Errorf("encode the boot configuration: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// ParseBootConfig parses the output of Encode. Unknown keys, another order and white space are
// errors, because the digest covers the bytes. The result is valid and includes the watchdog's word
// on its command line.
func ParseBootConfig(document []byte) (*BootConfig, error) {
	if len(document) > MaxBootConfig {
		return nil, fmt.Errorf("the boot configuration has %d bytes: at most %d are read", len(document), MaxBootConfig)
	}
	b := new(BootConfig)
	dec := json.NewDecoder(bytes.NewReader(document))
	dec.DisallowUnknownFields()
	if err := dec.Decode(b); err != nil {
		return nil, fmt.Errorf("read the boot configuration: %w", err)
	}
	if again, err := b.Encode(); err != nil || !bytes.Equal(again, document) {
		return nil, errors.New("the boot configuration is not in its canonical form: encode it as the hub does")
	}
	if err := b.Validate(); err != nil {
		return b, err
	}
	// every backend tries the watchdog's word like the other words
	if w := b.Watchdog.word(); w != "" && !slices.Contains(b.Cmdline.Add, w) {
		b.Cmdline.Add = append(b.Cmdline.Add, w)
	}
	return b, nil
}

// Deadline returns Health.Deadline or its default.
func (b *BootConfig) Deadline() time.Duration {
	return orDefault(b.Health.Deadline.Duration, DefaultBootDeadline)
}
func (b *BootConfig) StableFor() time.Duration {
	return orDefault(b.Health.StableFor.Duration, DefaultBootStableFor)
}

// Checks returns Health.Checks or their default.
func (b *BootConfig) Checks() []string {
	if len(b.Health.Checks) == 0 {
		return DefaultBootChecks
	}
	return b.Health.Checks
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// Validate returns every mistake in a boot configuration with the field that has it.
func (b *BootConfig) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !bootProfile.MatchString(b.Profile) {
		wrong("profile: is %.40q: write the name of a profile", b.Profile)
	}
	if b.Revision < 0 {
		wrong("revision: is %d, but revisions start at 0", b.Revision)
	}
	if !slices.Contains(BootBackends, b.Backend) {
		wrong("backend: %.40q is not supported: use one of %s", b.Backend, strings.Join(BootBackends, ", "))
	}
	if b.Trial != "" && !slices.Contains(BootTrials, b.Trial) {
		wrong("trial: %.40q is not supported: use one of %s", b.Trial, strings.Join(BootTrials, ", "))
	}
	if b.Backend == BootNone &&
		(len(b.Config.All)+len(b.Config.DTParam)+len(b.Config.DTOverlay)+len(b.Cmdline.Add)+len(b.Cmdline.Remove) > 0 ||
			b.Watchdog != nil) {
		wrong("backend: is none, but config, cmdline or watchdog say what to change: use %s, or remove them", BootConfigTxt)
	}
	if b.Backend == BootGrub || b.Backend == BootUEnv {
		errs = append(errs, b.onlyCmdline()...)
	}
	errs = append(errs, b.Config.validate()...)
	errs = append(errs, b.Cmdline.validate(b.Watchdog.word())...)
	errs = append(errs, b.Watchdog.validate(b.Backend)...)
	if d := b.Health.Deadline.Duration; d != 0 && (d < time.Minute || d > maxBootDeadline) {
		wrong("health.deadline: is %s: use 1m to %s", d, maxBootDeadline)
	}
	if s := b.Health.StableFor.Duration; s < 0 || s > b.Deadline()/2 {
		wrong("health.stableFor: is %s: use 1s to half of the deadline of %s", s, b.Deadline())
	}
	for i, c := range b.Health.Checks {
		if !slices.Contains(BootChecks, c) {
			wrong("health.checks[%d]: %.40q is not supported: use some of %s", i, c, strings.Join(BootChecks, ", "))
		} else if slices.Index(b.Health.Checks, c) < i {
			wrong("health.checks[%d]: repeats %s: remove it", i, c)
		}
	}
	return errors.Join(errs...)
}

// onlyCmdline refuses fields that only config.txt has, and removals with GRUB.
func (b *BootConfig) onlyCmdline() (errs []error) {
	if len(b.Config.All)+len(b.Config.DTParam)+len(b.Config.DTOverlay) > 0 {
		errs = append(errs, fmt.Errorf(
			"config: has settings of config.txt, which backend %s does not know: use cmdline, or %s", b.Backend, BootConfigTxt))
	}
	if b.Backend == BootGrub && len(b.Cmdline.Remove) > 0 {
		errs = append(errs, errors.New("cmdline.remove: Flotilla cannot remove words of GRUB's "+
			"entries: add a word that overrides the old one, or remove it from /etc/default/grub"))
	}
	if b.Trial == TrialTryboot || b.Trial == TrialDeadman && b.Backend == BootGrub {
		errs = append(errs, fmt.Errorf("trial: %s is not supported by backend %s: use %s", b.Trial, b.Backend,
			TrialAuto))
	}
	return errs
}

func (s *BootSettings) validate() (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if n := len(s.All); n > MaxBootEntries {
		wrong("config.all: has %d entries: at most %d are allowed", n, MaxBootEntries)
	}
	for _, k := range slices.Sorted(maps.Keys(s.All)) {
		at := fmt.Sprintf("config.all.%.40q", k)
		switch v := s.All[k]; {
		case slices.Contains(bootRefused, k):
			wrong("%s: is refused: with it the board would not boot the files that the trial tests", at)
		case !slices.Contains(bootKeys, k):
			wrong("%s: is not a key that a profile may set: %s", at, strings.Join(bootKeys, " "))
		case !bootValue.MatchString(v):
			wrong("%s: has the value %.40q: use 1 to 128 of letters, digits and _.,:=@/+-", at, v)
		case len(k)+1+len(v) > MaxBootLine:
			wrong("%s: has more than %d characters with its key, and the firmware reads no more of a line", at, MaxBootLine)
		}
	}
	for _, list := range []struct {
		name   string
		values []string
	}{{"dtparam", s.DTParam}, {"dtoverlay", s.DTOverlay}} {
		if n := len(list.values); n > MaxBootEntries {
			wrong("config.%s: has %d entries: at most %d are allowed", list.name, n, MaxBootEntries)
		}
		for i, v := range list.values {
			at := fmt.Sprintf("config.%s[%d]", list.name, i)
			name, _, _ := strings.Cut(v, "=")
			name, _, _ = strings.Cut(name, ",")
			switch {
			case !bootValue.MatchString(v):
				wrong("%s: is %.40q: use 1 to 128 of letters, digits and _.,:=@/+-", at, v)
			case list.name == "dtoverlay" && (OverlayOf(v) == "" || strings.Contains(v, "..")):
				wrong("%s: %.40q does not begin with the name of an overlay: letters, digits, _ and -, without a path", at, v)
			case !bootName.MatchString(name):
				wrong("%s: %.40q does not begin with a name", at, v)
			case len(list.name)+1+len(v) > MaxBootLine:
				wrong("%s: has more than %d characters with its key, and the firmware reads no more of a line", at, MaxBootLine)
			case slices.Index(list.values, v) < i:
				wrong("%s: repeats %s: remove it", at, v)
			}
		}
	}
	return errs
}

// OverlayOf returns the name of the overlay that a dtoverlay loads, or "".
func OverlayOf(dtoverlay string) string {
	name, _, _ := strings.Cut(dtoverlay, ",")
	if !bootName.MatchString(name) {
		return ""
	}
	return name
}

// validate checks the words. It allows ours, the watchdog's word.
func (c *BootCmdline) validate(ours string) (errs []error) {
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, list := range []struct {
		name  string
		words []string
	}{{"cmdline.add", c.Add}, {"cmdline.remove", c.Remove}} {
		if n := len(list.words); n > MaxBootEntries {
			wrong("%s: has %d entries: at most %d are allowed", list.name, n, MaxBootEntries)
		}
		for i, w := range list.words {
			key, _, _ := strings.Cut(w, "=")
			prefixed := slices.ContainsFunc(cmdlineRefusedPrefixes, func(p string) bool { return strings.HasPrefix(key, p) })
			switch {
			case list.name == "cmdline.add" && w == ours && ours != "" && slices.Index(list.words, w) == i:
			case !bootValue.MatchString(w):
				wrong("%s[%d]: is %.40q: use 1 to 128 of letters, digits and _.,:=@/+-", list.name, i, w)
			case prefixed || slices.Contains(cmdlineRefused, key):
				wrong("%s[%d]: %.40q is refused: with it the board could start another system or program", list.name, i, w)
			case slices.Index(list.words, w) < i:
				wrong("%s[%d]: repeats %s: remove it", list.name, i, w)
			case list.name == "cmdline.remove" && slices.Contains(c.Add, w):
				wrong("%s[%d]: %s is in cmdline.add too: choose one", list.name, i, w)
			}
		}
	}
	return errs
}

// DeepCopy returns a copy that shares nothing.
func (b *BootConfig) DeepCopy() *BootConfig {
	if b == nil {
		return nil
	}
	out := *b
	out.Config.All = maps.Clone(b.Config.All)
	out.Config.DTParam = slices.Clone(b.Config.DTParam)
	out.Config.DTOverlay = slices.Clone(b.Config.DTOverlay)
	out.Cmdline.Add = slices.Clone(b.Cmdline.Add)
	out.Cmdline.Remove = slices.Clone(b.Cmdline.Remove)
	out.Watchdog = clone(b.Watchdog)
	out.Health.Checks = slices.Clone(b.Health.Checks)
	return &out
}
