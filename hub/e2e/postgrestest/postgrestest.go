// Package postgrestest starts real PostgreSQL servers for tests. Each server has its own directory
// and socket, does not run as root, and is removed after the test.
//
// Only tests import it.
package postgrestest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"flotilla.dev/shared/loopback"
)

// A Server is a test's PostgreSQL server.
type Server struct {
	Dir  string // data directory
	Port int    // port on loopback

	t        testing.TB
	bin      string
	settings []string
	cmd      *exec.Cmd
	over     chan struct{}
	log      string
}

var databases atomic.Int64

// loaded is the time limit to create or start a server, also on a busy machine.
const loaded = 5 * time.Minute

// Program finds a program of PostgreSQL, also in Debian's directory. It returns "" if it is not
// installed.
func Program(name string) string {
	if at, err := exec.LookPath(name); err == nil {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			at = real // PostgreSQL's other programs are in the same directory
		}
		return at
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	slices.Sort(found)
	if len(found) == 0 {
		return ""
	}
	return found[len(found)-1]
}

// Start creates and starts a server with settings such as "fsync=on". By default it does not sync,
// which saves minutes; tests of durability turn fsync on.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := Make(t, "", settings...)
	s.Run()
	return s
}

// shared is the server of Shared.
var shared struct {
	mu     sync.Mutex
	server *Server
	ends   []func()
}

// outliving is the testing.TB of the server of Shared. Its cleanup runs in End, not after the test.
type outliving struct{ testing.TB }

func (outliving) Cleanup(end func()) { shared.ends = append(shared.ends, end) }

// Shared returns one server for all tests of a package that only need a database, because starting
// a server costs a second of processor time. TestMain calls End.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.server == nil {
		shared.server = Start(outliving{t})
	}
	s := *shared.server
	s.t = t
	return &s
}

// End stops the server of Shared.
func End() {
	for _, end := range slices.Backward(shared.ends) {
		end()
	}
}

// Make creates a server without starting it. Its data is below the given directory, or in a new one
// if that is "". Its log is elsewhere, so that a full disk of the data does not hide the log.
func Make(t testing.TB, below string, settings ...string) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs a real PostgreSQL")
	}
	initdb := Program("initdb")
	if initdb == "" || Program("postgres") == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("PostgreSQL is not installed: .ci/services installs it")
		}
		t.Skip("PostgreSQL is not installed (apt-get install postgresql-15)")
	}
	dir, err := os.MkdirTemp(below, "flotilla-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if attr := other(t); attr != nil {
		if err := os.Chown(dir, int(attr.Uid), int(attr.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	s := &Server{
		Dir: filepath.Join(dir, "data"), Port: FreePort(t), t: t, bin: filepath.Dir(initdb), log: filepath.Join(dir, "log"),
		settings: append([]string{"fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=40",
			"max_wal_size=64MB", "min_wal_size=32MB"}, settings...),
	}
	ctx, cancel := context.WithTimeout(context.Background(), loaded)
	defer cancel()
	wal := filepath.Join(dir, "wal")
	if below != "" {
		if wal, err = os.MkdirTemp("", "flotilla-pg-wal-"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(wal) })
		if attr := other(t); attr != nil {
			if err := os.Chown(wal, int(attr.Uid), int(attr.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	from, err := template(ctx, initdb, dir, s.asOther)
	if err != nil {
		t.Fatal(err)
	}
	copies := [][]string{
		{"cp", "-R", filepath.Join(from, "data"), s.Dir},
		{"cp", "-R", filepath.Join(from, "wal") + "/.", wal},
		{"ln", "-sfn", wal, filepath.Join(s.Dir, "pg_wal")},
		{"chmod", "0700", s.Dir},
	}
	if attr := other(t); attr != nil {
		copies = append(copies, []string{"chown", "-Rh", fmt.Sprintf("%d:%d", attr.Uid, attr.Gid), s.Dir, wal})
	}
	for _, c := range copies {
		if out, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("copy a new database: %v: %s", err, out)
		}
	}
	return s
}

// template returns a new database in the user's cache, because initdb takes ten times as long as a
// copy. All servers therefore have the same system identifier, which the hub does not use.
func template(ctx context.Context, initdb, work string, as func(*exec.Cmd)) (string, error) {
	version, err := exec.CommandContext(ctx, initdb, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("initdb --version: %w", err)
	}
	arguments := []string{"--no-sync", "--auth=trust", "--username=flotilla", "--encoding=UTF8", "--locale=C.UTF-8",
		"--wal-segsize=1"}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "flotilla-test")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "postgres.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // releases the lock on the cache
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another initdb: %w", err)
	}
	sum := sha256.Sum256(fmt.Append(version, arguments))
	at := filepath.Join(cache, fmt.Sprintf("postgres-%x", sum[:6]))
	if _, err := os.Stat(at); err == nil {
		return at, nil
	}
	fresh := filepath.Join(work, "template") // PostgreSQL's user cannot write to this user's cache
	c := exec.CommandContext(ctx, initdb,
		append(arguments, "--waldir="+filepath.Join(fresh, "wal"), "-D", filepath.Join(fresh, "data"))...)
	as(c)
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if err := os.RemoveAll(at + ".new"); err != nil {
		return "", err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-R", fresh, at+".new").CombinedOutput(); err != nil {
		return "", fmt.Errorf("keep a new database: %w: %s", err, out)
	}
	return at, errors.Join(os.RemoveAll(fresh), os.Rename(at+".new", at))
}

// other returns the user that runs the server, or nil for this process's user. PostgreSQL refuses
// to run as root.
func other(t testing.TB) *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	t.Fatal("PostgreSQL refuses to run as root, and the users postgres and nobody do not exist")
	return nil
}

func (s *Server) asOther(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Credential: other(s.t), Setpgid: true}
	c.Dir = "/"
	c.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
}

