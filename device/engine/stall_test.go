package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// served returns an engine whose API is the given handler.
func served(t *testing.T, answer http.HandlerFunc) *api {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.44")
		w.Header().Set("Content-Type", "application/json")
		answer(w, r)
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	moby, err := dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	a := &api{socket: socket, stall: pullStall, answerTime: AnswerTime, silence: 50 * time.Millisecond}
	a.current.Store(&session{client: moby})
	return a
}

// Containers inspects one container after the other. An engine does not answer for a container that
// hangs in its start, for example at a mount of a lost server. Such a container is reported as
// before, or as in the list. If most of several containers get no answer, the engine is
// unavailable.
func TestAListDoesNotWaitForAHangingContainer(t *testing.T) {
	var hangs atomic.Value // parts of the paths that get no answer
	var only atomic.Bool   // the list has one container
	hangs.Store("none")
	a := served(t, func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case slices.ContainsFunc(strings.Fields(hangs.Load().(string)),
			func(part string) bool { return strings.Contains(path, part) }):
			<-r.Context().Done()
		case strings.HasSuffix(path, "/containers/json") && only.Load():
			fmt.Fprint(w, `[{"Id":"c1","State":"running"}]`)
		case strings.HasSuffix(path, "/containers/json"):
			fmt.Fprint(w,
				`[{"Id":"c0","State":"running"},{"Id":"c1","State":"running"},{"Id":"c2","State":"running"},{"Id":"c3","State":"exited","Status":"Exited (3) 2 seconds ago","Names":["/name"],"Labels":{"x":"y"}},{"Id":"c4","State":"created"}]`)
		default:
			fmt.Fprint(w, `{"Id":"c","Name":"seen","State":{"Status":"running"},"Config":{}}`)
		}
	})
	a.answerTime = 50 * time.Millisecond
	find := func(list []Container, name string) Container {
		i := slices.IndexFunc(list, func(c Container) bool { return c.Name == name })
		if i < 0 {
			t.Fatalf("%s is not among %+v", name, list)
		}
		return list[i]
	}
	hangs.Store("/c3/json")
	list, err := a.Containers(t.Context(), "x")
	if err != nil || len(list) != 5 {
		t.Fatalf("while one container hangs the list has %d containers, %v; want 5", len(list), err)
	}
	if c := find(list, "name"); c.ID != "c3" || c.State != Exited || c.ExitCode != 3 || c.Labels["x"] != "y" {
		t.Errorf("a hanging container that was never inspected is %+v, want what the list says", c)
	}
	hangs.Store("none")
	if list, err := a.Containers(t.Context(), "x"); err != nil || len(list) != 5 {
		t.Fatalf("the list has %d containers, %v; want 5", len(list), err)
	}
	hangs.Store("/c3/json /c4/json")
	if list, err := a.Containers(t.Context(), "x"); err != nil || len(list) != 5 ||
		find(list, "seen").State != Running || slices.ContainsFunc(list,
		func(c Container) bool { return c.State != Running }) {
		t.Errorf("hanging containers are not reported as before: %+v, %v", list, err)
	}
	only.Store(true)
	hangs.Store("/c1/json")
	if list, err := a.Containers(t.Context(), "x"); err != nil || len(list) != 1 || list[0].State != Running {
		t.Errorf("while the only container hangs the list is %+v, %v; want it running", list, err)
	}
	only.Store(false)
	for _, paths := range []string{"/containers/json", "/c3/json /_ping", "/c1/json /c3/json /c4/json"} {
		hangs.Store(paths)
		if _, err := a.Containers(t.Context(), "x"); !errors.Is(err, context.DeadlineExceeded) || t.Context().Err() != nil {
			t.Errorf("without an answer to %s: got %v, want DeadlineExceeded", paths, err)
		}
	}
}

