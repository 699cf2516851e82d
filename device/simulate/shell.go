package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
)

// A shell runs commands in one simulated container: the commands that users and kubectl cp need,
// with a disk in memory.
type shell struct {
	spec engine.Spec
	disk disk
}

func newShell(s engine.Spec) *shell {
	return &shell{s, disk{files: map[string][]byte{"/": nil, "/etc/": nil, "/tmp/": nil,
		"/etc/hostname": []byte(s.Hostname + "\n")}}}
}

// exec implements enginetest.Play.Exec.
func (sh *shell) exec(command []string) enginetest.ExecResult {
	return enginetest.ExecResult{Run: func(ctx context.Context, s engine.Streams) int {
		if s.Stdin == nil {
			s.Stdin = strings.NewReader("")
		}
		return sh.run(ctx, command, s)
	}}
}

// run runs one command.
func (sh *shell) run(ctx context.Context, words []string, s engine.Streams) int {
	if len(words) == 0 {
		return 0
	}
	args := words[1:]
	var err error
	switch path.Base(words[0]) {
	case "sh", "bash", "ash":
		if len(args) >= 2 && args[0] == "-c" {
			code, _ := sh.script(ctx, args[1], s)
			return code
		}
		return sh.interactive(ctx, s)
	case "true", ":":
	case "false":
		return 1
	case "exit":
		code := 0
		if len(args) > 0 {
			code, _ = strconv.Atoi(args[0])
		}
		return code & 255
	case "echo":
		_, _ = fmt.Fprintln(s.Stdout, strings.Join(args, " "))
	case "env", "printenv":
		for _, e := range append([]string{"PATH=/bin", "HOSTNAME=" + sh.spec.Hostname}, sh.spec.Env...) {
			_, _ = fmt.Fprintln(s.Stdout, e)
		}
	case "hostname":
		_, _ = fmt.Fprintln(s.Stdout, sh.spec.Hostname)
	case "date":
		_, _ = fmt.Fprintln(s.Stdout, time.Now().UTC().Format(time.UnixDate))
	case "sleep":
		err = sleep(ctx, args)
	case "cat":
		err = sh.cat(args, s)
	case "ls":
		err = sh.disk.list(args, s.Stdout)
	case "rm":
		sh.disk.remove(args)
	case "test":
		if len(args) == 2 && sh.disk.is(args[0], args[1]) {
			return 0
		}
		return 1
	case "tar":
		err = sh.disk.tar(args, s)
	default:
		_, _ = fmt.Fprintf(s.Stderr, "exec: %q: executable file not found in $PATH (this container is simulated)\n", words[0])
		return 127
	}
	if err != nil {
		_, _ = fmt.Fprintf(s.Stderr, "%s: %v\n", path.Base(words[0]), err)
		return 1
	}
	return 0
}

// script runs commands separated by ; && or ||, until exit. Quotes keep words together; variables
// and pipes are not supported.
func (sh *shell) script(ctx context.Context, text string, s engine.Streams) (code int, exit bool) {
	for _, c := range parse(text) {
		if ctx.Err() != nil || len(c.words) == 0 || c.after == "&&" && code != 0 || c.after == "||" && code == 0 {
			continue
		}
		if code = sh.run(ctx, c.words, s); c.words[0] == "exit" {
			return code, true
		}
	}
	return code, false
}

// interactive runs the lines of stdin. On a terminal it echoes and prompts, as a line discipline
// and a shell do.
func (sh *shell) interactive(ctx context.Context, s engine.Streams) (code int) {
	prompt := func() {
		if s.TTY {
			_, _ = io.WriteString(s.Stdout, "/ # ")
		}
	}
	prompt()
	var line []byte
	one := make([]byte, 1)
	for {
		if _, err := io.ReadFull(s.Stdin, one); err != nil {
			return code
		}
		switch c := one[0]; {
		case s.TTY && c == 3: // ^C
			line = line[:0]
			_, _ = io.WriteString(s.Stdout, "^C\n")
			prompt()
			continue
		case s.TTY && c == 4 && len(line) == 0: // ^D
			return code
		case s.TTY && (c == 8 || c == 127): // backspace
			if len(line) > 0 {
				line = line[:len(line)-1]
				_, _ = io.WriteString(s.Stdout, "\b \b")
			}
			continue
		case c != '\n' && c != '\r':
			if line = append(line, c); s.TTY {
				_, _ = s.Stdout.Write(one)
			}
			continue
		}
		if s.TTY {
			_, _ = io.WriteString(s.Stdout, "\n")
		}
		exit := false
		if code, exit = sh.script(ctx, string(line), s); exit {
			return code
		}
		line = line[:0]
		prompt()
	}
}

// A command is a command of a script, with the operator before it.
type command struct {
	after string // operator before the command: ; && ||
	words []string
}

// parse splits a script into commands.
func parse(text string) []command {
	all := []command{{after: ";"}}
	var word []byte
	quoted, has := byte(0), false
	end := func() {
		if has {
			last := &all[len(all)-1]
			last.words = append(last.words, string(word))
		}
		word, has = nil, false
	}
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted != 0 && c == quoted:
			quoted = 0
		case quoted != 0:
			word = append(word, c)
		case c == '\'' || c == '"':
			quoted, has = c, true
		case c == '\\' && i+1 < len(text):
			i++
			word, has = append(word, text[i]), true
		case c == ' ' || c == '\t':
			end()
		case c == ';' || c == '\n':
			end()
			all = append(all, command{after: ";"})
		case strings.HasPrefix(text[i:], "&&") || strings.HasPrefix(text[i:], "||"):
			end()
			all = append(all, command{after: text[i : i+2]})
			i++
		default:
			word, has = append(word, c), true
		}
	}
	end()
	return all
}

func sleep(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("how long?")
	}
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(args[0], "s"), 64)
	if err != nil {
		return fmt.Errorf("invalid number %q", args[0])
	}
	select {
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	case <-ctx.Done():
	}
	return nil
}

func (sh *shell) cat(names []string, s engine.Streams) error {
	if len(names) == 0 {
		names = []string{"-"}
	}
	for _, name := range names {
		if name == "-" {
			_, _ = io.Copy(s.Stdout, s.Stdin)
			continue
		}
		data, ok := sh.disk.get(name)
		if !ok {
			return fmt.Errorf("can't open %q: no such file", name)
		}
		_, _ = s.Stdout.Write(data)
	}
	return nil
}
