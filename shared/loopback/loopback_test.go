package loopback

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func addresses(t *testing.T, n int) []string {
	t.Helper()
	var all []string
	for range n {
		a, err := Address()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

// Processes that start their search at the same port at the same time get different ports.
func TestTwoProcessesGetDifferentAddresses(t *testing.T) {
	const each = 50
	if from := os.Getenv("LOOPBACK_FROM"); from != "" {
		next, _ = strconv.Atoi(from)
		os.Stdout.WriteString("got " + strings.Join(addresses(t, each), " ") + "\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // wait until the other processes have their ports
		return
	}
	from := next
	var all []string
	var children []func() error
	for range 4 {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "LOOPBACK_FROM="+strconv.Itoa(from))
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 0, 64<<10)
		children = append(children, func() error {
			for !slices.Contains(line, '\n') {
				n, err := out.Read(line[len(line):cap(line)])
				if line = line[:len(line)+n]; err != nil {
					return err
				}
			}
			all = append(all, strings.Fields(strings.TrimPrefix(string(line), "got "))...)
			return nil
		})
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	}
	all = append(all, addresses(t, each)...)
	for _, read := range children {
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) || n != 5*each {
		t.Errorf("got %d addresses, %d of them different, want %d: %s", len(all), n, 5*each, all)
	}
}

func TestAddressSkipsAPortInUse(t *testing.T) {
	a := addresses(t, 1)[0]
	_, port, _ := net.SplitHostPort(a)
	n, _ := strconv.Atoi(port)
	mu.Lock()
	next = (n + 1 - first) % count
	mu.Unlock()
	taken, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(first+next)))
	if err != nil {
		t.Skip(err) // another process uses the port
	}
	defer taken.Close()
	b := addresses(t, 1)[0]
	if b == taken.Addr().String() || b == a {
		t.Errorf("got %s, which is in use", b)
	}
	l, err := net.Listen("tcp", b)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
