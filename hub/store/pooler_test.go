package store

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
)

// bouncer returns the address of o's database behind PgBouncer.
func bouncer(t *testing.T, o Options, mode string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer"
	}
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("PgBouncer is not installed: .ci/services installs it")
		}
		t.Skip("PgBouncer is not installed (apt-get install pgbouncer)")
	}
	port := postgrestest.FreePort(t)
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	_, at, _ := strings.Cut(o.Database, "@")
	at, _, _ = strings.Cut(at, "/")
	_, server, _ := strings.Cut(at, ":")
	config := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(config, fmt.Appendf(nil, `[databases]
* = host=127.0.0.1 port=%s user=flotilla
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = %s
`, server, port, mode), 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(program, "-q", config)
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	var said strings.Builder
	c.Stdout, c.Stderr = &said, &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	for until := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(until) {
			t.Fatal("PgBouncer does not listen: ", said.String())
		}
	}
	return strings.Replace(o.Database, at, fmt.Sprintf("127.0.0.1:%d", port), 1)
}

func TestATransactionPoolerIsRefused(t *testing.T) {
	t.Parallel()
	server := postgrestest.Shared(t)
	for _, mode := range []string{"transaction", "statement", "session"} {
		t.Run(mode, func(t *testing.T) {
			o := onPostgres(t, server)
			direct := o.Database
			o.Database = bouncer(t, o, mode)
			s, err := Open(t.Context(), o)
			if mode != "session" {
				if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "pool_mode = session") {
					t.Fatal(err)
				}
				t.Log(err)
				// A hub also refuses a pooler in front of an existing database.
				o.Database = direct
				_ = opened(t, o).Close()
				o.Database = bouncer(t, o, mode)
				for range 3 {
					if _, err := OpenShared(t.Context(), o); !errors.Is(err, ErrUnavailable) ||
						!strings.Contains(err.Error(), "pool_mode = session") {
						t.Fatal(err)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for rev := uint64(1); rev <= 20; rev++ {
				mustCommit(t, s, rev, pod(fmt.Sprint("p", rev), rev))
			}
			elsewhere := o
			elsewhere.Dir = t.TempDir()
			if _, err := Open(t.Context(), elsewhere); !errors.Is(err, ErrLocked) {
				t.Fatal(err)
			}
			// The hub's connection ends. The new connection gets the lock, although another server
			// process runs it.
			server.Do("postgres",
				"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+postgrestest.Name(direct)+"'")
			mustCommit(t, s, 21, pod("q", 21))
			if n := len(names(t, s)); n != 21 {
				t.Fatal(n)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
