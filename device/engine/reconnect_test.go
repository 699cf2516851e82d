package engine_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"flotilla.dev/device/engine"
)

// A cut is a proxy in front of an engine. While the proxy is closed, the engine seems to be
// stopped.
type cut struct {
	path, behind string
	mu           sync.Mutex
	listener     net.Listener
	conns        []net.Conn
}

func (c *cut) open(t *testing.T) {
	l, err := net.Listen("unix", c.path)
	must(t, err)
	c.mu.Lock()
	c.listener = l
	c.mu.Unlock()
	go func() {
		for {
			front, err := l.Accept()
			if err != nil {
				return
			}
			back, err := net.Dial("unix", c.behind)
			if err != nil {
				front.Close()
				return
			}
			c.mu.Lock()
			c.conns = append(c.conns, front, back)
			c.mu.Unlock()
			go func() { _, _ = io.Copy(back, front); back.Close() }()
			go func() { _, _ = io.Copy(front, back); front.Close() }()
		}
	}()
}

func (c *cut) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listener.Close()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

func TestAStoppedEngineIsUnavailableUntilItIsBack(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		c := &cut{path: filepath.Join(t.TempDir(), "engine.sock"), behind: socket}
		c.open(t)
		direct, e := open(t, socket), open(t, c.path)
		ctx := t.Context()
		id := begin(t, direct, engine.Spec{}, "print hello then stubborn")

		underWay := map[string]chan error{}
		launch := func(name string, call func() error) {
			end := make(chan error, 1)
			underWay[name] = end
			go func() { end <- call() }()
		}
		listening, following, running := make(chan struct{}), make(signal, 1), make(signal, 1)
		launch("Events", func() error {
			return e.Events(ctx, "flotilla.test/spec", sync.OnceFunc(func() { close(listening) }))
		})
		launch("Logs", func() error {
			return e.Logs(ctx, id, engine.LogOptions{Tail: -1, Follow: true}, following, io.Discard)
		})
		launch("Exec", func() error {
			_, err := e.Exec(ctx, id, strings.Fields("/tool print here then wait"), engine.Streams{Stdout: running})
			return err
		})
		<-listening
		<-following
		<-running
		launch("Stop", func() error { return e.Stop(ctx, id, 30*time.Second) })
		await(t, "the running call", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.conns) >= 8 })
		c.close()

		for name, end := range underWay {
			select {
			case err := <-end:
				// When the engine stops, a log or a command may end without an error, but a command
				// must not return success.
				if name == "Logs" && err == nil {
					continue
				}
				if !errors.Is(err, engine.ErrUnavailable) {
					t.Errorf("%s without the engine: %v, want ErrUnavailable", name, err)
				}
			case <-time.After(2 * time.Minute):
				t.Errorf("%s still waits after the engine has stopped", name)
			}
		}
		_, infoErr := e.Info(ctx)
		_, listErr := e.Containers(ctx, "x")
		_, createErr := e.Create(ctx, engine.Spec{Name: "x", Image: "x"})
		_, usageErr := e.Usage(ctx, id)
		for name, err := range map[string]error{"Info": infoErr, "Containers": listErr, "Create": createErr,
			"Usage": usageErr,
			"Start": e.Start(ctx, id), "Remove": e.Remove(ctx, id), "Pull": e.Pull(ctx, "127.0.0.1:9/x:1", nil, nil),
			"Events": e.Events(ctx, "x", func() {}), "EndExec": e.EndExec(ctx, "x")} {
			if !errors.Is(err, engine.ErrUnavailable) {
				t.Errorf("%s without the engine: %v, want ErrUnavailable", name, err)
			}
		}

		c.open(t)
		defer c.close()
		if _, err := e.Info(ctx); err != nil {
			t.Errorf("a call after the engine has come back: %v", err)
		}
		if list, err := e.Containers(ctx, "flotilla.test/spec"); err != nil || len(list) == 0 {
			t.Errorf("a call after the engine has come back: %v %v", list, err)
		}
	})
}

