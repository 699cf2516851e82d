package firmwareconfigs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the test needs systemd-analyze (package systemd): %v", err)
		}
		t.Skipf("the test needs systemd-analyze (package systemd): %v", err)
	}
	daemon := []string{"Type=notify", "WatchdogSec=60", "Restart=always"}
	for unit, want := range map[string][]string{
		"flotilla-hub.service":    append(daemon, "ExecStart=/usr/local/bin/flotilla-hub serve", "StateDirectory=flotilla/hub", "TimeoutStartSec=1h"),
		"flotilla-device.service": append(daemon, "ExecStart=/usr/local/bin/flotilla-device run", "StateDirectory=flotilla/device"),

		"flotilla-boot-helper.service":  {"ExecStart=/usr/local/bin/flotilla-device boot-helper", "CapabilityBoundingSet=", "ReadWritePaths=-/boot"},
		"flotilla-boot-restore.service": {"ExecStart=/usr/local/bin/flotilla-device boot-helper --restore", "DefaultDependencies=no", "WantedBy=sysinit.target"},
		"flotilla-boot-deadman.service": {"ExecStart=/usr/local/bin/flotilla-device boot-helper --deadman", "Restart=on-failure"},
	} {
		text, err := os.ReadFile(filepath.Join("systemd", unit))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range want {
			if !strings.Contains("\n"+string(text), "\n"+line+"\n") {
				t.Errorf("%s lacks the line %s", unit, line)
			}
		}
		// The program is not installed on this machine, so verify the unit with another program.
		dir := t.TempDir()
		file := filepath.Join(dir, unit)
		if socket, err := os.ReadFile(filepath.Join("systemd",
			strings.TrimSuffix(unit, ".service")+".socket")); err == nil {
			if err := os.WriteFile(filepath.Join(dir, strings.TrimSuffix(unit, ".service")+".socket"), socket,
				0o644); err != nil {
				t.Fatal(err)
			}
		}
		text = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/\S+`).ReplaceAll(text, []byte("ExecStart=/bin/true"))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		// The tool exits with 0 for unknown settings, so its output must be empty too.
		if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil ||
			strings.Contains(string(out), unit) {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}

// Containers see the agent's mounts only if both have the same mount namespace. Each of these
// settings creates another one.
func TestContainersSeeTheAgentsMounts(t *testing.T) {
	text, err := os.ReadFile("systemd/flotilla-device.service")
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`(?m)^(Protect(System|Home|Kernel\w+|ControlGroups|Proc|Hostname)|ProcSubset|Private\w+|ReadOnlyPaths|ReadWritePaths|InaccessiblePaths|ExecPaths|NoExecPaths|Bind(ReadOnly)?Paths|TemporaryFileSystem|Root\w+|MountFlags|MountAPIVFS|DynamicUser)=.*`)
	for _, line := range own.FindAllString(string(text), -1) {
		t.Errorf("the setting %s gives the agent another mount namespace", line)
	}
	for _, want := range []string{
		`(?m)^CapabilityBoundingSet=.*\bCAP_SYS_ADMIN\b`, // needed to mount
		// needed to set the group bit of a volume with another group than the agent's
		`(?m)^CapabilityBoundingSet=.*\bCAP_FSETID\b`,
		`(?m)^CapabilityBoundingSet=.*\bCAP_SYSLOG\b`, // needed to read which process the kernel has killed
		`(?m)^SystemCallFilter=.*@mount\b`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("the unit lacks %s", want)
		}
	}
}

// Hub and agent ask the kernel whether a time service adjusts the clock. That decides how they
// treat a certificate that is not valid yet, and a clock that is wrong by years.
func TestUnitsMayReadTheStateOfTheClock(t *testing.T) {
	for _, unit := range []string{"flotilla-hub.service", "flotilla-device.service"} {
		text, err := os.ReadFile(filepath.Join("systemd", unit))
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^ProtectClock=`).Match(text) {
			t.Errorf("%s: ProtectClock prevents reading the state of the clock", unit)
		}
		for _, call := range []string{"adjtimex", "clock_adjtime"} {
			if !regexp.MustCompile(`(?m)^SystemCallFilter=[^~\n]*\b` + call + `\b`).Match(text) {
				t.Errorf("%s: SystemCallFilter lacks %s", unit, call)
			}
		}
		if regexp.MustCompile(`(?m)^CapabilityBoundingSet=.*CAP_SYS_TIME`).Match(text) {
			t.Errorf("%s: CAP_SYS_TIME allows setting the clock", unit)
		}
	}
}
