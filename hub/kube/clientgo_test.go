package kube

import (
	"bufio"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	coordv1 "k8s.io/api/coordination/v1"

	"flotilla.dev/hub/e2e/kubectltest"
	"flotilla.dev/hub/state"
)

// A logbook records the requests to a server.
type logbook struct {
	mu   sync.Mutex
	urls []string
}

func (a *logbook) middleware(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.urls = append(a.urls, r.Method+" "+r.URL.String())
		a.mu.Unlock()
		next.ServeHTTP(w, r)
	})
}

// begun counts full reads of the nodes: first pages of lists, and watches with initial events.
func (a *logbook) begun() (lists, streams int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, u := range a.urls {
		switch watch := strings.Contains(u, "watch=true"); {
		case !strings.HasPrefix(u, "GET /api/v1/nodes?"):
		case strings.Contains(u, "sendInitialEvents=true"):
			streams++
		case !watch && !strings.Contains(u, "continue="):
			lists++
		}
	}
	return lists, streams
}

// A speaker is a program that prints what it receives, line by line.
type speaker struct {
	t       *testing.T
	cmd     *exec.Cmd
	lines   chan string
	printed []string
}

// speak starts the program of client-go against a server.
func speak(t *testing.T, kubeconfig string, env []string, args ...string) *speaker {
	t.Helper()
	s := &speaker{t: t, cmd: exec.Command(kubectltest.ClientGo(t), args...), lines: make(chan string, 1000)}
	s.cmd.Env = append(kubectltest.Env(t, kubeconfig), env...)
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var wrong strings.Builder
	s.cmd.Stderr = &wrong
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("clientgo %s printed\n%s\n%s", strings.Join(args, " "), strings.Join(s.printed, "\n"), wrong.String())
		}
	})
	go func() {
		defer close(s.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			s.lines <- in.Text()
		}
	}()
	return s
}

// await waits until each of the lines was printed, in any order.
func (s *speaker) await(want ...string) {
	s.t.Helper()
	timeout := time.After(2 * time.Minute)
	for {
		want = slices.DeleteFunc(want, func(line string) bool { return slices.Contains(s.printed, line) })
		if len(want) == 0 {
			return
		}
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.t.Fatalf("the program ended without %q", want)
			}
			s.printed = append(s.printed, line)
		case <-timeout:
			s.t.Fatalf("the program does not print %q", want)
		}
	}
}

// serveAsked is serveTLS with a logbook.
func serveAsked(t *testing.T, s *Server, role string) (string, *logbook) {
	t.Helper()
	e, a := echo.New(), &logbook{}
	s.Register(e)
	srv := httptest.NewUnstartedServer(a.middleware(e))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.CloseClientConnections)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"f","contexts":[{"name":"f","context":{"cluster":"f","user":"u"}}],
"clusters":[{"name":"f","cluster":{"server":%q,"certificate-authority-data":%q}}],"users":[{"name":"u","user":{"token":%q}}]}`,
		srv.URL, base64.StdEncoding.EncodeToString(ca), role)
	if err := os.WriteFile(kubeconfig, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, a
}

// Informers of every kind receive existing objects, changes, and changes that they have missed.
func TestInformers(t *testing.T) {
	for _, c := range []struct {
		how, encoding string
		watchList     bool // begin with a watch instead of a list
	}{
		{"typed", "protobuf", true}, {"typed", "json", false}, {"typed", "protobuf", false},
		{"dynamic", "json", true}, {"metadata", "protobuf", true}, {"metadata", "json", false},
	} {
		t.Run(fmt.Sprintf("%s informers with %s, WatchList %v", c.how, c.encoding, c.watchList), func(t *testing.T) {
			t.Parallel()
			f := seeded()
			config, asked := serveAsked(t, newServer(f), "viewer")
			p := speak(t, config, []string{fmt.Sprintf("KUBE_FEATURE_WatchListClient=%v", c.watchList)},
				"informers", c.how, c.encoding)
			p.await("synced", "add node pi-1", "add node pi-2", "add pod kiosk-1", "add pod kiosk-2", "add pod guarded")
			f.touch(f.Snapshot().Node("pi-1"), "seen", "yes")
			f.put(fakePod("late", "pi-2"))
			p.await("update node pi-1", "add pod late")
			f.remove(f.Snapshot().Pod("default", "late"))
			p.await("delete pod late")
			lists, streams := asked.begun()
			if c.watchList && (lists != 0 || streams != 1) || !c.watchList && (lists != 1 || streams != 0) {
				t.Errorf("nodes were read by %d lists and %d watches, want one in total", lists, streams)
			}
			// More changes at once than the history holds: watches must begin again, and still
			// receive every change, deletions too.
			f.mu.Lock()
			f.keep = 1
			f.mu.Unlock()
			gone := f.Snapshot().Node("pi-2")
			f.do(state.Remove(gone, ""), state.Put(fakeNode("pi-3", "oslo"), ""), state.Put(fakeNode("pi-4", "oslo"), ""))
			p.await("delete node pi-2", "add node pi-3", "add node pi-4")
			again, anew := asked.begun()
			if again+anew <= lists+streams {
				t.Errorf("nodes were read %d times, want once more", again+anew)
			}
		})
	}
}

// Two candidates lead one after the other, by a lease. The role operator suffices.
func TestLeaderElection(t *testing.T) {
	t.Parallel()
	f := seeded()
	s := newServer(f)
	config, _ := serveAsked(t, s, "operator")
	ann := speak(t, config, nil, "elect", "ann")
	ann.await("ann leads")
	bob := speak(t, config, nil, "elect", "bob")
	bob.await("bob sees the leader ann")
	if err := ann.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ann.await("ann is out")
	bob.await("bob leads")
	l, ok := f.Snapshot().Get(state.Key{Kind: state.Leases, Namespace: "default", Name: "office"}).(*coordv1.Lease)
	if !ok || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != "bob" || l.Spec.RenewTime == nil {
		t.Errorf("the lease is %+v", l)
	}
}

// Controllers' calls work with protobuf bodies.
func TestControllersCalls(t *testing.T) {
	t.Parallel()
	f := seeded()
	config, _ := serveAsked(t, newServer(f), "admin")
	p := speak(t, config, nil, "calls")
	p.await("created true b", "updated c", "applied applied 1", "scaled 4", "status Running", "pages 2 nodes 2", "sites 0",
		"discovered true true")
	for range p.lines { // until it ends
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	for o := range f.Snapshot().All(state.ConfigMaps, "default") {
		t.Errorf("%s was not deleted", o.GetName())
	}
}