// A signal is a writer that reports the first write.
type signal chan struct{}

func (s signal) Write(p []byte) (int, error) {
	select {
	case s <- struct{}{}:
	default:
	}
	return len(p), nil
}

// pretend serves the responses in which an engine describes itself.
func pretend(t *testing.T, api func() string, version map[string]any) (socket string) {
	dir, err := os.MkdirTemp("", "engine") // a socket's path has at most 107 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	must(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", api())
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/version"):
			_ = json.NewEncoder(w).Encode(version)
		case strings.HasSuffix(r.URL.Path, "/info"):
			_ = json.NewEncoder(w).Encode(map[string]any{"DockerRootDir": "/var/lib/balena-engine", "Architecture": "armv6l"})
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	return socket
}

func TestOpenNegotiatesTheAPIVersion(t *testing.T) {
	old := map[string]any{"Os": "linux", "Arch": "arm", "Version": "20.10.43+rev1", "MinAPIVersion": "1.12"}
	for _, c := range []struct {
		name    string
		api     string
		version map[string]any
		want    error
		says    string
	}{
		{"an engine of the oldest version is fine", "1.40", old, nil, ""},
		{"an older version is unsupported", "1.39", old, engine.ErrUnsupported, "1.40 or newer is needed"},
		{"an answer without a version is unsupported", "", old, engine.ErrUnsupported, "1.40 or newer is needed"},
		{"a newer engine that dropped the client's versions is unsupported", "3.1", map[string]any{"Os": "linux", "MinAPIVersion": "3.0"}, engine.ErrUnsupported, "upgrade this program"},
		{"an engine for Windows is unsupported", "1.41", map[string]any{"Os": "windows"}, engine.ErrUnsupported, "windows"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, err := engine.Open(t.Context(), "unix://"+pretend(t, func() string { return c.api }, c.version))
			if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Fatalf("got error %v", err)
			}
			if err != nil {
				return
			}
			info, err := e.Info(t.Context())
			must(t, err)
			if info.Name != "balena-engine" || info.Version != "20.10.43" || info.APIVersion != "1.40" || info.Arch != "arm" ||
				info.Variant != "v6" ||
				info.MemLimit {
				t.Errorf("Info is %+v", info)
			}
		})
	}
}

func TestTheAPIVersionFollowsAnUpgrade(t *testing.T) {
	var mu sync.Mutex
	api := "1.41"
	e, err := engine.Open(
		t.Context(),
		pretend(t, func() string { mu.Lock(); defer mu.Unlock(); return api },
			map[string]any{"Os": "linux", "Arch": "arm64"}),
	)
	must(t, err)
	for _, v := range []string{"1.44", "1.40", "1.45"} {
		mu.Lock()
		api = v
		mu.Unlock()
		if info, err := e.Info(t.Context()); err != nil || info.APIVersion != v {
			t.Errorf("after the upgrade to API version %s the client uses %s: %v", v, info.APIVersion, err)
		}
	}
}

func TestFindNamesTheTriedSockets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := engine.Find(ctx, "none", ""); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("--engine none: %v, want ErrUnavailable", err)
	}
	if _, err := engine.Find(ctx, "rocket", ""); !errors.Is(err, engine.ErrUnsupported) {
		t.Errorf("--engine rocket: %v, want ErrUnsupported", err)
	}
	missing := filepath.Join(t.TempDir(), "no.sock")
	if _, err := engine.Find(ctx, missing, ""); !errors.Is(err, engine.ErrUnavailable) ||
		!strings.Contains(err.Error(), missing) {
		t.Errorf("--engine %s: %v, want ErrUnavailable with that path", missing, err)
	}
	socket := pretend(t, func() string { return "1.41" }, map[string]any{"Os": "linux", "Arch": "arm64"})
	if e, err := engine.Find(ctx, "unix://"+socket, ""); err != nil {
		t.Error(err)
	} else if info, _ := e.Info(ctx); info.Socket != socket {
		t.Errorf("the engine is at %s, want %s", info.Socket, socket)
	}
}
