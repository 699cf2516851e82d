package kubectltest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A Session is a running kubectl that the test interacts with.
type Session struct {
	t    testing.TB
	args []string
	cmd  *exec.Cmd
	in   io.WriteCloser // kubectl's input
	tty  *os.File       // kubectl's terminal, or nil

	mu    sync.Mutex
	out   bytes.Buffer // output that Await has not returned yet
	read  sync.WaitGroup
	ended chan struct{} // closed when the output has ended
}

// Start runs kubectl without a terminal, with output and errors as one text.
func Start(t testing.TB, kubectl, kubeconfig string, args ...string) *Session {
	t.Helper()
	s := command(t, kubectl, kubeconfig, args)
	in, err := s.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.in, s.cmd.Stdout, s.cmd.Stderr = in, s, s
	s.start()
	return s
}

// StartTerminal runs kubectl on a terminal of 80 by 24 characters.
func StartTerminal(t testing.TB, kubectl, kubeconfig string, args ...string) *Session {
	t.Helper()
	s := command(t, kubectl, kubeconfig, args)
	ours, its, err := OpenTerminal()
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	s.in, s.tty = ours, ours
	s.Resize(80, 24)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = its, its, its
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	s.read.Go(func() { _, _ = io.Copy(s, ours) }) // the copy fails when every process has closed the terminal
	s.start()
	_ = its.Close()
	t.Cleanup(func() { _ = ours.Close() })
	return s
}

func command(t testing.TB, kubectl, kubeconfig string, args []string) *Session {
	s := &Session{t: t, args: args, cmd: exec.Command(kubectl, args...), ended: make(chan struct{})}
	s.cmd.Env = Env(t, kubeconfig)
	s.cmd.WaitDelay = patience
	return s
}

func (s *Session) start() {
	s.t.Helper()
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait() // ProcessState has the exit code
		s.read.Wait()
		close(s.ended)
	}()
	s.t.Cleanup(s.Kill)
}

// Write appends output of kubectl.
func (s *Session) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(b)
}

// Say writes to kubectl's input. On a terminal a line must end with "\r".
func (s *Session) Say(text string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, text); err != nil {
		s.t.Fatalf("write to the input of kubectl %s: %v", strings.Join(s.args, " "), err)
	}
}

// Shut closes kubectl's input.
func (s *Session) Shut() { _ = s.in.Close() }

// Await waits for a text in the output. It returns the output up to the end of that text, from
// where the last Await ended.
func (s *Session) Await(text string) string {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		over := s.over()
		s.mu.Lock()
		printed := s.out.String()
		i := strings.Index(printed, text)
		if i >= 0 {
			printed = string(s.out.Next(i + len(text)))
		}
		s.mu.Unlock()
		switch {
		case i >= 0:
			return printed
		case over, time.Now().After(end):
			s.t.Fatalf("the output of kubectl %s (ended: %t) does not contain %q:\n%s", strings.Join(s.args, " "), over, text, printed)
		}
	}
}

func (s *Session) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Resize changes the size of the terminal.
func (s *Session) Resize(columns, rows uint16) {
	s.t.Helper()
	if err := SetSize(s.tty, columns, rows); err != nil {
		s.t.Fatalf("resize the terminal: %v", err)
	}
}

// Signal sends kubectl a signal.
func (s *Session) Signal(sig os.Signal) { _ = s.cmd.Process.Signal(sig) }

// Kill ends kubectl with SIGKILL.
func (s *Session) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// End waits until kubectl has ended, and returns the rest of its output and its exit code.
func (s *Session) End() (rest string, code int) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.t.Fatalf("kubectl %s has not ended:\n%s", strings.Join(s.args, " "), s.out.String())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String(), s.cmd.ProcessState.ExitCode()
}

// OpenTerminal opens a pseudo-terminal. The test uses one side as a person, the program uses the
// other.
func OpenTerminal() (person, program *os.File, err error) {
	person, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	n, err := control(person, func(fd int) (int, error) {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil { // unlocks the program's side
			return 0, err
		}
		return unix.IoctlGetInt(fd, unix.TIOCGPTN)
	})
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		_ = person.Close()
		return nil, nil, err
	}
	return person, program, nil
}

// SetSize sets the size of a terminal.
func SetSize(terminal *os.File, columns, rows uint16) error {
	_, err := control(terminal, func(fd int) (int, error) {
		return 0, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows})
	})
	return err
}

// control runs a system call on a file, and keeps the file non-blocking.
func control(f *os.File, call func(fd int) (int, error)) (n int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { n, failed = call(int(fd)) })
	return n, errors.Join(err, failed)
}
