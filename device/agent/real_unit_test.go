package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// underUnit is set in a process that runs with the privileges of the shipped unit.
const (
	testNodes = "FLOTILLA_TEST_NODES" // a directory with device nodes, made before the restrictions
	underUnit = "FLOTILLA_TEST_UNDER_UNIT"
	inForce   = "in force"
)

// The agent must work under its systemd unit. So, as root, every test of this package runs with the
// unit's capabilities and filters.
func TestMain(m *testing.M) {
	if err := beUnderUnit(); err != nil {
		fmt.Fprintln(os.Stderr, "take the privileges of the unit:", err)
		os.Exit(1)
	}
	code := m.Run()
	if dir := os.Getenv(testNodes); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

func beUnderUnit() error {
	setpriv, err := exec.LookPath("setpriv")
	if os.Geteuid() != 0 || runtime.GOARCH != "amd64" || err != nil { // the filter supports only this architecture
		return nil
	}
	unit, err := os.ReadFile("../../firmware-configs/systemd/flotilla-device.service")
	if err != nil {
		return err
	}
	if os.Getenv(underUnit) == "" {
		nodes, err := os.MkdirTemp("", "flotilla-test-nodes")
		if err != nil {
			return err
		}
		for _, minor := range []int{3, 5} {
			if err := unix.Mknod(filepath.Join(nodes, strconv.Itoa(minor)), unix.S_IFCHR|0o660,
				int(unix.Mkdev(1, uint32(minor)))); err != nil {
				return err
			}
		}
		set := "-all"
		for _, c := range setting(unit, "CapabilityBoundingSet") {
			set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
		}
		args := append([]string{setpriv, "--no-new-privs", "--inh-caps=" + set, "--bounding-set=" + set}, os.Args...)
		return syscall.Exec(setpriv, args, append(os.Environ(), underUnit+"=capabilities", testNodes+"="+nodes))
	}
	if os.Getenv(underUnit) == inForce { // a child process of a test
		return os.Unsetenv(testNodes)
	}
	filter, err := unitFilter(unit)
	if err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	return os.Setenv(underUnit, inForce)
}

// setting returns the words of a setting of the unit.
func setting(unit []byte, name string) []string {
	m := regexp.MustCompile(`(?m)^` + name + `=(.*)$`).FindSubmatch(unit)
	if m == nil {
		return nil
	}
	return strings.Fields(string(m[1]))
}

// unitFilter is the seccomp filter that systemd derives from the unit's SystemCallFilter,
// RestrictNamespaces, RestrictAddressFamilies, MemoryDenyWriteExecute, RestrictRealtime and
// LockPersonality. Without systemd-analyze, SystemCallFilter allows every call, because the calls
// of its sets are unknown.
func unitFilter(unit []byte) ([]unix.SockFilter, error) {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		and   = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		any   = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K

		allow  = unix.SECCOMP_RET_ALLOW
		refuse = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	)
	for name, want := range map[string]string{"RestrictNamespaces": "net", "NoNewPrivileges": "yes",
		"MemoryDenyWriteExecute": "yes", "RestrictRealtime": "yes",
		"LockPersonality": "yes", "SystemCallArchitectures": "native"} {
		if got := strings.Join(setting(unit, name), " "); got != want {
			return nil, fmt.Errorf("the unit has %s=%s, but this test restricts %s", name, got, want)
		}
	}
	argument := func(i int) unix.SockFilter { return unix.SockFilter{Code: load, K: uint32(16 + 8*i)} }
	number := unix.SockFilter{Code: load}
	var f []unix.SockFilter
	// of adds instructions for one call. If they do not return, the next check follows.
	of := func(nr uint32, body ...unix.SockFilter) {
		f = append(f, number, unix.SockFilter{Code: equal, K: nr, Jf: uint8(len(body))})
		f = append(f, body...)
	}

	families := setting(unit, "RestrictAddressFamilies")
	body := []unix.SockFilter{argument(0)}
	for i, name := range families {
		known := map[string]uint32{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6,
			"AF_NETLINK": unix.AF_NETLINK}
		if known[name] == 0 {
			return nil, fmt.Errorf("RestrictAddressFamilies=%s is unknown to this test", name)
		}
		body = append(body, unix.SockFilter{Code: equal, K: known[name], Jt: uint8(len(families) - i)})
	}
	of(unix.SYS_SOCKET, append(body, unix.SockFilter{Code: ret,
		K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)})...)

	others := uint32(unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID)
	for _, nr := range []uint32{unix.SYS_UNSHARE, unix.SYS_CLONE} {
		of(nr, argument(0), unix.SockFilter{Code: any, K: others, Jf: 1}, unix.SockFilter{Code: ret, K: refuse})
	}
	of(unix.SYS_SETNS, argument(1), unix.SockFilter{Code: equal, K: unix.CLONE_NEWNET, Jt: 1},
		unix.SockFilter{Code: ret, K: refuse})
	of(unix.SYS_CLONE3, unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	of(unix.SYS_MMAP, argument(2), unix.SockFilter{Code: and, K: unix.PROT_WRITE | unix.PROT_EXEC},
		unix.SockFilter{Code: equal, K: unix.PROT_WRITE | unix.PROT_EXEC, Jf: 1}, unix.SockFilter{Code: ret, K: refuse})
	for _, nr := range []uint32{unix.SYS_MPROTECT, unix.SYS_PKEY_MPROTECT} {
		of(nr, argument(2), unix.SockFilter{Code: any, K: unix.PROT_EXEC, Jf: 1}, unix.SockFilter{Code: ret, K: refuse})
	}
	of(unix.SYS_PERSONALITY, argument(0), unix.SockFilter{Code: equal, K: 0xffffffff, Jt: 1},
		unix.SockFilter{Code: ret, K: refuse})
	of(unix.SYS_SCHED_SETSCHEDULER, argument(1), unix.SockFilter{Code: equal, K: 0, Jt: 1},
		unix.SockFilter{Code: ret, K: refuse})

	calls, err := systemCalls(append(setting(unit, "SystemCallFilter"), "@default"))
	if errors.Is(err, exec.ErrNotFound) {
		return append(f, unix.SockFilter{Code: ret, K: allow}), nil
	}
	if err != nil {
		return nil, err
	}
	f = append(f, number)
	for _, nr := range calls {
		f = append(f, unix.SockFilter{Code: equal, K: nr, Jf: 1}, unix.SockFilter{Code: ret, K: allow})
	}
	return append(f, unix.SockFilter{Code: ret, K: refuse}), nil
}

