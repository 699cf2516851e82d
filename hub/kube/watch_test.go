package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
)

// Times of package watch.
const (
	stalled       = 30 * time.Second
	leasePeriod   = 10 * time.Second
	bookmarkEvery = time.Minute
)

// A watching reads one watch stream, frame by frame.
type watching struct {
	t      *testing.T
	cancel context.CancelFunc
	done   chan struct{} // closed when the stream ends

	mu     sync.Mutex
	header http.Header
	code   int
	buf    bytes.Buffer
	held   chan struct{} // if not nil, writes wait until it is closed
}

func (w *watching) Header() http.Header { return w.header }
func (w *watching) WriteHeader(code int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.code = code
}
func (w *watching) Flush() {}

func (w *watching) Write(b []byte) (int, error) {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	if held != nil {
		<-held
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(b)
}

// hold stops the client from reading until the returned function is called.
func (w *watching) hold() (release func()) {
	held := make(chan struct{})
	w.mu.Lock()
	w.held = held
	w.mu.Unlock()
	return func() { close(held) }
}

// openWatch opens a stream in a synctest bubble.
func openWatch(t *testing.T, s *Server, path, accept string) *watching {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watching{t: t, cancel: cancel, done: make(chan struct{}), header: http.Header{}}
	r := httptest.NewRequestWithContext(ctx, "GET", path, nil)
	r.Header.Set("Authorization", "Bearer viewer")
	r.Header.Set("Accept", accept)
	go func() {
		defer close(w.done)
		s.ServeHTTP(w, r)
	}()
	synctest.Wait()
	if w.code != http.StatusOK {
		t.Fatalf("GET %s: %d %s", path, w.code, w.buf.String())
	}
	return w
}

// A watchEvent is the part of a frame that tests compare.
type watchEvent struct {
	Type   string
	Object struct {
		Kind     string
		Metadata struct {
			Name, ResourceVersion string
			Annotations, Labels   map[string]string
		}
		ColumnDefinitions []struct{ Name string }
		Rows              []struct {
			Object struct {
				Metadata struct {
					Name        string
					Annotations map[string]string
				}
			}
		}
		Code    int
		Reason  string
		Message string
		Spec    struct{ RenewTime string }
	}
}

// frames returns the frames that arrived since the last call.
func (w *watching) frames() (list []watchEvent) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.buf.String()) {
		var f watchEvent
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			w.t.Fatalf("frame %q: %v", line, err)
		}
		list = append(list, f)
	}
	w.buf.Reset()
	return list
}

// expect compares the new frames with lines such as "ADDED pi-1 4".
func (w *watching) expect(want ...string) []watchEvent {
	w.t.Helper()
	list := w.frames()
	var got []string
	for _, f := range list {
		name := f.Object.Metadata.Name
		for _, row := range f.Object.Rows {
			name += row.Object.Metadata.Name
		}
		got = append(got, strings.Join(strings.Fields(f.Type+" "+name+" "+f.Object.Metadata.ResourceVersion), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.t.Fatalf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	return list
}

func (w *watching) ended() bool {
	synctest.Wait()
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// touch writes the object again with a label, or without the label if the value is "".
func (f *fakeFleet) touch(o state.Object, label, value string) {
	o = f.Snapshot().Get(state.KeyOf(o)).DeepCopyObject().(state.Object)
	labels := o.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	if labels[label] = value; value == "" {
		delete(labels, label)
	}
	o.SetLabels(labels)
	f.put(o)
}

func (f *fakeFleet) remove(o state.Object) {
	_, _ = f.Do(context.Background(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
		return []state.Change{state.Remove(s.Get(state.KeyOf(o)), "")}, nil
	})
}

func bubble(t *testing.T, f func(*testing.T, *fakeFleet, *Server)) {
	synctest.Test(t, func(t *testing.T) {
		fake := newFake() // revisions 1 to 3 created namespaces
		fake.put(fakeNode("pi-1", "oslo"), fakeNode("pi-2", "bergen"))
		f(t, fake, newServer(fake))
	})
}

func TestWatchSendsObjectsThenChanges(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=true", resource.MediaJSON)
		defer w.cancel()
		w.expect("ADDED pi-1 4", "ADDED pi-2 5")
		f.put(fakePod("kiosk-1", "pi-1")) // a change of another kind is not sent
		f.touch(fakeNode("pi-1", ""), "a", "b")
		f.put(fakeNode("pi-3", "oslo"))
		f.remove(fakeNode("pi-2", ""))
		w.expect("MODIFIED pi-1 7", "ADDED pi-3 8", "DELETED pi-2 9")
	})
}

func TestWatchFromARevisionSendsLaterChanges(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=4", resource.MediaJSON)
		defer w.cancel()
		w.expect("ADDED pi-2 5")
		f.touch(fakeNode("pi-1", ""), "a", "b")
		w.expect("MODIFIED pi-1 6")
	})
}

