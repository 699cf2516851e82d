package logind

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A fakeBus is a bus with the part of logind that Take uses.
type fakeBus struct {
	conn  *net.UnixConn
	in    *bufio.Reader
	calls []string
	lock  chan *os.File // the test's end of the lock's pipe
}

// encodeAnswer encodes a reply or a signal.
func encodeAnswer(kind byte, replyTo uint32, member, signature string, body []byte) []byte {
	head := []byte{little, kind, 0, 1}
	head = binary.LittleEndian.AppendUint32(head, uint32(len(body)))
	head = binary.LittleEndian.AppendUint32(head, 7)
	var fields []byte
	if replyTo > 0 {
		fields = binary.LittleEndian.AppendUint32(append(pad(fields, 8), 5, 1, 'u', 0), replyTo)
	}
	if member != "" {
		fields = appendString(append(pad(fields, 8), 3, 1, 's', 0), member)
	}
	fields = append(append(append(pad(fields, 8), fieldEnd, 1, 'g', 0), byte(len(signature))), signature+"\x00"...)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(fields)))
	return append(pad(append(head, fields...), 8), body...)
}

func (d *fakeBus) serve(t *testing.T) {
	line := func(want, reply string) {
		if got, err := d.in.ReadString('\n'); err != nil || !strings.Contains(got, want) {
			t.Errorf("the client sends %q, %v, want %s", got, err, want)
		}
		_, _ = d.conn.Write([]byte(reply))
	}
	line(fmt.Sprintf("\x00AUTH EXTERNAL %x", fmt.Sprint(os.Geteuid())), "OK 1234\r\n")
	line("NEGOTIATE_UNIX_FD", "AGREE_UNIX_FD\r\n")
	line("BEGIN", "")
	of := &bus{in: d.in}
	for {
		m, err := of.next()
		if err != nil {
			return
		}
		var args []string
		for at := 0; at < len(m.body); {
			v, next, err := value(m.body, at, 's')
			if err != nil {
				t.Error(err)
				return
			}
			args, at = append(args, string(v)), next
		}
		d.calls = append(d.calls, m.member+" "+strings.Join(args, "|"))
		serial := uint32(len(d.calls))
		switch {
		case m.member == "Inhibit":
			r, w, err := os.Pipe()
			if err != nil {
				t.Error(err)
				return
			}
			d.lock <- r
			_, _, _ = d.conn.WriteMsgUnix(encodeAnswer(answer, serial, "", "h", []byte{0, 0, 0, 0}),
				syscall.UnixRights(int(w.Fd())), nil)
			_ = w.Close()
			_, _ = d.conn.Write(encodeAnswer(signal, 0, "PrepareForShutdown", "b", []byte{1, 0, 0, 0}))
			_, _ = d.conn.Write(encodeAnswer(signal, 0, "PrepareForShutdown", "b", []byte{0, 0, 0, 0}))
		case strings.HasSuffix(args1(args), "InhibitDelayMaxUSec"):
			_, _ = d.conn.Write(
				encodeAnswer(answer, serial, "", "v",
					binary.LittleEndian.AppendUint64([]byte("\x01t\x00\x00\x00\x00\x00\x00"), 5_000_000)),
			)
		case strings.HasSuffix(args1(args), "PreparingForShutdown"):
			_, _ = d.conn.Write(encodeAnswer(signal, 0, "NameAcquired", "s", appendString(nil, ":1.5")))
			_, _ = d.conn.Write(encodeAnswer(answer, serial, "", "v", []byte("\x01b\x00\x00\x00\x00\x00\x00")))
		default:
			_, _ = d.conn.Write(encodeAnswer(answer, serial, "", "s", appendString(nil, ":1.5")))
		}
	}
}

func args1(args []string) string { return strings.Join(args, "|") }

func TestALockWaitsForTheShutdownAndIsReleased(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	d, done := &fakeBus{lock: make(chan *os.File, 1)}, make(chan bool)
	go func() {
		defer close(done)
		conn, err := listener.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		d.conn, d.in = conn, bufio.NewReader(conn)
		d.serve(t)
	}()
	l, err := Take(t.Context(), socket, "stop pods")
	if err != nil {
		t.Fatal(err)
	}
	if l.Most != 5*time.Second || l.Down {
		t.Errorf("the lock has Most %s, Down %v; want 5s and false", l.Most, l.Down)
	}
	for _, want := range []bool{true, false} {
		if down, err := l.Wait(t.Context()); err != nil || down != want {
			t.Errorf("Wait returns %v, %v, want %v", down, err, want)
		}
	}
	if err := l.Release(); err != nil {
		t.Error(err)
	}
	if n, err := (<-d.lock).Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("the lock is still held")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Wait(ctx); err != context.Canceled {
		t.Errorf("with an ended context Wait returns %v", err)
	}
	_ = l.Close()
	<-done
	want := []string{"Hello ",
		"AddMatch type='signal',sender='org.freedesktop.login1',interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'",
		"Get org.freedesktop.login1.Manager|InhibitDelayMaxUSec",
		"Get org.freedesktop.login1.Manager|PreparingForShutdown", "Inhibit shutdown|flotilla-device|stop pods|delay"}
	if got := strings.Join(d.calls, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("the client calls\n%s", got)
	}
}

func TestMessagesOfTheBusAreValidated(t *testing.T) {
	for name, text := range map[string]string{
		"a long body":              "l\x02\x00\x01\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00",
		"long fields":              "l\x02\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\xff\xff\xff\xff",
		"another byte order":       "B\x02\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00",
		"a field that is too long": "l\x02\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x08\x00\x00\x00\x03\x01s\x00\xff\xff\xff\x7f",
		"an unknown kind":          "l\x02\x00\x01\x00\x00\x00\x00\x01\x00\x00\x00\x08\x00\x00\x00\x03\x01x\x00\x00\x00\x00\x00",
	} {
		b := &bus{in: bufio.NewReader(strings.NewReader(text))}
		if _, err := b.next(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
