package admin

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	linux "golang.org/x/sys/unix"
)

const apartEnv = "FLOTILLA_TEST_APART"

// apart runs the tests in a network namespace with loopback only, if that can be made. Chromium
// aborts pages and half-sent forms (ERR_NETWORK_CHANGED) whenever an address of the machine
// changes, as when a container starts. It returns the tests' exit code, and whether they ran.
func apart() (code int, ran bool) {
	if os.Getenv(apartEnv) != "" {
		if err := loopbackUp(); err != nil {
			panic(fmt.Errorf("a network of the tests' own: %w", err))
		}
		return 0, false
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), apartEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: linux.CLONE_NEWNET, Pdeathsig: syscall.SIGQUIT}
	runtime.LockOSThread()              // Pdeathsig refers to the thread
	if err := cmd.Start(); err != nil { // not root, or namespaces are not available
		return 0, false
	}
	var ended *exec.ExitError
	if err := cmd.Wait(); errors.As(err, &ended) {
		return max(1, ended.ExitCode()), true
	} else if err != nil {
		panic(err)
	}
	return 0, true
}

func loopbackUp() error {
	s, err := linux.Socket(linux.AF_INET, linux.SOCK_DGRAM|linux.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer linux.Close(s)
	lo, err := linux.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(linux.IFF_UP | linux.IFF_RUNNING)
	return linux.IoctlIfreq(s, linux.SIOCSIFFLAGS, lo)
}
