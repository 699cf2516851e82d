package enginetest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/shared/loopback"
)

// noise returns the output of the tool's verb noise.
func noise(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// streamCases are the rules for logs, commands, usage and events.
var streamCases = []conformanceCase{
	{"a log separates stdout and stderr", func(k *kit) {
		id := k.start(k.spec("print one then complain oops then print two words"))
		k.await(id, engine.Exited)
		out, problems := k.logs(id, everything)
		k.equal(out, "one\ntwo words\n")
		k.equal(problems, "oops\n")
	}},
	{"the log of a terminal is one stream", func(k *kit) {
		s := k.spec("print one then complain oops")
		s.TTY = true
		id := k.start(s)
		k.await(id, engine.Exited)
		out, problems := k.logs(id, everything)
		k.equal(strings.ReplaceAll(out, "\r\n", "\n"), "one\noops\n")
		k.equal(problems, "")
	}},
	{"a log can be cut to its last lines", func(k *kit) {
		id := k.start(k.spec("lines 10"))
		k.await(id, engine.Exited)
		out, _ := k.logs(id, engine.LogOptions{Tail: 2})
		k.equal(out, "line 9\nline 10\n")
		out, _ = k.logs(id, engine.LogOptions{Tail: 0})
		k.equal(out, "")
	}},
	{"lines can carry their time", func(k *kit) {
		id := k.start(k.spec("print hello you"))
		k.await(id, engine.Exited)
		out, _ := k.logs(id, engine.LogOptions{Tail: -1, Timestamps: true})
		stamp, text, _ := strings.Cut(out, " ")
		k.equal(text, "hello you\n")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		k.must(err)
		if age := time.Since(at); age < -2*time.Second || age > 20*time.Second {
			k.Fatalf("the line has the time %s, want the present time", at)
		}
	}},
	{"a log can begin at a time", func(k *kit) {
		id := k.start(k.spec("print early then sleep 2500ms then print late"))
		c := k.await(id, engine.Exited)
		out, _ := k.logs(id, engine.LogOptions{Tail: -1, Since: c.StartedAt.Add(1500 * time.Millisecond)})
		k.equal(out, "late\n")
	}},
	{"the log continues after a restart", func(k *kit) {
		id := k.start(k.spec("print again"))
		k.await(id, engine.Exited)
		k.must(k.Start(k.ctx, id))
		k.await(id, engine.Exited)
		out, _ := k.logs(id, everything)
		k.equal(out, "again\nagain\n")
	}},
	{"following a log lasts until the container ends", func(k *kit) {
		id := k.start(k.spec("lines 5 100ms then complain done"))
		out, problems := k.logs(id, engine.LogOptions{Tail: -1, Follow: true})
		k.equal(out, "line 1\nline 2\nline 3\nline 4\nline 5\n")
		k.equal(problems, "done\n")
	}},
	{"following a log ends with its context and without an error", func(k *kit) {
		id := k.start(k.spec("print hello then wait"))
		ctx, cancel := context.WithCancel(k.ctx)
		defer cancel()
		output, printed := io.Pipe()
		end := make(chan error, 1)
		go func() { end <- k.Logs(ctx, id, engine.LogOptions{Tail: -1, Follow: true}, printed, io.Discard) }()
		line, err := bufio.NewReader(output).ReadString('\n')
		k.must(err)
		k.equal(line, "hello\n")
		cancel()
		k.must(<-end)
	}},
	{"the log of an unknown container is ErrNotFound", func(k *kit) {
		k.mustBe(k.Logs(k.ctx, "flotilla-test-nothing", everything, io.Discard, io.Discard), engine.ErrNotFound)
	}},
	{"a command in a container has its own output and exit code", func(k *kit) {
		s := k.spec("wait")
		s.Env = []string{"COLOUR=blue"}
		id := k.start(s)
		var out, problems strings.Builder
		code, err := k.Exec(k.ctx, id, strings.Fields("/tool env COLOUR then complain oops then exit 7"),
			engine.Streams{Stdout: &out, Stderr: &problems})
		k.must(err)
		k.equal(code, 7)
		k.equal(out.String(), "blue\n")
		k.equal(problems.String(), "oops\n")
		logged, _ := k.logs(id, everything)
		k.equal(logged, "")
	}},
	{"a missing command has exit code 126 or 127", func(k *kit) {
		id := k.start(k.spec("wait"))
		code, err := k.Exec(k.ctx, id, []string{"/nothing"}, engine.Streams{})
		k.must(err)
		if code != 126 && code != 127 {
			k.Fatalf("the exit code is %d, want 126 or 127", code)
		}
	}},
	{"a command ends with its context", func(k *kit) {
		id := k.start(k.spec("wait"))
		ctx, cancel := context.WithTimeout(k.ctx, 500*time.Millisecond)
		defer cancel()
		_, err := k.Exec(ctx, id, strings.Fields("/tool wait"), engine.Streams{})
		k.mustBe(err, context.DeadlineExceeded)
	}},
	{"EndExec ends one command by its id", func(k *kit) {
		id := k.start(k.spec("wait"))
		type ended struct {
			code int
			err  error
		}
		begin := func() (string, chan ended) {
			began, end := make(chan string, 1), make(chan ended, 1)
			go func() {
				code, err := k.Exec(k.ctx, id, strings.Fields("/tool wait"), engine.Streams{Began: func(exec string) {
					began <- exec
				}})
				end <- ended{code, err}
			}()
			return <-began, end
		}
		first, firstEnd := begin()
		_, secondEnd := begin()
		k.eventually(func() bool { // the id exists before the command starts
			k.must(k.EndExec(k.ctx, first))
			select {
			case e := <-firstEnd:
				k.must(e.err)
				return e.code != 0
			default:
				return false
			}
		}, func() string { return "the command still runs" })
		select {
		case e := <-secondEnd:
			k.Fatalf("the second command has ended with %d, %v", e.code, e.err)
		default:
		}
		k.must(k.EndExec(k.ctx, first))
		k.must(k.EndExec(k.ctx, strings.Repeat("0", 64)))
	}},
	{"a command in a stopped or unknown container is an error", func(k *kit) {
		id := k.create(k.spec("wait"))
		if _, err := k.Exec(k.ctx, id, strings.Fields("/tool exit 0"), engine.Streams{}); err == nil {
			k.Fatal("a command in a stopped container ran")
		}
		_, err := k.Exec(k.ctx, "flotilla-test-nothing", strings.Fields("/tool exit 0"), engine.Streams{})
		k.mustBe(err, engine.ErrNotFound)
	}},
	{"a command reads its whole stdin unchanged", func(k *kit) {
		// Engines detach at the keys ^P^Q on a terminal; without one these bytes are data.
		data := slices.Concat(noise(3<<20), []byte("\x10\x11\x00\x04\x1f\x00"), noise(1000))
		id := k.start(k.spec("wait"))
		out := &strings.Builder{}
		code, err := k.Exec(k.ctx, id, strings.Fields("/tool sum"), engine.Streams{Stdin: bytes.NewReader(data), Stdout: out})
		k.must(err)
		k.equal(code, 0)
		k.equal(out.String(), fmt.Sprintf("%d %x\n", len(data), sha256.Sum256(data)))
	}},
	{"without stdin a command reads end of file", func(k *kit) {
		id := k.start(k.spec("wait"))
		code, err := k.Exec(k.ctx, id, strings.Fields("/tool cat -"), engine.Streams{})
		k.must(err)
		k.equal(code, 0)
	}},
	{"the output of a command arrives complete and unchanged", func(k *kit) {
		id := k.start(k.spec("wait"))
		var out bytes.Buffer
		code, err := k.Exec(k.ctx, id, strings.Fields("/tool noise 3000000"), engine.Streams{Stdout: &out})
		k.must(err)
		k.equal(code, 0)
		k.equal(sha256.Sum256(out.Bytes()), sha256.Sum256(noise(3000000)))
	}},
	{"a command's terminal follows the size of the window", func(k *kit) {
		id := k.start(k.spec("wait"))
		sizes := make(chan engine.Size, 2)
		sizes <- engine.Size{Width: 80, Height: 24}
		sizes <- engine.Size{Width: 123, Height: 45}
		var out, problems strings.Builder
		in, typed := io.Pipe()
		defer typed.Close()
		code, err := k.Exec(k.ctx, id, strings.Fields("/tool size 123 45"),
			engine.Streams{TTY: true, Stdin: in, Stdout: &out, Stderr: &problems, Resize: sizes})
		k.must(err)
		k.equal(code, 0)
		k.equal(out.String(), "the terminal is 123 by 45\r\n")
		k.equal(problems.String(), "")
	}},
	{"the keys ^P^Q reach the command on a terminal", func(k *kit) {
		s := k.spec("cat -")
		s.TTY, s.Stdin = true, true
		id := k.start(s)
		for _, join := range []func(engine.Streams) error{
			func(s engine.Streams) error {
				s.TTY = true
				code, err := k.Exec(k.ctx, id, strings.Fields("/tool cat -"), s)
				if code != 0 {
					err = fmt.Errorf("the command ended with %d", code)
				}
				return err
			},
			func(s engine.Streams) error { return k.Attach(k.ctx, id, s) },
		} {
			in, typed := io.Pipe()
			output, printed := io.Pipe()
			end := make(chan error, 1)
			go func() { end <- join(engine.Streams{Stdin: in, Stdout: printed}); printed.Close() }()
			go func() {
				_, _ = io.WriteString(typed, "\x10\x11")
				_, _ = io.WriteString(typed, "hello\n")
			}()
			lines := bufio.NewScanner(output)
			for lines.Scan() && !strings.Contains(lines.Text(), "hello") {
			}
			if lines.Err() != nil || lines.Text() == "" {
				k.Fatalf("the command printed nothing and ended with %v", <-end)
			}
			go func() { _, _ = io.Copy(io.Discard, output) }()
			_, _ = io.WriteString(typed, "\x04")
			typed.Close()
			k.must(<-end)
		}
	}},
	{"with StdinOnce, stdin ends with the first attachment", func(k *kit) {
		s := k.spec("cat - then print over")
		s.Stdin, s.StdinOnce = true, true
		id := k.start(s)
		k.must(k.Attach(k.ctx, id, engine.Streams{Stdin: strings.NewReader("all\n")}))
		k.await(id, engine.Exited)
	}},
	{"without TTY a command has no terminal", func(k *kit) {
		id := k.start(k.spec("wait"))
		code, err := k.Exec(k.ctx, id, strings.Fields("/tool size 1 1"), engine.Streams{Stdin: strings.NewReader("")})
		k.must(err)
		k.equal(code, 1)
	}},
	{"an attachment passes input and output", func(k *kit) {
		s := k.spec("cat -")
		s.Stdin = true
		id := k.start(s)
		ctx, cancel := context.WithCancel(k.ctx)
		defer cancel()
		in, typed := io.Pipe()
		defer typed.Close()
		output, printed := io.Pipe()
		defer output.Close()
		end := make(chan error, 1)
		go func() { end <- k.Attach(ctx, id, engine.Streams{Stdin: in, Stdout: printed}) }()
		_, err := io.WriteString(typed, "one line\n")
		k.must(err)
		line, err := bufio.NewReader(output).ReadString('\n')
		k.must(err)
		k.equal(line, "one line\n")
		cancel()
		k.mustBe(<-end, context.Canceled)
	}},
	{"the container runs on after an attachment", func(k *kit) {
		// Without a terminal, Podman closes stdin after the first attachment, and the API cannot
		// change that.
		s := k.spec("cat -")
		s.Stdin, s.TTY = true, true
		id := k.start(s)
		ctx, cancel := context.WithTimeout(k.ctx, 500*time.Millisecond)
		defer cancel()
		in, typed := io.Pipe()
		defer typed.Close()
		k.mustBe(k.Attach(ctx, id, engine.Streams{Stdin: in}), context.DeadlineExceeded)
		time.Sleep(300 * time.Millisecond)
		k.equal(k.look(id).State, engine.Running)
	}},
	{"an attachment ends with its container", func(k *kit) {
		id := k.start(k.spec("lines 10000 20ms"))
		output, printed := io.Pipe()
		end := make(chan error, 1)
		go func() { end <- k.Attach(k.ctx, id, engine.Streams{Stdout: printed}) }()
		_, err := output.Read(make([]byte, 1)) // after the first byte it is attached
		k.must(err)
		go func() { _, _ = io.Copy(io.Discard, output) }()
		k.must(k.Stop(k.ctx, id, 10*time.Second))
		k.must(<-end)
		output.Close()
	}},
	{"attaching to a stopped container is an error", func(k *kit) {
		id := k.create(k.spec("wait"))
		if err := k.Attach(k.ctx, id, engine.Streams{}); err == nil || !strings.Contains(err.Error(), "does not run") {
			k.Fatalf("got %v", err)
		}
		k.mustBe(k.Attach(k.ctx, "flotilla-test-nothing", engine.Streams{}), engine.ErrNotFound)
	}},
	{"a port of a container is reached from inside, also on its loopback", func(k *kit) {
		id := k.start(k.spec("serve 127.0.0.1:8080"))
		var conn net.Conn
		k.eventually(func() bool {
			var err error
			conn, err = k.Dial(k.ctx, id, 8080)
			return err == nil
		}, func() string { _, err := k.Dial(k.ctx, id, 8080); return fmt.Sprint(err) })
		defer conn.Close()
		_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		k.must(err)
		answer, err := io.ReadAll(conn)
		k.must(err)
		if !strings.HasPrefix(string(answer), "HTTP/1.1 200") || !strings.Contains(string(answer), "hello") {
			k.Fatalf("the port answers %q, want status 200", answer)
		}
		if _, err := k.Dial(k.ctx, id, 8081); err == nil ||
			!strings.Contains(err.Error(), "connection refused: nothing listens on port 8081") {
			k.Fatalf("got %v", err)
		}
		_, err = k.Dial(k.ctx, "flotilla-test-nothing", 1)
		k.mustBe(err, engine.ErrNotFound)
	}},
	{"a port of a container on the host's network is reached too", func(k *kit) {
		free, err := loopback.Address()
		k.must(err)
		port := int(netip.MustParseAddrPort(free).Port())
		s := k.spec("serve " + free)
		s.HostNetwork = true
		id := k.start(s)
		k.eventually(func() bool {
			conn, err := k.Dial(k.ctx, id, port)
			if err == nil {
				conn.Close()
			}
			return err == nil
		}, func() string { _, err := k.Dial(k.ctx, id, port); return fmt.Sprint(err) })
	}},
	{"a running container uses memory and processor time", func(k *kit) {
		id := k.start(k.spec("memory 32 then wait"))
		var used engine.Usage
		k.eventually(func() bool {
			var err error
			used, err = k.Usage(k.ctx, id)
			k.must(err)
			return used.MemoryBytes >= 32<<20
		}, func() string { return "the container uses too little" })
		if used.MemoryBytes > 48<<20 {
			k.Fatalf("the container uses %d MiB", used.MemoryBytes>>20)
		}
	}},
	{"writes to a container's root are measured", func(k *kit) {
		id := k.start(k.spec("write /big " + strings.Repeat("x", 64<<10) + " then wait"))
		var n int64
		k.eventually(func() bool {
			var err error
			n, err = k.Written(k.ctx, id)
			k.must(err)
			return n >= 64<<10
		}, func() string {
			return fmt.Sprintf("the container has written %d bytes, want less before it writes 65536", n)
		})
		if n > 1<<20 {
			k.Fatalf("Written returns %d bytes", n)
		}
		_, err := k.Written(k.ctx, "flotilla-test-nothing")
		k.mustBe(err, engine.ErrNotFound)
		n, err = k.Files(k.ctx, id)
		k.must(err)
		if n > 100 { // engines that hide the root report 0
			k.Fatalf("Files returns %d files, want at most 100", n)
		}
		_, err = k.Files(k.ctx, "flotilla-test-nothing")
		k.mustBe(err, engine.ErrNotFound)
	}},
	{"a stopped container uses nothing", func(k *kit) {
		used, err := k.Usage(k.ctx, k.create(k.spec("wait")))
		k.must(err)
		k.equal(used, engine.Usage{})
		_, err = k.Usage(k.ctx, "flotilla-test-nothing")
		k.mustBe(err, engine.ErrNotFound)
	}},
	{"events report starts, ends and removals of containers with the label only", func(k *kit) {
		ctx, cancel := context.WithCancel(k.ctx)
		var events atomic.Int64
		end := make(chan error, 1)
		go func() { end <- k.Events(ctx, k.label, func() { events.Add(1) }) }()
		hears := func(what string, do func()) {
			k.Helper()
			before := events.Load()
			do()
			k.eventually(func() bool { return events.Load() > before }, func() string { return "no event for: " + what })
			for before = -1; before != events.Load(); { // wait until no more events arrive
				before = events.Load()
				time.Sleep(200 * time.Millisecond)
			}
		}
		id := ""
		k.eventually(func() bool { return events.Load() > 0 }, func() string { return "no event after the subscription" })
		hears("a creation", func() { id = k.create(k.spec("wait")) })
		hears("a start", func() { k.must(k.Start(k.ctx, id)) })
		// A late event of the start may still arrive once, so one of these rounds has no event.
		k.eventually(func() bool {
			before := events.Load()
			_, err := k.Exec(k.ctx, id, strings.Fields("/tool exit 0"), engine.Streams{})
			k.must(err)
			s := k.spec("exit 0")
			s.Labels = map[string]string{"flotilla.test/case": "another"}
			other := k.start(s)
			k.must(k.Remove(k.ctx, other))
			time.Sleep(500 * time.Millisecond)
			return events.Load() == before
		}, func() string { return "an exec or a container without the label caused an event in each round" })
		hears("an end", func() { k.must(k.Stop(k.ctx, id, 10*time.Second)) })
		hears("a removal", func() { k.must(k.Remove(k.ctx, id)) })
		cancel()
		k.mustBe(<-end, context.Canceled)
	}},
}
