package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/e2e/kubectltest"
)

// commands runs containers' commands on this machine, as its user, with a terminal if asked for.
// Attach greets and echoes lines until one is "end". Port-forward connects to this machine's ports.
type commands struct{}

func (commands) Exec(ctx context.Context, _ *corev1.Pod, o corev1.PodExecOptions, s ask.IO) error {
	cmd := exec.CommandContext(ctx, o.Command[0], o.Command[1:]...)
	var err error
	if o.TTY {
		err = onTerminal(cmd, s)
	} else {
		err = onPipes(cmd, s)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return &ask.ExitError{Code: exit.ExitCode()}
	}
	return err
}

func onPipes(cmd *exec.Cmd, s ask.IO) error {
	cmd.Stdout, cmd.Stderr = s.Stdout, s.Stderr
	if s.Stdin != nil {
		in, err := cmd.StdinPipe()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(in, s.Stdin)
			_ = in.Close()
		}()
	}
	return cmd.Run()
}

func onTerminal(cmd *exec.Cmd, s ask.IO) error {
	ours, its, err := kubectltest.OpenTerminal()
	if err != nil {
		return err
	}
	defer func() { _ = ours.Close() }()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = its, its, its
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	_ = its.Close()
	go func() { _, _ = io.Copy(ours, s.Stdin) }()
	go func() {
		for size := range s.Resize {
			_ = kubectltest.SetSize(ours, size.Width, size.Height)
		}
	}()
	_, _ = io.Copy(s.Stdout, ours) // fails when the command has ended
	return cmd.Wait()
}

func (commands) Attach(_ context.Context, p *corev1.Pod, o corev1.PodAttachOptions, s ask.IO) error {
	b := make([]byte, 100)
	for greeted := false; ; {
		n, err := 0, io.EOF
		if s.Stdin != nil {
			n, err = s.Stdin.Read(b)
		}
		if !greeted {
			_, _ = fmt.Fprintf(s.Stdout, "attached to %s of %s\n", o.Container, p.Name)
			greeted = true
		}
		_, _ = s.Stdout.Write(b[:n])
		if err != nil || strings.Contains(string(b[:n]), "end") {
			return nil
		}
	}
}

func (commands) Forward(ctx context.Context, _ *corev1.Pod, port int32) (io.ReadWriteCloser, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

// streaming returns a server with commands. The device of pi-2 is offline, and beside the running
// pod kiosk-1 some pods cannot be entered. A log is the options of its request.
func streaming() *Server {
	f := seeded()
	f.logs = func(_ context.Context, p *corev1.Pod, o corev1.PodLogOptions, w io.Writer) error {
		b, _ := json.Marshal(o)
		_, err := fmt.Fprintf(w, "%s %s\n", p.Name, b)
		return err
	}
	two := fakePod("two", "pi-1")
	side := two.Spec.Containers[0]
	side.Name = "side"
	two.Spec.Containers = append(two.Spec.Containers, side)
	first := side
	first.Name = "first"
	two.Spec.InitContainers = []corev1.Container{first}
	two.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "first",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0,
			FinishedAt: metav1.NewTime(fakeStart)}}}}
	two.Status.ContainerStatuses = append(two.Status.ContainerStatuses, corev1.ContainerStatus{Name: "side",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}})
	fresh := fakePod("fresh", "pi-1")
	fresh.Status = corev1.PodStatus{Phase: corev1.PodPending}
	done := fakePod("done", "pi-1")
	done.Status = corev1.PodStatus{Phase: corev1.PodSucceeded}
	f.put(two, fresh, done)
	s := newServer(f)
	c := s.Config
	c.Streams, c.Online = commands{}, func(node string) bool { return node != "pi-2" }
	return New(c)
}