// Run starts the server and waits until it answers.
func (s *Server) Run() {
	s.t.Helper()
	if err := s.Begin(); err != nil {
		s.t.Fatal(err)
	}
	if err := s.Await(); err != nil {
		s.t.Fatal(err)
	}
}

// Begin starts the server without waiting.
func (s *Server) Begin() error {
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"-D", s.Dir, "-c", "listen_addresses=127.0.0.1", "-c", "port=" + strconv.Itoa(s.Port), "-c",
		"unix_socket_directories=" + s.Dir}
	for _, set := range s.settings {
		args = append(args, "-c", set)
	}
	s.cmd = exec.Command(filepath.Join(s.bin, "postgres"), args...)
	s.asOther(s.cmd)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	over := make(chan struct{})
	s.over = over
	cmd := s.cmd
	go func() { _ = cmd.Wait(); close(over) }()
	s.t.Cleanup(func() { kill(cmd.Process.Pid, over) })
	return nil
}

// Await waits until the server answers.
func (s *Server) Await() error {
	printed := ""
	for until := time.Now().Add(loaded); time.Now().Before(until); {
		select {
		case <-s.over:
			return fmt.Errorf("PostgreSQL has exited:\n%s", s.Log())
		default:
		}
		var err error
		if printed, err = s.psql("postgres", "SELECT 1"); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("PostgreSQL does not answer: %s\n%s", printed, s.Log())
}

// Log returns the server's output.
func (s *Server) Log() string {
	text, _ := os.ReadFile(s.log)
	return string(text)
}

// Kill ends all processes of the server with SIGKILL, as the kernel does when memory runs out.
func (s *Server) Kill() {
	kill(s.cmd.Process.Pid, s.over)
	_ = os.Remove(filepath.Join(s.Dir, "postmaster.pid"))
}

// kill ends a process and its children with SIGKILL, and waits until they have ended.
func kill(pid int, over <-chan struct{}) {
	all := children(pid)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	<-over
	for _, child := range all { // children exit by themselves, but later
		for syscall.Kill(child, syscall.SIGKILL) == nil && !dead(child) {
			time.Sleep(time.Millisecond)
		}
	}
}

// dead reports whether a process is a zombie.
func dead(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(text), ") ")
	return err != nil || strings.HasPrefix(state, "Z")
}

// Stop stops the server as `systemctl stop` does.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	<-s.over
}

// Signal sends a signal such as SIGSTOP to every process of the server.
func (s *Server) Signal(sig syscall.Signal) {
	_ = s.cmd.Process.Signal(sig)
	for _, child := range children(s.cmd.Process.Pid) {
		_ = syscall.Kill(child, sig)
	}
}

// children returns the server's processes except the first. Each has its own process group.
func children(pid int) (pids []int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", pid))
	for _, f := range strings.Fields(string(text)) {
		if pid, err := strconv.Atoi(f); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Database creates an empty database and returns its URL.
func (s *Server) Database() string {
	s.t.Helper()
	name := fmt.Sprintf("hub%d", databases.Add(1))
	s.Do("postgres", "CREATE DATABASE "+name)
	return s.URL(name)
}

// URL returns the URL of a database.
func (s *Server) URL(name string) string {
	return fmt.Sprintf("postgres://flotilla@127.0.0.1:%d/%s?sslmode=disable", s.Port, name)
}

// Name returns the name of the database in a URL.
func Name(url string) string {
	name := url[strings.LastIndex(url, "/")+1:]
	name, _, _ = strings.Cut(name, "?")
	return name
}

// Do runs a statement, and returns psql's output.
func (s *Server) Do(database, sql string) string {
	s.t.Helper()
	out, err := s.psql(database, sql)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", sql, err, out)
	}
	return out
}

// Try is Do for a statement that may fail.
func (s *Server) Try(database, sql string) (string, error) { return s.psql(database, sql) }

func (s *Server) psql(database, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(s.bin, "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h",
		"127.0.0.1", "-p", strconv.Itoa(s.Port), "-U", "flotilla", "-d", database, "-c", sql)
	c.Env = append(os.Environ(), "PGCONNECT_TIMEOUT=60", "LC_ALL=C")
	out, err := c.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, ctx.Err())
	}
	return strings.TrimSpace(string(out)), err
}

// FreePort returns a port on 127.0.0.1 for one test's server. The port stays free for the server's
// next start.
func FreePort(t testing.TB) int {
	t.Helper()
	addr, err := loopback.Address()
	if err != nil {
		t.Fatal(err)
	}
	return int(netip.MustParseAddrPort(addr).Port())
}

// Standby creates and starts a standby server of this server.
func (s *Server) Standby() *Server {
	s.t.Helper()
	port := FreePort(s.t)
	beside := filepath.Join(filepath.Dir(s.Dir), fmt.Sprintf("standby-%d", port))
	ctx, cancel := context.WithTimeout(context.Background(), loaded)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(s.bin, "pg_basebackup"), "-D", beside, "-R", "-c", "fast", "-X", "stream",
		"--waldir="+beside+"-wal", "--no-sync", "-h", "127.0.0.1", "-p", strconv.Itoa(s.Port), "-U", "flotilla")
	s.asOther(c)
	if out, err := c.CombinedOutput(); err != nil {
		s.t.Fatalf("pg_basebackup: %v\n%s", err, out)
	}
	two := &Server{Dir: beside, Port: port, t: s.t, bin: s.bin, settings: s.settings, log: beside + ".log"}
	two.Run()
	return two
}
