package logind

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// maxMessage limits the size of a message; the messages that Lock needs have some hundred bytes.
const maxMessage = 1 << 20

// A bus is a connection to the D-Bus system bus with the part of the protocol that a lock needs:
// calls with string arguments, one at a time, and signals.
type bus struct {
	conn    *net.UnixConn
	in      *bufio.Reader
	serial  uint32
	files   []*os.File // files received with messages
	signals []message  // signals received while a call waited for its reply
}

// A message is a received message.
type message struct {
	kind              byte
	replyTo           uint32
	member, signature string
	body              []byte
}

const (
	call     = 1
	answer   = 2
	failure  = 3
	signal   = 4
	maxWait  = 10 * time.Second // longest wait for a reply
	little   = 'l'
	fieldEnd = 8
)

// dial connects to the system bus at a socket.
func dial(socket string) (*bus, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	b := &bus{conn: conn}
	b.in = bufio.NewReader(receiver{b})
	if err := b.authenticate(); err != nil {
		return nil, errors.Join(fmt.Errorf("log in to D-Bus at %s: %w", socket, err), b.close())
	}
	return b, nil
}

func (b *bus) close() error {
	for _, f := range b.files {
		_ = f.Close() // no caller has taken the file
	}
	return b.conn.Close()
}

// A receiver reads from the connection and collects the files that arrive with the data.
type receiver struct{ *bus }

func (r receiver) Read(p []byte) (int, error) {
	oob := make([]byte, syscall.CmsgSpace(4*8))
	n, oobn, _, _, err := r.conn.ReadMsgUnix(p, oob)
	if messages, e := syscall.ParseSocketControlMessage(oob[:oobn]); e == nil {
		for i := range messages {
			fds, _ := syscall.ParseUnixRights(&messages[i])
			for _, fd := range fds {
				syscall.CloseOnExec(fd)
				r.files = append(r.files, os.NewFile(uintptr(fd), "from D-Bus"))
			}
		}
	}
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// authenticate logs in as the process's user, whose id the kernel confirms.
func (b *bus) authenticate() error {
	if err := b.conn.SetDeadline(time.Now().Add(maxWait)); err != nil {
		return err
	}
	for _, step := range [][2]string{
		{fmt.Sprintf("\x00AUTH EXTERNAL %x\r\n", fmt.Sprint(os.Geteuid())), "OK"},
		{"NEGOTIATE_UNIX_FD\r\n", "AGREE_UNIX_FD"},
	} {
		if _, err := io.WriteString(b.conn, step[0]); err != nil {
			return err
		}
		if line, err := b.in.ReadString('\n'); err != nil || !strings.HasPrefix(line, step[1]) {
			return errors.Join(fmt.Errorf("unexpected response %q", line), err)
		}
	}
	if _, err := io.WriteString(b.conn, "BEGIN\r\n"); err != nil {
		return err
	}
	_, err := b.call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello")
	return err
}

// call calls a method with string arguments and waits for the reply.
func (b *bus) call(to, path, api, method string, args ...string) (message, error) {
	b.serial++
	if err := b.conn.SetDeadline(time.Now().Add(maxWait)); err != nil {
		return message{}, err
	}
	if _, err := b.conn.Write(encode(b.serial, to, path, api, method, args)); err != nil {
		return message{}, err
	}
	for {
		m, err := b.next()
		switch {
		case err != nil:
			return m, fmt.Errorf("%s: %w", method, err)
		case m.kind == signal:
			b.signals = append(b.signals, m)
		case m.replyTo != b.serial:
		case m.kind == failure:
			why, _ := text(m.body, m.signature)
			return m, fmt.Errorf("%s: %s", method, why)
		default:
			return m, nil
		}
	}
}

// signal waits for the next signal.
func (b *bus) signal() (message, error) {
	if len(b.signals) > 0 {
		m := b.signals[0]
		b.signals = b.signals[1:]
		return m, nil
	}
	if err := b.conn.SetDeadline(time.Time{}); err != nil {
		return message{}, err
	}
	for {
		if m, err := b.next(); err != nil || m.kind == signal {
			return m, err
		}
	}
}

// encode encodes a method call.
func encode(serial uint32, to, path, api, method string, args []string) []byte {
	var body []byte
	for _, s := range args {
		body = appendString(body, s)
	}
	fields := appendField(nil, 1, 'o', path) // fields start at offset 16, so their alignment is the message's
	fields = appendField(fields, 2, 's', api)
	fields = appendField(fields, 3, 's', method)
	fields = appendField(fields, 6, 's', to)
	if len(args) > 0 {
		fields = append(pad(fields, 8), fieldEnd, 1, 'g', 0, byte(len(args)))
		fields = append(fields, strings.Repeat("s", len(args))+"\x00"...)
	}
	head := make([]byte, 16, 16+len(fields)+8+len(body))
	head[0], head[1], head[3] = little, call, 1
	binary.LittleEndian.PutUint32(head[4:], uint32(len(body)))
	binary.LittleEndian.PutUint32(head[8:], serial)
	binary.LittleEndian.PutUint32(head[12:], uint32(len(fields)))
	return append(pad(append(head, fields...), 8), body...)
}

func appendField(b []byte, code, kind byte, value string) []byte {
	return appendString(append(pad(b, 8), code, 1, kind, 0), value)
}

//go:noinline
func pad(b []byte, to int) []byte {
	for len(b)%to != 0 {
		b = append(b, 0)
	}
	return b
}

//go:noinline
func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(pad(b, 4), uint32(len(s)))
	return append(append(b, s...), 0)
}

var errBroken = errors.New("D-Bus sent an invalid message")

// next reads a message.
func (b *bus) next() (m message, err error) {
	var head [16]byte
	if _, err := io.ReadFull(b.in, head[:]); err != nil {
		return m, err
	}
	size, fields := binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[12:])
	if head[0] != little || size > maxMessage || fields > maxMessage {
		return m, errBroken // only little-endian is supported
	}
	rest := make([]byte, (int(fields)+7)/8*8+int(size))
	if _, err := io.ReadFull(b.in, rest); err != nil {
		return m, err
	}
	m.kind, m.body = head[1], rest[len(rest)-int(size):]
	for at := 0; at+4 < int(fields); {
		code, kind := rest[at], rest[at+2]
		v, next, err := value(rest[:fields], at+4, kind)
		if err != nil {
			return m, err
		}
		switch code {
		case 3:
			m.member = string(v)
		case 5:
			m.replyTo = binary.LittleEndian.Uint32(v)
		case fieldEnd:
			m.signature = string(v)
		}
		at = (next + 7) / 8 * 8
	}
	return m, nil
}

// value parses a value of a basic type and returns the offset after it.
func value(b []byte, at int, kind byte) (v []byte, next int, err error) {
	n, begin := 4, (at+3)/4*4
	switch {
	case kind == 'g' && at < len(b):
		n, begin = int(b[at]), at+1
		next = begin + n + 1
	case (kind == 's' || kind == 'o') && begin+4 <= len(b):
		n, begin = int(binary.LittleEndian.Uint32(b[begin:])), begin+4
		next = begin + n + 1
	case kind == 'u':
		next = begin + 4
	default:
		return nil, 0, errBroken
	}
	if n < 0 || next > len(b) || next < begin {
		return nil, 0, errBroken
	}
	return b[begin : begin+n], next, nil
}

// text returns the string at the start of a body.
func text(body []byte, signature string) (string, error) {
	if !strings.HasPrefix(signature, "s") {
		return "", errBroken
	}
	v, _, err := value(body, 0, 's')
	return string(v), err
}
