package inventory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// A plainLoop is a Loop that applies every change and counts the calls.
type plainLoop struct {
	mu       sync.Mutex
	s        state.Snapshot
	jobs     int
	messages []string
}

func (l *plainLoop) Snapshot() state.Snapshot { l.mu.Lock(); defer l.mu.Unlock(); return l.s }
func (l *plainLoop) Now() time.Time           { return time.Now() }
func (l *plainLoop) Do(_ context.Context,
	news func(state.Snapshot, time.Time) ([]state.Change, error)) ([]state.Applied, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jobs++
	changes, err := news(l.s, time.Now())
	if err != nil {
		return nil, err
	}
	var done []state.Applied
	l.s, done = state.Apply(l.s, changes)
	return done, nil
}

func (l *plainLoop) names() (names []string) {
	for n := range l.Snapshot().Nodes() {
		names = append(names, n.Name)
	}
	return names
}

// follow runs a reader of a source. Its fleet has silent nodes that are an hour old.
func follow(t *testing.T, where string, client *http.Client, nodes ...string) (*plainLoop, *Reader) {
	l := &plainLoop{s: state.Empty("test", time.Now().Add(-time.Hour))}
	for _, name := range nodes {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
			CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		l.s, _ = state.Apply(l.s, []state.Change{state.Put(n, "")})
	}
	r := NewReader(Options{Source: where, Loop: l, Startup: startup, Log: slog.New(slog.DiscardHandler), Client: client,
		Tell: func(_ state.Snapshot, _ time.Time, warn bool, message string) state.Change {
			l.messages = append(l.messages, fmt.Sprintf("%v %s", warn, message))
			return state.Put(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
				Name: fmt.Sprint(len(l.messages))}}, "")
		}})
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	return l, r
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (l *plainLoop) has(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := l.names(); !slices.Equal(got, want) {
		t.Fatalf("nodes are %q, want %q", got, want)
	}
}

func (l *plainLoop) heard(t *testing.T, warn bool, text string) {
	t.Helper()
	_, messages := l.so()
	if len(messages) == 0 || !strings.HasPrefix(messages[len(messages)-1], fmt.Sprint(warn)) ||
		!strings.Contains(messages[len(messages)-1], text) {
		t.Errorf("the messages are %q, want %v %q", messages, warn, text)
	}
}

// so returns the number of calls and the messages so far.
func (l *plainLoop) so() (jobs int, messages []string) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.jobs, slices.Clone(l.messages)
}

func TestAnInvalidFileChangesNothing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "machines.yaml")
		l, r := follow(t, path, nil, "a", "b", "c", "d")
		l.has(t, "a", "b", "c", "d")
		l.heard(t, true, "no such file")
		if h, ok := r.Health(); !ok || h.Readable {
			t.Errorf("health is %+v", h)
		}

		write(t, path, "- name: a\n- name: b\n- name: c\n")
		time.Sleep(fileLook)
		l.has(t, "a", "b", "c", "d") // no change yet: the file may be half written
		time.Sleep(fileLook)
		l.has(t, "a", "b", "c")
		l.heard(t, false, "names 3 machines")
		if h, _ := r.Health(); !h.Readable || h.Machines != 3 {
			t.Errorf("health is %+v", h)
		}

		jobs, _ := l.so()
		time.Sleep(time.Hour)
		l.has(t, "a", "b", "c")
		if after, _ := l.so(); after != jobs {
			t.Errorf("an hour without a change cost the loop %d passes", after-jobs)
		}

		for _, bad := range []string{"", "- name: a\n  sate: gone\n", "- name: a\n- name: [",
			strings.Repeat("#", MaxSize+1)} {
			_, before := l.so()
			write(t, path, bad)
			time.Sleep(3 * fileLook)
			l.has(t, "a", "b", "c")
			l.heard(t, true, "changes nothing")
			_, _ = l.Do(t.Context(), func(state.Snapshot, time.Time) ([]state.Change, error) {
				// a node that the last valid list would delete
				return []state.Change{state.Put(node("aa", "Unknown",
					func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour)) }), "")}, nil
			})
			time.Sleep(3 * fileLook)
			l.has(t, "a", "aa", "b", "c")
			_, _ = l.Do(t.Context(), func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
				return []state.Change{state.Remove(s.Node("aa"), "")}, nil
			})
			if _, messages := l.so(); len(messages) != len(before)+1 {
				t.Errorf("%d messages, want one: %q", len(messages)-len(before), messages)
			}
			if _, messages := l.so(); strings.Contains(messages[len(messages)-1], "\n") {
				t.Errorf("the message has several lines: %q", messages[len(messages)-1])
			}
			if h, _ := r.Health(); h.Readable {
				t.Errorf("health is %+v", h)
			}
		}

		write(t, path, "- name: a\n- {name: b, state: gone}\n")
		time.Sleep(2 * fileLook)
		l.has(t, "a")
		l.heard(t, false, "names 2 machines")

		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * fileLook)
		l.heard(t, true, "no such file")
		write(t, path, "- name: another\n")
		if err := os.Chtimes(path, time.Time{}, time.Now()); err != nil { // the same time and size as before
			t.Fatal(err)
		}
		time.Sleep(2 * fileLook)
		l.has(t)
	})
}

