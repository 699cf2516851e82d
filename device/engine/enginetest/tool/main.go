// Command tool is the only program in the test image flotilla.test/tool:1. It offers the actions
// that tests need inside a container, without a shell. It is not part of a product; command image
// puts it into the image.
//
// Verbs are chained with "then": tool print hello then sleep 1s then exit 3.
package main

import (
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const usage = `tool VERB [ARGUMENT]... [then VERB [ARGUMENT]...]...
  wait                  sleep for ever; SIGTERM ends every verb but stubborn with exit code 0
  stubborn              sleep for ever and ignore SIGTERM
  sleep DURATION        sleep, then go on
  exit CODE             end
  print TEXT...         a line to stdout
  complain TEXT...      a line to stderr
  lines N [INTERVAL]    "line 1" to "line N" to stdout
  env [NAME]            the environment, or one variable; exit code 1 if it is not set
  cat FILE...           files to stdout ("-": stdin)
  sum                   the length and the SHA-256 of stdin
  noise N               N bytes that look random, always the same
  size COLUMNS ROWS     wait until stdin is a terminal of this size
  write FILE TEXT...    write a file
  rm FILE...            remove files
  exists FILE           exit code 1 if there is no such file
  ls DIRECTORY          names in a directory
  mkdir DIRECTORY       make it, with its parents
  link TARGET NAME      make a symbolic link
  exchange A B DURATION swap two names as fast as the kernel can; at the end each is in its place
  readlink FILE         such as /proc/self/ns/net
  id                    uid, gid, groups
  hostname              the host's name
  memory MIB            take and touch memory, then go on
  spawn N DURATION      N processes at once that sleep; exit code 1 if the kernel refuses one
  spin [DURATION]       burn processor time
  get URL               HTTP GET; body to stdout, exit code 1 unless 2xx
  serve ADDRESS [unhealthy]
                        HTTP for ever: /healthz (200 or 503), /healthy and /unhealthy switch it,
                        /env, /file?path=F, /hostname, /exit?code=N, anything else says "hello"
`

func main() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		for range terminated {
			if stubborn.Load() {
				fmt.Println("ignored a signal")
				continue
			}
			os.Exit(0)
		}
	}()
	if filepath.Base(os.Args[0]) == "tar" {
		if err := asTar(os.Args[1:]); err != nil {
			fmt.Fprintf(os.Stderr, "tar: %v\n", err)
			os.Exit(2)
		}
		return
	}
	words := os.Args[1:]
	for len(words) > 0 {
		next := slices.Index(words, "then")
		if next < 0 {
			next = len(words)
		}
		if err := do(words[0], words[1:next]); err != nil {
			fmt.Fprintf(os.Stderr, "tool: %v\n", err)
			os.Exit(1)
		}
		words = words[min(next+1, len(words)):]
	}
	if len(os.Args) == 1 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
}

var (
	stubborn atomic.Bool
	held     [][]byte // keep the memory allocated
)