// systemCalls returns the numbers of the named calls and sets, such as "@mount".
func systemCalls(names []string) ([]uint32, error) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return nil, exec.ErrNotFound
	}
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		return nil, fmt.Errorf("find golang.org/x/sys: %w", err)
	}
	table, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_amd64.go"))
	if err != nil {
		return nil, err
	}
	numbers := map[string]uint32{}
	for _, m := range regexp.MustCompile(`(?m)^\s+SYS_(\w+)\s+= (\d+)$`).FindAllSubmatch(table, -1) {
		nr, _ := strconv.ParseUint(string(m[2]), 10, 32)
		numbers[strings.ToLower(string(m[1]))] = uint32(nr)
	}
	var calls []uint32
	for seen := map[string]bool{}; len(names) > 0; {
		name := names[0]
		names = names[1:]
		switch {
		case seen[name]:
		case strings.HasPrefix(name, "@"):
			out, err := exec.Command(analyze, "syscall-filter", name).Output()
			if err != nil {
				return nil, fmt.Errorf("systemd-analyze syscall-filter %s: %w", name, err)
			}
			for line := range strings.Lines(string(out)) {
				if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
					names = append(names, line)
				}
			}
		default:
			if nr, ok := numbers[name]; ok { // some calls belong to other architectures
				calls = append(calls, nr)
			}
		}
		seen[name] = true
	}
	slices.Sort(calls)
	return slices.Compact(calls), nil
}

// The other tests prove nothing about the unit if its restrictions are not in force.
func TestTheUnitsPrivilegesAreInForce(t *testing.T) {
	if os.Getenv(underUnit) == "" {
		t.Skip("the test needs root, setpriv and amd64")
	}
	refused := map[string]func() error{
		"make a namespace of host names": func() error { return unix.Unshare(unix.CLONE_NEWUTS) },
		"make a packet socket":           func() error { _, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0); return err },
		"make memory that is written and run": func() error {
			_, err := unix.Mmap(-1, 0, 4096, unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE)
			return err
		},
	}
	if _, err := exec.LookPath("systemd-analyze"); err == nil {
		refused["trace a process"] = func() error { // without the filter the error is ESRCH
			if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_CONT, 1<<30, 0, 0, 0, 0); errno == unix.EPERM {
				return errno
			}
			return nil
		}
	}
	for action, try := range refused {
		if err := try(); err == nil {
			t.Errorf("despite the unit's restrictions a process can %s", action)
		}
	}
	unit, err := os.ReadFile("../../firmware-configs/systemd/flotilla-device.service")
	must(t, err)
	capabilities := 0
	for c := range uintptr(unix.CAP_LAST_CAP + 1) {
		has, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0, 0, 0, 0)
		if errno == 0 && has == 1 {
			capabilities++
		}
	}
	if set := setting(unit, "CapabilityBoundingSet"); capabilities > len(set) {
		t.Errorf("the process has %d capabilities, the unit allows %d: %q", capabilities, len(set), set)
	}
}