func TestANodeThatFallsSilentLaterIsDeleted(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "machines.yaml")
		write(t, path, "- {name: a, state: gone}\n- name: b\n")
		l, _ := follow(t, path, nil, "b")
		set := func(ready corev1.ConditionStatus) {
			_, _ = l.Do(t.Context(), func(s state.Snapshot, now time.Time) ([]state.Change, error) {
				return []state.Change{state.Put(node("a", ready, func(n *corev1.Node) {
					n.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
				}), "")}, nil
			})
		}
		set("True")
		time.Sleep(10 * fileLook)
		l.has(t, "a", "b")
		set("Unknown")
		time.Sleep(fileLook + time.Second)
		l.has(t, "b")
	})
}

// A web is an HTTPS server in memory.
type web func(q *http.Request) (*http.Response, error)

func (w web) RoundTrip(q *http.Request) (*http.Response, error) { return w(q) }

func answer(code int, tag, text string) *http.Response {
	return &http.Response{StatusCode: code, Status: fmt.Sprint(code, " ", http.StatusText(code)),
		Header: http.Header{"Etag": {tag}}, Body: io.NopCloser(strings.NewReader(text))}
}

func TestAURLIsFollowedByItsETag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards the server's behaviour
		set := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }
		var asked []string
		tag, text := `"1"`, "- name: a\n- name: b\n"
		var broken error
		code := http.StatusOK
		client := &http.Client{Transport: web(func(q *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, q.Header.Get("If-None-Match"))
			switch {
			case broken != nil:
				return nil, broken
			case code != http.StatusOK:
				return answer(code, "", "- name: nobody\n"), nil
			case q.Header.Get("If-None-Match") == tag:
				return answer(http.StatusNotModified, tag, ""), nil
			}
			return answer(code, tag, text), nil
		})}
		l, _ := follow(t, "https://secret:word@machines.example.org/list", client, "a", "b", "c")
		l.has(t, "a", "b")
		time.Sleep(2 * pageLook)
		synctest.Wait()
		set(func() {
			if want := []string{"", `"1"`, `"1"`}; !slices.Equal(asked, want) {
				t.Errorf("the request has the ETag %q, want %q", asked, want)
			}
			broken = errors.New("connection refused")
		})
		time.Sleep(pageLook)
		l.has(t, "a", "b")
		l.heard(t, true, "connection refused")
		set(func() { broken, code = nil, http.StatusInternalServerError })
		time.Sleep(pageLook)
		l.has(t, "a", "b")
		l.heard(t, true, "500 Internal Server Error")
		set(func() { code, text = http.StatusOK, "<html>Sign in</html>" })
		time.Sleep(pageLook)
		l.has(t, "a", "b")
		l.heard(t, true, "not a list of machines")
		set(func() { tag, text = `"2"`, "- name: b\n" })
		time.Sleep(pageLook)
		l.has(t, "b")
		_, messages := l.so()
		for _, s := range messages {
			if strings.Contains(s, "word") {
				t.Errorf("the message contains the password: %s", s)
			}
		}
	})
}

// ends responds with these bytes and closes the connection.
func ends(with string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		_, _ = io.WriteString(c, with)
		_ = c.Close()
	}
}

func TestAListIsReadOnlyOverTLS(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprintln(w, "- name: a")
	}))
	defer plain.Close()
	for _, c := range []struct {
		rule string
		page http.HandlerFunc
		want string
	}{
		{"a page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "- name: a") }, ""},
		{"a redirect to a URL without TLS", func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, plain.URL, http.StatusFound) }, "without TLS"},
		{"a response without an end", func(w http.ResponseWriter, q *http.Request) {
			for range MaxSize/1024 + 2 {
				_, _ = w.Write(make([]byte, 1024))
			}
		}, "more than 4194304 bytes"},
		{"a truncated response", func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprintln(w, "- name: a")
		}, "unexpected EOF"},
		{"a response without a length", ends("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n- name: a\n"), "no Content-Length"},
		{"a response without a length, HTTP/1.0", ends("HTTP/1.0 200 OK\r\n\r\n- name: a\n"), "no Content-Length"},
		{"JSON without a length is complete", ends("HTTP/1.0 200 OK\r\n\r\n [{\"name\": \"a\"}]"), ""},
		{"HTTP/1.0 with a length", ends("HTTP/1.0 200 OK\r\nContent-Length: 10\r\n\r\n- name: a\n"), ""},
		{"a chunked response", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "- name: a")
			_ = http.NewResponseController(w).Flush()
			fmt.Fprintln(w, "- name: b")
		}, ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			secure := httptest.NewUnstartedServer(c.page)
			secure.Config.ErrorLog = log.New(io.Discard, "", 0)
			secure.StartTLS()
			defer secure.Close()
			client := secure.Client()
			client.CheckRedirect = newClient().CheckRedirect
			_, err := open(secure.URL, client).read(t.Context())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if _, err := open(secure.URL, newClient()).read(t.Context()); err == nil ||
				!strings.Contains(err.Error(), "certificate") {
				t.Errorf("an unknown certificate authority: %v", err)
			}
		})
	}
}

func TestADirectoryIsNotRead(t *testing.T) {
	if _, err := open(t.TempDir(), nil).read(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a directory: %v, want it refused", err)
	}
}

// Every user of the fleet can read the log and events of an inventory, so they must not contain
// secrets.
func TestASourceIsShownWithoutItsSecrets(t *testing.T) {
	for where, want := range map[string]string{
		"https://hub:s3cret@machines.example.org:8443/s3cret/list?token=s3cret": "https://machines.example.org:8443/…",
		"/etc/flotilla/machines.yaml":                                           "/etc/flotilla/machines.yaml",
	} {
		if got := displayName(where); got != want {
			t.Errorf("%s is shown as %s", where, got)
		}
	}
}
