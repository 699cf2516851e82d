package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

// A crew is a process of devices.
type crew struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func newCrew(args ...string) (*crew, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	k := &crew{cmd: exec.Command(self, args...)}
	k.cmd.Stderr = os.Stderr
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if k.in, err = k.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	k.out = bufio.NewReader(out)
	return k, k.cmd.Start()
}

// cpuOfAll is the time that crews have computed.
func cpuOfAll(crews []*crew) (sum time.Duration) {
	for _, k := range crews {
		sum += harness.CPUOf(k.cmd.Process.Pid)
	}
	return sum
}

func (k *crew) end() {
	_ = k.in.Close()
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

// order tells all crews the same, and waits until each has done it.
func order(crews []*crew, what string) error {
	for _, k := range crews {
		if _, err := fmt.Fprintln(k.in, what); err != nil {
			return fmt.Errorf("tell devices to %s: %w", what, err)
		}
	}
	for _, k := range crews {
		if line, err := k.out.ReadString('\n'); line != "done\n" {
			return fmt.Errorf("devices did not %s: %q %w", what, line, err)
		}
	}
	return nil
}

// crews starts the devices of a fleet. A token is for 10,000 devices at most: each crew has one.
func crews(ctx context.Context, a *harness.Hub, n int, secure bool, more ...string) (crews []*crew, err error) {
	if !secure {
		return crewsOf(n, append([]string{"-fleet-devices", a.Dev}, more...)...)
	}
	for from := 0; from < n; from += perProcess {
		to := min(n, from+perProcess)
		token, err := a.Token(ctx, "--site", "oslo", "--uses", fmt.Sprint(to-from))
		if err != nil {
			return crews, err
		}
		k, err := crewOf(from, to,
			append([]string{"-fleet-devices", a.MQTT, "-fleet-join", "https://" + a.HTTPS, "-fleet-token", token}, more...)...)
		if err != nil {
			return crews, err
		}
		crews = append(crews, k)
	}
	return crews, nil
}