func TestWatchOfASelectionSendsAddedAndDeleted(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&labelSelector=lamp%3Don&resourceVersion=5", resource.MediaJSON)
		defer w.cancel()
		node := fakeNode("pi-1", "")
		f.touch(node, "other", "x")
		w.expect()
		f.touch(node, "lamp", "on")
		f.touch(node, "other", "y")
		f.touch(node, "lamp", "off")
		frames := w.expect("ADDED pi-1 7", "MODIFIED pi-1 8", "DELETED pi-1 9")
		if got := frames[2].Object.Metadata.Labels["lamp"]; got != "on" {
			t.Errorf("DELETED has lamp=%s, want the content before the change", got)
		}
		f.remove(node) // the node is no longer selected: its deletion is not sent
		w.expect()
	})
}

func TestWatchOfATableHasItsColumnsOnce(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=5", aTab)
		defer w.cancel()
		f.touch(fakeNode("pi-1", ""), "a", "b")
		f.touch(fakeNode("pi-2", ""), "a", "b")
		for i, frame := range w.expect("MODIFIED pi-1 6", "MODIFIED pi-2 7") {
			if frame.Object.Kind != "Table" || (len(frame.Object.ColumnDefinitions) > 0) != (i == 0) {
				t.Errorf("frame %d is a %s with %d columns, want a Table; only the first has columns", i, frame.Object.Kind,
					len(frame.Object.ColumnDefinitions))
			}
		}
	})
}

func TestWatchSendsBookmarksEachMinute(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=5&allowWatchBookmarks=true", resource.MediaJSON)
		defer w.cancel()
		quiet := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=5", resource.MediaJSON)
		defer quiet.cancel()
		f.put(fakePod("kiosk-1", "pi-1"))
		time.Sleep(bookmarkEvery + time.Second)
		if got := w.expect("BOOKMARK 6")[0].Object.Kind; got != "Node" {
			t.Errorf("the bookmark is a %s, want a Node", got)
		}
		quiet.expect()
	})
}

func TestABookmarkEndsTheInitialEvents(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", resource.MediaJSON)
		defer w.cancel()
		frames := w.expect("ADDED pi-1 4", "ADDED pi-2 5", "BOOKMARK 5")
		if frames[2].Object.Metadata.Annotations["k8s.io/initial-events-end"] != "true" {
			t.Errorf("the bookmark has the annotations %v", frames[2].Object.Metadata.Annotations)
		}
		f.touch(fakeNode("pi-1", ""), "a", "b")
		w.expect("MODIFIED pi-1 6")
	})
}

func TestARowOfATableEndsTheInitialEvents(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=metadata.name%3Dpi-1", aTab)
		defer w.cancel()
		end := w.expect("ADDED pi-1 4", "BOOKMARK 5")[1].Object
		if len(end.Rows) != 1 || end.Rows[0].Object.Metadata.Annotations["k8s.io/initial-events-end"] != "true" {
			t.Errorf("the bookmark is %+v", end)
		}
	})
}

