package agent

import (
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// underUnit is set for a child that has the privileges of the shipped unit.
const underUnit = "FLOTILLA_TEST_UNDER_UNIT"

func TestMain(m *testing.M) {
	if os.Getenv(underUnit) != "" {
		if err := onlyNetworks(); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// onlyNetworks is RestrictNamespaces=net for setns: a namespace that is not named, or
// another one than a network, is refused.
func onlyNetworks() error {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
	)
	filter := []unix.SockFilter{
		{Code: load, K: 0}, // the call
		{Code: equal, K: unix.SYS_SETNS, Jf: 3},
		{Code: load, K: 16 + 8}, // its second argument, on the little-endian processors that there are tests on
		{Code: equal, K: unix.CLONE_NEWNET, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}

// What takes privileges the agent can do with no more than the shipped unit leaves it:
// port-forward to what listens on 127.0.0.1 only, and volumes of others in memory.
func TestRealEngineUnderTheUnitsPrivileges(t *testing.T) {
	if os.Getenv(underUnit) != "" || os.Geteuid() != 0 {
		t.Skip("this needs root, and no child of its own")
	}
	setpriv, err := exec.LookPath("setpriv")
	if err != nil {
		t.Skip(err)
	}
	realEngines(t, func(t *testing.T, _ string) { // skips where there is none
		unit, err := os.ReadFile("../../firmware-configs/systemd/flotilla-device.service")
		made(t, err)
		bounding := regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`).FindSubmatch(unit)
		if bounding == nil || !strings.Contains(string(unit), "\nRestrictNamespaces=net\n") || !strings.Contains(string(unit), "\nNoNewPrivileges=yes\n") {
			t.Fatal("the unit restricts something else than this test")
		}
		set := "-all"
		for _, c := range strings.Fields(string(bounding[1])) {
			set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
		}
		self, err := os.Executable()
		made(t, err)
		engineName := t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]
		child := exec.CommandContext(t.Context(), setpriv, "--no-new-privs", "--inh-caps="+set, "--bounding-set="+set, self,
			"-test.run=^(TestRealEngineTalks|TestRealEngineSecretsAreNobodyElsesBusiness)$/^"+engineName+"$", "-test.v")
		child.Env = append(os.Environ(), underUnit+"=1")
		out, err := child.CombinedOutput()
		if err != nil || strings.Count(string(out), "\n--- PASS: ") != 2 || strings.Contains(string(out), "--- SKIP") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}