// Podman locks each container that it lists, and a container that hangs in its start keeps its
// lock, so the list never ends. Then the known containers are inspected one by one, including those
// created since the last list. If the very first list hangs, no container is known.
func TestPodmansListDoesNotWaitForAHangingContainer(t *testing.T) {
	var hangs, gone atomic.Value // a container's id
	hangs.Store("none")
	gone.Store("none")
	a := served(t, func(w http.ResponseWriter, r *http.Request) {
		hanging := hangs.Load().(string)
		_, id, _ := strings.Cut(strings.TrimSuffix(r.URL.Path, "/json"), "/containers/")
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/containers/create"):
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"Id":"c3"}`)
		case strings.HasSuffix(path, "/_ping"), strings.Contains(path, "/images/"):
			fmt.Fprint(w, `{"Id":"sha256:1"}`)
		case strings.HasSuffix(path, "/containers/json") && hanging == "none":
			fmt.Fprint(w, `[{"Id":"c1","State":"running"},{"Id":"c2","State":"running"}]`)
		case strings.HasSuffix(path, "/containers/json"), id == hanging:
			<-r.Context().Done()
		case id == gone.Load().(string):
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message":"no such container"}`)
		default:
			fmt.Fprintf(w, `{"Id":%q,"Name":%[1]q,"State":{"Status":"exited","ExitCode":3},"Config":{"Labels":{"x":"y"}}}`, id)
		}
	})
	a.current.Load().info.Name = "podman"
	a.answerTime = 50 * time.Millisecond
	list := func() string {
		t.Helper()
		list, err := a.Containers(t.Context(), "x=y")
		if err != nil {
			return fmt.Sprint(errors.Is(err, context.DeadlineExceeded))
		}
		text := ""
		for _, c := range list {
			text += fmt.Sprint(c.ID, " ", c.Name, " ", c.State, " ", c.Labels["x"], "; ")
		}
		return text
	}
	hangs.Store("c2")
	if got := list(); got != "true" {
		t.Errorf("while the very first list hangs: got %s, want an error", got)
	}
	hangs.Store("none")
	if got, want := list(), "c1 c1 exited y; c2 c2 exited y; "; got != want {
		t.Fatalf("the list is %s, want %s", got, want)
	}
	for _, label := range []string{"y", "z"} { // a container belongs to the list of its own label only
		if _, err := a.Create(t.Context(), Spec{Name: "c" + label, Image: "example.org/i:1",
			Labels: map[string]string{"x": label}}); err != nil {
			t.Fatal(err)
		}
		hangs.Store("c3")
		want := "c1 c1 exited y; c2 c2 exited y; cy cy created y; "
		if label == "z" {
			want = "c1 c1 exited y; c2 c2 exited y; "
		}
		want = strings.Replace(want, "cy cy", "c3 cy", 1)
		if got := list(); got != want {
			t.Errorf("while a new container with label x=%s hangs the list is %s, want %s", label, got, want)
		}
		hangs.Store("none")
		list()
	}
	hangs.Store("c2")
	gone.Store("c1")
	if got, want := list(), "c2 c2 exited y; "; got != want {
		t.Errorf("while one container hangs and another is gone the list is %s, want %s", got, want)
	}
}

// Podman's Docker API locks every container to list the containers on a network; Podman's own API
// does not.
func TestPodmansNetworkDoesNotWaitForAHangingContainer(t *testing.T) {
	const cidr = "198.51.100.0/24"
	requests := ""
	a := served(t, func(w http.ResponseWriter, r *http.Request) {
		switch path := r.URL.Path; {
		case strings.HasSuffix(path, "/_ping"):
		case strings.HasSuffix(path, "/libpod/networks/json"):
			fmt.Fprint(w, `[{"name":"flotilla-pi-10","subnets":[{"subnet":"192.0.2.0/24"}]},
				{"name":"flotilla-pi-1","id":"1","subnets":[{"subnet":"198.51.100.0/24","gateway":"198.51.100.1"}],"labels":{"x":"y"}},{"name":"none","subnets":null}]`)
		case r.Method != http.MethodGet:
			requests += r.Method + " " + path[strings.LastIndex(path, "/")+1:] + "; "
			w.WriteHeader(http.StatusNoContent)
		default:
			<-r.Context().Done()
		}
	})
	a.current.Load().info.Name = "podman"
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n := Network{Name: "flotilla-pi-1", CIDR: cidr, Labels: map[string]string{"x": "y"}}
	if err := a.EnsureNetwork(ctx, n); err != nil || requests != "" {
		t.Errorf("ensuring an existing network: %v, requests %q", err, requests)
	}
	n.Labels["x"] = "z"
	if err := a.RemoveNetwork(ctx, n); err == nil || requests != "" {
		t.Errorf("removing another program's network: %v, requests %q; want an error and no request", err, requests)
	}
	n.Labels["x"] = "y"
	if err := a.RemoveNetwork(ctx, n); err != nil || requests != "DELETE flotilla-pi-1; " {
		t.Errorf("removing our network: %v, requests %q", err, requests)
	}
	n.Name, requests = "flotilla-pi-2", ""
	if err := a.RemoveNetwork(ctx, n); err != nil || requests != "" {
		t.Errorf("removing a missing network: %v, requests %q", err, requests)
	}
}