func TestAWatchOlderThanTheHistoryExpires(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		f.keep = 2
		for range 5 {
			f.touch(fakeNode("pi-1", ""), "a", "b")
		}
		w := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=4", resource.MediaJSON)
		defer w.cancel()
		frames := w.expect("ERROR")
		if o := frames[0].Object; o.Code != 410 || o.Reason != "Expired" || o.Message != "too old resource version: 4 (10)" {
			t.Errorf("the watch ends with %d %s %q, want 410 Expired", o.Code, o.Reason, o.Message)
		}
		if !w.ended() {
			t.Error("the stream must end")
		}
	})
}

func TestWatchEndsAtItsTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/api/v1/nodes?watch=1&timeoutSeconds=7", resource.MediaJSON)
		defer w.cancel()
		time.Sleep(7*time.Second - time.Millisecond)
		if w.ended() {
			t.Fatal("the stream must not end yet")
		}
		time.Sleep(time.Millisecond)
		if !w.ended() {
			t.Error("the stream must end")
		}
	})
}

func TestASlowWatchDoesNotBlockOthers(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		f.keep = 10
		slow := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=5", resource.MediaJSON)
		defer slow.cancel()
		quick := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=5", resource.MediaJSON)
		defer quick.cancel()
		release := slow.hold()
		seen := 0
		for i := range 50 {
			f.touch(fakeNode("pi-1", ""), "a", fmt.Sprint(i))
			seen += len(quick.frames())
		}
		if seen != 50 {
			t.Errorf("the quick watch received %d of 50 changes", seen)
		}
		release()
		frames := slow.frames()
		if last := frames[len(frames)-1]; last.Type != "ERROR" || last.Object.Code != 410 || len(frames) > 2 {
			t.Errorf("the slow watch received %d frames, the last is %s %d", len(frames), last.Type, last.Object.Code)
		}
	})
}

func TestWatchOfLeasesSendsRenewals(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		w := openWatch(t, s, "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases?watch=1", resource.MediaJSON)
		defer w.cancel()
		w.expect("ADDED pi-1 5", "ADDED pi-2 5")
		time.Sleep(leasePeriod + time.Second)
		w.expect() // no lease was renewed
		f.renewed = fakeStart.Add(2 * time.Minute)
		f.remove(fakeNode("pi-2", ""))
		time.Sleep(leasePeriod)
		w.expect("MODIFIED pi-1 6", "DELETED pi-2 6")
	})
}

// A client that does not read is disconnected.
func TestAStalledClientIsDisconnected(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		ended := make(chan struct{})
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.ServeHTTP(w, r)
			close(ended)
		})}
		pipes := make(pipeListener, 1)
		go func() { _ = srv.Serve(pipes) }()
		defer func() { _ = srv.Close() }()
		client, server := net.Pipe()
		defer func() { _ = client.Close() }()
		pipes <- server
		if _, err := client.Write([]byte("GET /api/v1/nodes?watch=1 HTTP/1.1\r\nHost: hub\r\nAuthorization: Bearer viewer\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(stalled - time.Millisecond)
		select {
		case <-ended:
			t.Fatal("the stream must not end yet")
		default:
		}
		time.Sleep(2 * time.Millisecond)
		select {
		case <-ended:
		default:
			t.Error("the stream of a client that reads nothing must end")
		}
	})
}

type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipeListener) Close() error   { close(l); return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func TestUnreadWatchesAreLimitedInBytes(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
		var all []*watching
		for range 100 {
			w := openWatch(t, s, "/api/v1/nodes?watch=1&resourceVersion=5", resource.MediaJSON)
			defer w.cancel()
			defer w.hold()()
			all = append(all, w)
		}
		f.touch(fakeNode("pi-1", ""), "a", strings.Repeat("x", 1<<20))
		synctest.Wait()
		s.answers.mu.Lock()
		if held := s.answers.all; held > userUnread || held < userUnread/4 {
			t.Errorf("%d bytes are counted for 100 unread watches, want at most %d", held, userUnread)
		}
		s.answers.mu.Unlock()
		ended := 0
		for _, w := range all {
			if w.ended() {
				ended++
			}
		}
		if ended == 0 || ended == len(all) {
			t.Errorf("%d of %d watches ended, want those over the limit", ended, len(all))
		}
	})
}
