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

// A deviceProcess is a child process that runs many devices.
type deviceProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func newCrew(args ...string) (*deviceProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	k := &deviceProcess{cmd: exec.Command(self, args...)}
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

// cpuOfAll returns the processor time of all processes.
func cpuOfAll(processes []*deviceProcess) (sum time.Duration) {
	for _, k := range processes {
		sum += harness.CPUOf(k.cmd.Process.Pid)
	}
	return sum
}

func (k *deviceProcess) end() {
	_ = k.in.Close()
	_ = k.cmd.Process.Kill()
	_ = k.cmd.Wait()
}

// order sends a command to all processes, and waits until each process has completed it.
func order(processes []*deviceProcess, what string) error {
	for _, k := range processes {
		if _, err := fmt.Fprintln(k.in, what); err != nil {
			return fmt.Errorf("command %s to devices: %w", what, err)
		}
	}
	for _, k := range processes {
		if line, err := k.out.ReadString('\n'); line != "done\n" {
			return fmt.Errorf("devices did not %s: %q %w", what, line, err)
		}
	}
	return nil
}

// startDevices starts the devices of a fleet. A token is valid for at most 10,000 devices, so each
// process has its own token.
func startDevices(ctx context.Context, a *harness.Hub, n int, secure bool, more ...string) (processes []*deviceProcess,
	err error) {
	if !secure {
		return processesFor(n, append([]string{"-fleet-devices", a.Dev}, more...)...)
	}
	for from := 0; from < n; from += perProcess {
		to := min(n, from+perProcess)
		token, err := a.Token(ctx, "--site", "oslo", "--uses", fmt.Sprint(to-from))
		if err != nil {
			return processes, err
		}
		k, err := newDeviceProcess(from, to,
			append([]string{"-fleet-devices", a.MQTT, "-fleet-join", "https://" + a.HTTPS, "-fleet-token", token}, more...)...)
		if err != nil {
			return processes, err
		}
		processes = append(processes, k)
	}
	return processes, nil
}