// While another client removes a container, Docker answers that the removal is in progress, for
// ever if a mount is busy. Remove must not return success then, because the caller would retry
// without a pause.
func TestRemoveWaitsForAnotherClientsRemoval(t *testing.T) {
	for name, c := range map[string]struct {
		looks int // inspections until the container is gone; < 0: never gone
		want  string
	}{
		"gone later":   {3, ""},
		"never gone":   {-1, "removal of container c is already in progress"},
		"already gone": {0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			looks := 0
			a := served(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodDelete:
					w.WriteHeader(http.StatusConflict)
					fmt.Fprint(w, `{"message":"removal of container c is already in progress"}`)
				case looks == c.looks:
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `{"message":"No such container: c"}`)
				default:
					looks++
					fmt.Fprint(w, `{"Id":"c","State":{"Status":"removing"},"Config":{}}`)
				}
			})
			if c.looks < 0 {
				a.answerTime = 50 * time.Millisecond
			}
			switch err := a.Remove(t.Context(), "c"); {
			case err == nil && (c.want != "" || looks != c.looks):
				t.Errorf("Remove returned after %d inspections, want %d", looks, c.looks)
			case err != nil && (c.want == "" || !strings.Contains(err.Error(), c.want)):
				t.Error(err)
			}
		})
	}
}

// Two registries that stop in the middle of a response must not block all other pulls.
func TestAPullWithoutProgressEnds(t *testing.T) {
	const lines = 8
	for name, first := range map[string]string{"after the first line about a layer": `{"status":"Pulling fs layer","id":"a"}`,
		"before any line": ""} {
		t.Run(name, func(t *testing.T) {
			a := served(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasSuffix(r.URL.Path, "/images/create") {
					return
				}
				if first != "" {
					for range lines { // slow progress that takes longer in total than the allowed pause
						fmt.Fprintln(w, first)
						w.(http.Flusher).Flush()
						time.Sleep(100 * time.Millisecond)
					}
				}
				<-r.Context().Done()
			})
			a.stall = 500 * time.Millisecond
			reported := 0
			err := a.Pull(t.Context(), "example.org/app:1", nil, func(Progress) { reported++ })
			if err == nil || !strings.Contains(err.Error(), "no progress for 500ms; the agent tries again") {
				t.Errorf("the pull ends with %v, want no progress for 500ms", err)
			}
			if first != "" && reported != lines {
				t.Errorf("progress was reported %d times for %d lines", reported, lines)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	a := served(t, func(http.ResponseWriter, *http.Request) {})
	if err := a.Pull(ended, "example.org/app:1", nil, nil); err == nil ||
		!strings.Contains(err.Error(), "context canceled") {
		t.Errorf("a cancelled pull ends with %v", err)
	}
}

func TestFollowCountsLayers(t *testing.T) {
	var text strings.Builder
	for _, line := range []string{
		`{"status":"Pulling from library/app","id":"1"}`,
		`{"status":"Already exists","progressDetail":{},"id":"a"}`,
		`{"status":"Pulling fs layer","progressDetail":{},"id":"b"}`,
		`{"status":"Pulling fs layer","progressDetail":{},"id":"c"}`,
		`{"status":"Downloading","progressDetail":{"current":10,"total":100},"progress":"[=> ]","id":"b"}`,
		`{"status":"Downloading","progressDetail":{"current":30,"total":100},"id":"b"}`,
		`{"status":"Downloading","progressDetail":{"current":5,"total":50},"id":"c"}`,
		`{"status":"Verifying Checksum","progressDetail":{},"id":"c"}`,
		`{"status":"Download complete","progressDetail":{},"id":"c"}`,
		`{"status":"Extracting","progressDetail":{"current":2,"total":50},"id":"c"}`,
		`{"status":"Status: Downloaded newer image for app:1"}`,
	} {
		text.WriteString(line)
	}
	var last Progress
	if err := follow(strings.NewReader(text.String()), func(p Progress) { last = p }); err != nil {
		t.Fatal(err)
	}
	if want := (Progress{Layers: 3, Done: 2, Bytes: 80, Total: 150}); last != want {
		t.Errorf("got %+v, want %+v", last, want)
	}
	text.Reset()
	for i := range 100_000 { // memory stays bounded for any registry
		b, _ := json.Marshal(
			map[string]any{
				"status":         "Downloading",
				"id":             fmt.Sprint(i),
				"progressDetail": map[string]int{"current": 1, "total": 2},
			},
		)
		text.Write(b)
		if i > 2*maxLayers {
			break
		}
	}
	if err := follow(strings.NewReader(text.String()), func(p Progress) { last = p }); err != nil ||
		last.Layers != maxLayers {
		t.Errorf("the last progress is %+v, %v; want %d layers", last, err, maxLayers)
	}
	if err := follow(strings.NewReader(`{"errorDetail":{"message":"toomanyrequests"},"error":"toomanyrequests"}`),
		func(Progress) {}); err == nil || err.Error() != "toomanyrequests" {
		t.Errorf("got %v, want toomanyrequests", err)
	}
}
