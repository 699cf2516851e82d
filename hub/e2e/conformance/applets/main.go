// Command applets has programs for images of the conformance suite: pause, a web server in place of
// nginx, a part of curl and nc, and a wrapper of two shells. The program's name selects one of
// them.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	var err error
	switch name := filepath.Base(os.Args[0]); name {
	case "pause":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		<-ctx.Done()
		stop()
	case "nginx":
		err = http.ListenAndServe(":80", http.FileServer(http.Dir("/usr/share/nginx/html")))
	case "sh":
		err = shell()
	case "curl":
		err = curl(os.Args[1:])
	case "nc":
		err = nc(os.Args[1:])
	default:
		err = fmt.Errorf("%s: the program name must be pause, nginx, sh, curl or nc", name)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			os.Exit(7) // curl's exit code for "could not connect"
		}
		os.Exit(1)
	}
}

// shell runs busybox's shell, because specs compare its messages, or bash. bash is needed for
// variables such as data-1, which Debian's busybox drops. It is also needed for scripts with nc,
// because busybox's shell would use its own nc, which does not support UDP.
func shell() error {
	program := "/bin/busybox"
	if slices.ContainsFunc(os.Args[1:], netcat.MatchString) {
		program = "/bin/bash"
	}
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); !variable.MatchString(name) {
			program = "/bin/bash"
		}
	}
	return syscall.Exec(program, append([]string{"/bin/sh"}, os.Args[1:]...), os.Environ())
}

// netcat matches a script that runs nc.
var netcat = regexp.MustCompile(`(^|[\s;|&])nc\s`)

// variable matches a valid name of a shell variable.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// options splits arguments like getopt. Flags have no value; every other option takes the next
// word.
func options(args []string, flags string) (opts map[string]string, rest []string, err error) {
	opts = map[string]string{}
	for i := 0; i < len(args); i++ {
		var names []string
		switch word := args[i]; {
		case strings.HasPrefix(word, "--"):
			names = []string{word[2:]}
		case strings.HasPrefix(word, "-") && len(word) > 1:
			names = strings.Split(word[1:], "")
		default:
			rest = append(rest, word)
		}
		for _, name := range names {
			if strings.Contains(" "+flags+" ", " "+name+" ") {
				opts[name] = "yes"
				continue
			}
			if i++; i == len(args) {
				return nil, nil, fmt.Errorf("option %s needs a value", name)
			}
			opts[name] = args[i]
		}
	}
	return opts, rest, nil
}

func seconds(text string) time.Duration {
	f, _ := strconv.ParseFloat(text, 64) // 0 means no limit
	return time.Duration(f * float64(time.Second))
}

func curl(args []string) error {
	o, rest, err := options(args, "g q s i k f L silent globoff")
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return errors.New("usage: curl [options] URL")
	}
	url := rest[0]
	if !strings.Contains(url, "://") {
		url = "http://" + url
	}
	client := &http.Client{Timeout: seconds(o["max-time"]), Transport: &http.Transport{
		DialContext:     (&net.Dialer{Timeout: seconds(o["connect-timeout"])}).DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: o["k"] != ""},
	}}
	if o["L"] == "" {
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	method := http.MethodGet
	if o["X"] != "" {
		method = o["X"]
	}
	r, err := http.NewRequest(method, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(r)
	if err != nil {
		if o["w"] != "" {
			fmt.Print(strings.ReplaceAll(o["w"], "%{http_code}", "000"))
		}
		return err
	}
	defer answer.Body.Close()
	out := io.Writer(os.Stdout)
	if o["o"] != "" {
		file, err := os.Create(o["o"])
		if err != nil {
			return err
		}
		defer file.Close()
		out = file
	}
	if o["i"] != "" {
		fmt.Fprintf(out, "%s %s\r\n", answer.Proto, answer.Status)
		if err := answer.Header.Write(out); err != nil {
			return err
		}
		fmt.Fprint(out, "\r\n")
	}
	if _, err := io.Copy(out, answer.Body); err != nil {
		return err
	}
	if o["w"] != "" {
		fmt.Print(strings.ReplaceAll(o["w"], "%{http_code}", strconv.Itoa(answer.StatusCode)))
	}
	return nil
}

// nc sends its input and prints the responses. It ends when no response has arrived for -w seconds,
// or for one second over UDP.
func nc(args []string) error {
	o, rest, err := options(args, "u z v n")
	if err != nil {
		return err
	}
	if len(rest) != 2 {
		return errors.New("usage: nc [-u] [-z] [-w SECONDS] HOST PORT")
	}
	network, wait := "tcp", seconds(o["w"])
	if o["u"] != "" {
		network = "udp"
	}
	if wait == 0 {
		wait = 5 * time.Second
	}
	c, err := net.DialTimeout(network, net.JoinHostPort(rest[0], rest[1]), wait)
	if err != nil || o["z"] != "" {
		return err
	}
	defer c.Close()
	if _, err := io.Copy(c, os.Stdin); err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	for received := false; ; received = true {
		if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		n, err := c.Read(buf)
		_, _ = os.Stdout.Write(buf[:n])
		if err != nil {
			if !received && o["u"] != "" {
				return err
			}
			return nil
		}
		if o["u"] != "" {
			wait = min(wait, time.Second)
		}
	}
}
