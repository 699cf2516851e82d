package enginetest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/device/engine"
)

// ToolImage is the name of the image with package tool.
const ToolImage = "flotilla.test/tool:1"

// AddTool adds the test image to the fake.
func (t *Fake) AddTool() { t.AddImage(ToolImage, 6<<20, ToolProgram) }

// ToolProgram imitates the test image. It knows the verbs of package tool that need neither files
// nor a network.
func ToolProgram(s engine.Spec, _ int) Play {
	entrypoint, args := []string{"/tool"}, []string{"print", "ready", "then", "wait"}
	if s.Entrypoint != nil {
		entrypoint, args = s.Entrypoint, nil
	}
	if s.Args != nil {
		args = s.Args
	}
	command := slices.Concat(entrypoint, args)
	if command[0] != "/tool" {
		return Play{StartError: fmt.Sprintf("exec: %q: no such file or directory", command[0])}
	}
	play := toolPlay(s, command[1:])
	if run := toolReads(command[1:]); run != nil {
		play = Play{Attached: func(ctx context.Context, s engine.Streams) error { run(ctx, s); return ctx.Err() }}
	}
	if command[1] == "serve" {
		play.Dial = Answering(command[2])
	}
	play.Exec = func(command []string) ExecResult {
		if command[0] != "/tool" {
			return ExecResult{Code: 127, Stderr: fmt.Sprintf("exec: %q: no such file or directory\n", command[0])}
		}
		if run := toolReads(command[1:]); run != nil {
			return ExecResult{Run: run}
		}
		inner := toolPlay(s, command[1:])
		result := ExecResult{Code: inner.ExitCode, After: inner.ExitAfter}
		if !inner.Exits {
			result.After = 1000 * time.Hour
		}
		for _, l := range inner.Lines {
			if l.Stderr {
				result.Stderr += l.Text + "\n"
			} else {
				result.Stdout += l.Text + "\n"
			}
		}
		return result
	}
	return play
}

// toolReads imitates the verbs that read stdin or the terminal, and returns nil for other verbs.
func toolReads(words []string) func(ctx context.Context, s engine.Streams) int {
	if len(words) == 0 {
		return nil
	}
	words = append(words, "", "")
	stdin := func(s engine.Streams) io.Reader {
		if s.Stdin == nil {
			return strings.NewReader("")
		}
		return s.Stdin
	}
	switch words[0] {
	case "cat":
		return func(_ context.Context, s engine.Streams) int {
			_, _ = io.Copy(s.Stdout, stdin(s))
			return 0
		}
	case "sum":
		return func(_ context.Context, s engine.Streams) int {
			h := sha256.New()
			n, _ := io.Copy(h, stdin(s))
			_, _ = fmt.Fprintf(s.Stdout, "%d %x\n", n, h.Sum(nil))
			return 0
		}
	case "noise":
		return func(_ context.Context, s engine.Streams) int {
			n, _ := strconv.ParseInt(words[1], 10, 64)
			_, _ = io.CopyN(s.Stdout, rand.NewChaCha8([32]byte{}), n)
			return 0
		}
	case "size":
		return func(ctx context.Context, s engine.Streams) int {
			for s.TTY {
				select {
				case z := <-s.Resize:
					if fmt.Sprint(z.Width) == words[1] && fmt.Sprint(z.Height) == words[2] {
						_, _ = fmt.Fprintln(s.Stdout, "the terminal is", z.Width, "by", z.Height)
						return 0
					}
				case <-ctx.Done():
					return 137
				}
			}
			_, _ = fmt.Fprintln(s.Stderr, "tool: stdin is not a terminal")
			return 1
		}
	}
	return nil
}

// Answering returns a Play.Dial with an HTTP server at one address, such as :8080; an empty address
// means every port. The server answers every request with 200 and a line.
func Answering(address string) func(ctx context.Context, port int) (net.Conn, error) {
	return func(_ context.Context, port int) (net.Conn, error) {
		if address != "" && !strings.HasSuffix(address, fmt.Sprintf(":%d", port)) {
			return nil, fmt.Errorf("connection refused: nothing listens on port %d", port)
		}
		ours, theirs := net.Pipe()
		go func() {
			defer func() { _ = theirs.Close() }() // only this goroutine uses theirs
			in := bufio.NewReader(theirs)
			for {
				r, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, r.Body)
				body := fmt.Sprintf("hello from port %d\n", port)
				_, err = fmt.Fprintf(theirs, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s",
					len(body), body)
				if err != nil || r.Close {
					return
				}
			}
		}()
		return ours, nil
	}
}

// toolPlay runs the verbs as the tool does and adds up their time.
func toolPlay(s engine.Spec, words []string) Play {
	play := Play{MemoryBytes: 1 << 20, Exits: true}
	if len(words) == 0 {
		return Play{Exits: true, ExitCode: 2,
			Lines: []Line{{Stderr: true, Text: "tool VERB [ARGUMENT]... [then VERB [ARGUMENT]...]..."}}}
	}
	var now time.Duration
	say := func(stderr bool, text string) {
		play.Lines = append(play.Lines, Line{After: now, Stderr: stderr, Text: text})
	}
	environment := append([]string{"PATH=/", "FROM_IMAGE=yes"}, s.Env...)
	for len(words) > 0 {
		end := slices.Index(words, "then")
		if end < 0 {
			end = len(words)
		}
		verb, args := words[0], append(slices.Clone(words[1:end]), "", "")
		words = words[min(end+1, len(words)):]
		text := strings.Join(args[:len(args)-2], " ")
		number, _ := strconv.Atoi(args[0])
		switch verb {
		case "wait":
			play.Exits = false
			return play
		case "serve":
			say(false, "serving on "+args[0])
			play.Exits = false
			return play
		case "stubborn":
			play.Exits, play.StopTakes = false, 1000*time.Hour
			return play
		case "exit":
			play.ExitAfter, play.ExitCode = now, number
			return play
		case "sleep", "spin":
			pause, _ := time.ParseDuration(args[0])
			now += pause
		case "write":
			play.Written += int64(max(len(text)-len(args[0])-1, 0))
			play.Files++
		case "print":
			say(false, text)
		case "complain":
			say(true, text)
		case "lines":
			pause, _ := time.ParseDuration(args[1])
			for i := range number {
				say(false, fmt.Sprintf("line %d", i+1))
				now += pause
			}
		case "env":
			value, found := "", false
			for _, e := range environment {
				if key, v, _ := strings.Cut(e, "="); key == args[0] {
					value, found = v, true
				}
			}
			switch {
			case text == "":
				say(false, strings.Join(environment, "\n"))
			case found:
				say(false, value)
			default:
				say(true, "tool: "+text+" is not set")
				play.ExitAfter, play.ExitCode = now, 1
				return play
			}
		case "memory":
			play.MemoryBytes += uint64(number) << 20
			say(false, fmt.Sprintf("holding %d MiB", number))
		default:
			say(true, fmt.Sprintf("tool: the fake does not play %q", verb))
			play.ExitAfter, play.ExitCode = now, 1
			return play
		}
	}
	play.ExitAfter = now
	return play
}
