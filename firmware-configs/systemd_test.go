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
			t.Fatalf("this test needs systemd-analyze (package systemd): %v", err)
		}
		t.Skipf("this test needs systemd-analyze (package systemd): %v", err)
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
		// The program is not installed here: verify the unit around another one.
		dir := t.TempDir()
		file := filepath.Join(dir, unit)
		if socket, err := os.ReadFile(filepath.Join("systemd", strings.TrimSuffix(unit, ".service")+".socket")); err == nil {
			if err := os.WriteFile(filepath.Join(dir, strings.TrimSuffix(unit, ".service")+".socket"), socket, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/\S+`).ReplaceAll(text, []byte("ExecStart=/bin/true"))
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		// It exits with 0 for unknown settings; what it prints counts.
		if out, err := exec.Command(analyze, "verify", "--man=no", file).CombinedOutput(); err != nil || strings.Contains(string(out), unit) {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}

// Containers see what the agent mounts only where both have one mount namespace, and
// these settings each make another one.
func TestTheAgentsMountsAreSeenByContainers(t *testing.T) {
	text, err := os.ReadFile("systemd/flotilla-device.service")
	if err != nil {
		t.Fatal(err)
	}
	own := regexp.MustCompile(`(?m)^(Protect(System|Home|Kernel\w+|ControlGroups|Proc|Hostname)|ProcSubset|Private\w+|ReadOnlyPaths|ReadWritePaths|InaccessiblePaths|ExecPaths|NoExecPaths|Bind(ReadOnly)?Paths|TemporaryFileSystem|Root\w+|MountFlags|MountAPIVFS|DynamicUser)=.*`)
	for _, line := range own.FindAllString(string(text), -1) {
		t.Errorf("%s gives the agent a mount namespace of its own", line)
	}
	for _, want := range []string{
		`(?m)^CapabilityBoundingSet=.*\bCAP_SYS_ADMIN\b`, // to mount
		`(?m)^CapabilityBoundingSet=.*\bCAP_FSETID\b`,    // the group bit of a volume whose group is not the agent's
		`(?m)^CapabilityBoundingSet=.*\bCAP_SYSLOG\b`,    // whom the kernel has killed
		`(?m)^SystemCallFilter=.*@mount\b`,
	} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("the unit lacks %s", want)
		}
	}
}

// Hub and agent ask the kernel whether a time service keeps the clock: by that they judge a certificate that is not
// good yet, and a clock that has run for years without them.
func TestWhoGoesByAClockMayAskWhetherItIsKept(t *testing.T) {
	for _, unit := range []string{"flotilla-hub.service", "flotilla-device.service"} {
		text, err := os.ReadFile(filepath.Join("systemd", unit))
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^ProtectClock=`).Match(text) {
			t.Errorf("%s: ProtectClock forbids to ask", unit)
		}
		for _, call := range []string{"adjtimex", "clock_adjtime"} {
			if !regexp.MustCompile(`(?m)^SystemCallFilter=[^~\n]*\b` + call + `\b`).Match(text) {
				t.Errorf("%s: its filter has no %s", unit, call)
			}
		}
		if regexp.MustCompile(`(?m)^CapabilityBoundingSet=.*CAP_SYS_TIME`).Match(text) {
			t.Errorf("%s: it could set the clock", unit)
		}
	}
}