func do(verb string, args []string) error {
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	switch verb {
	case "wait":
		select {}
	case "stubborn":
		stubborn.Store(true)
		select {}
	case "sleep":
		d, err := time.ParseDuration(arg(0))
		time.Sleep(d)
		return err
	case "exit":
		code, err := strconv.Atoi(arg(0))
		if err != nil {
			return err
		}
		os.Exit(code)
	case "print":
		fmt.Println(strings.Join(args, " "))
	case "complain":
		fmt.Fprintln(os.Stderr, strings.Join(args, " "))
	case "lines":
		return lines(arg(0), arg(1))
	case "env":
		return env(arg(0))
	case "cat":
		for _, name := range args {
			if err := cat(name, os.Stdout); err != nil {
				return err
			}
		}
	case "sum":
		h := sha256.New()
		n, err := io.Copy(h, os.Stdin)
		fmt.Printf("%d %x\n", n, h.Sum(nil))
		return err
	case "noise":
		n, err := strconv.ParseInt(arg(0), 10, 64)
		if err != nil {
			return err
		}
		_, err = io.CopyN(os.Stdout, rand.NewChaCha8([32]byte{}), n)
		return err
	case "size":
		return size(arg(0), arg(1))
	case "write":
		return os.WriteFile(arg(0), []byte(strings.Join(args[1:], " ")), 0o644)
	case "rm":
		for _, name := range args {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
	case "exists":
		_, err := os.Stat(arg(0))
		return err
	case "ls":
		entries, err := os.ReadDir(arg(0))
		for _, e := range entries {
			fmt.Println(e.Name())
		}
		return err
	case "mkdir":
		return os.MkdirAll(arg(0), 0o755)
	case "link":
		return os.Symlink(arg(0), arg(1))
	case "exchange":
		return exchange(arg(0), arg(1), arg(2))
	case "readlink":
		target, err := os.Readlink(arg(0))
		fmt.Println(target)
		return err
	case "id":
		groups, err := os.Getgroups()
		fmt.Printf("uid=%d gid=%d groups=%v\n", os.Getuid(), os.Getgid(), groups)
		return err
	case "hostname":
		name, err := os.Hostname()
		fmt.Println(name)
		return err
	case "memory":
		return memory(arg(0))
	case "spawn":
		return spawn(args[0], args[1])
	case "spin":
		end, err := time.ParseDuration(arg(0))
		for start := time.Now(); arg(0) == "" || time.Since(start) < end; {
		}
		return err
	case "get":
		return get(arg(0))
	case "serve":
		return serve(arg(0), arg(1) != "unhealthy")
	default:
		return fmt.Errorf("unknown verb %q\n%s", verb, usage)
	}
	return nil
}

// size waits until stdin is a terminal of this size.
func size(columns, rows string) error {
	for {
		z, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ)
		if err != nil {
			return fmt.Errorf("stdin is not a terminal: %w", err)
		}
		if fmt.Sprint(z.Col) == columns && fmt.Sprint(z.Row) == rows {
			fmt.Println("the terminal is", z.Col, "by", z.Row)
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func exchange(a, b, duration string) error {
	d, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		for range 1000 { // an even number of swaps, after which each file has its own name again
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				return err
			}
		}
	}
	return nil
}

func lines(count, interval string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	pause, _ := time.ParseDuration(interval)
	for i := range n {
		fmt.Println("line", i+1)
		time.Sleep(pause)
	}
	return nil
}

func env(name string) error {
	if name == "" {
		fmt.Println(strings.Join(os.Environ(), "\n"))
		return nil
	}
	value, ok := os.LookupEnv(name)
	if !ok {
		return fmt.Errorf("%s is not set", name)
	}
	fmt.Println(value)
	return nil
}

func cat(name string, to io.Writer) error {
	if name == "-" {
		_, err := io.Copy(to, os.Stdin)
		return err
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(to, f)
	return err
}

// spawn starts its processes at once, as many as the kernel allows.
func spawn(count, duration string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	var all []*exec.Cmd
	for range n {
		c := exec.Command("/proc/self/exe", "sleep", duration)
		if err = c.Start(); err != nil {
			err = fmt.Errorf("process %d of %d: %w", len(all)+1, n, err)
			break
		}
		all = append(all, c)
	}
	for _, c := range all {
		_ = c.Wait()
	}
	return err
}

func memory(mib string) error {
	n, err := strconv.Atoi(mib)
	if err != nil {
		return err
	}
	for range n {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		held = append(held, block)
	}
	fmt.Println("holding", n, "MiB")
	return nil
}

func get(url string) error {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return nil
}

func serve(address string, healthy bool) error {
	var ok atomic.Bool
	ok.Store(healthy)
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !ok.Load() {
			http.Error(w, "unhealthy", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("/healthy", func(w http.ResponseWriter, _ *http.Request) {
		ok.Store(true)
		fmt.Fprintln(w, "healthy now")
	})
	mux.HandleFunc("/unhealthy", func(w http.ResponseWriter, _ *http.Request) {
		ok.Store(false)
		fmt.Fprintln(w, "unhealthy now")
	})
	mux.HandleFunc("/env", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, strings.Join(os.Environ(), "\n"))
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		if err := cat(r.FormValue("path"), w); err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
		}
	})
	mux.HandleFunc("/hostname", func(w http.ResponseWriter, _ *http.Request) {
		name, _ := os.Hostname()
		fmt.Fprintln(w, name)
	})
	mux.HandleFunc("/exit", func(_ http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.FormValue("code"))
		os.Exit(code)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })
	fmt.Println("serving on", address)
	return http.ListenAndServe(address, mux)
}
