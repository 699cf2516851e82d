package ask_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/ask"
	"flotilla.dev/shared/wire"
)

// A device answers each request as configured.
type device struct {
	client  *ask.Client
	answer  func(id string)
	offline bool
	types   []string
}

func (d *device) Request(node, id string, r wire.Request) error {
	if d.offline {
		return errors.New("no session")
	}
	d.types = append(d.types, r.Type)
	if r.Type == wire.RequestLogs && d.answer != nil {
		go d.answer(id)
	}
	return nil
}

func logs(t *testing.T, d *device, o corev1.PodLogOptions) (string, error) {
	t.Helper()
	d.client = &ask.Client{Broker: d}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{NodeName: "pi-1"}}
	var out bytes.Buffer
	err := d.client.Logs(t.Context(), pod, o, &out)
	return out.String(), err
}

func TestLogs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		device  func(d *device, id string)
		offline bool
		want    string
		err     error
	}{
		{"chunks are written in order until the end", func(d *device, id string) {
			for seq, text := range []string{"a", "b", "c"} {
				d.client.Reply("pi-1", id, wire.Reply{Seq: uint64(seq), Data: []byte(text), EOF: seq == 2})
			}
		}, false, "abc", nil},
		{"a missing chunk ends the log", func(d *device, id string) {
			d.client.Reply("pi-1", id, wire.Reply{Seq: 0, Data: []byte("a")})
			d.client.Reply("pi-1", id, wire.Reply{Seq: 2, Data: []byte("c"), EOF: true})
		}, false, "a", ask.ErrLost},
		{"a response of another node is ignored", func(d *device, id string) {
			d.client.Reply("pi-2", id, wire.Reply{Data: []byte("x"), EOF: true})
		}, false, "", ask.ErrLost},
		{"a lost link ends the log", func(d *device, id string) { d.client.Disconnected("pi-1") }, false, "", ask.ErrLost},
		{"an offline device fails at once", nil, true, "", ask.ErrOffline},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &device{offline: tt.offline}
				d.answer = func(id string) {
					if tt.device != nil {
						tt.device(d, id)
					}
				}
				got, err := logs(t, d, corev1.PodLogOptions{})
				if got != tt.want || !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil) {
					t.Errorf("%q, %v; want %q, %v", got, err, tt.want, tt.err)
				}
			})
		})
	}
}

func TestAFollowedLogRunsUntilItsReaderLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &device{}
		d.answer = func(id string) { d.client.Reply("pi-1", id, wire.Reply{Data: []byte("a")}) }
		d.client = &ask.Client{Broker: d}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		err := d.client.Logs(ctx, &corev1.Pod{Spec: corev1.PodSpec{NodeName: "pi-1"}},
			corev1.PodLogOptions{Follow: true}, &bytes.Buffer{})
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Hour {
			t.Errorf("the log ended after %s: %v, want after an hour", time.Since(began), err)
		}
		if last := d.types[len(d.types)-1]; last != wire.RequestCancel {
			t.Errorf("the device received %v, want a cancel at the end", d.types)
		}
	})
}

func TestNodeLogs(t *testing.T) {
	tail := int64(7)
	for _, tt := range []struct {
		name   string
		answer wire.Reply
		want   string
		err    error
	}{
		{"the agent's own log", wire.Reply{Data: []byte("a"), EOF: true}, "a", nil},
		{"an agent that does not know the request is too old", wire.Reply{EOF: true, Error: wire.Unsupported(wire.RequestNodeLogs)}, "", ask.ErrTooOld},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				since := metav1.NewTime(time.Now().Add(-59*time.Second - 300*time.Millisecond))
				var asked wire.Request
				g := newGadget(func(g *gadget, id string, r wire.Request) {
					if r.Type == wire.RequestNodeLogs {
						asked = r
						g.reply(id, tt.answer)
					}
				})
				var out bytes.Buffer
				err := g.client.NodeLogs(t.Context(), "pi-1", corev1.PodLogOptions{TailLines: &tail, SinceTime: &since,
					Timestamps: true, Container: "x", Previous: true}, &out)
				if out.String() != tt.want || !errors.Is(err, tt.err) || (tt.err == nil) != (err == nil) {
					t.Errorf("%q, %v; want %q, %v", &out, err, tt.want, tt.err)
				}
				if asked.TailLines != &tail || *asked.SinceSeconds != 60 || !asked.SinceTime.Equal(since.Time) ||
					!asked.Timestamps || asked.Container != "" || asked.Previous {
					t.Errorf("the device received the options %+v", asked)
				}
			})
		})
	}
	g := newGadget(nil)
	g.away = true
	if err := g.client.NodeLogs(t.Context(), "pi-1", corev1.PodLogOptions{},
		&bytes.Buffer{}); !errors.Is(err, ask.ErrOffline) {
		t.Error(err)
	}
}

// unready is a writer that blocks until it is closed.
type unready chan struct{}

func (u unready) Write(b []byte) (int, error) {
	<-u
	return len(b), nil
}

// A pusher answers every log request with 5 MiB at once.
type pusher struct{ client *ask.Client }

func (p *pusher) Request(node, id string, r wire.Request) error {
	if r.Type == wire.RequestLogs {
		for seq := range uint64(32) {
			p.client.Reply(node, id, wire.Reply{Seq: seq, Data: make([]byte, 160<<10), EOF: seq == 31})
		}
	}
	return nil
}

func TestUnreadResponsesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pusher{}
		p.client = &ask.Client{Broker: p}
		on := func(node string, w io.Writer) error {
			return p.client.Logs(t.Context(), &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}, corev1.PodLogOptions{}, w)
		}
		ended := make(chan error, 100)
		w := make(unready)
		unread := func(node string, questions int) {
			for range questions {
				go func() { ended <- on(node, w) }()
			}
		}
		unread("pi-1", 40) // the limit of a node has room for three of these responses
		synctest.Wait()
		var out bytes.Buffer
		if err := on("pi-2", &out); err != nil || out.Len() != 32*160<<10 {
			t.Errorf("log of another node: %d bytes, want %d: %v", out.Len(), 32*160<<10, err)
		}
		for _, node := range []string{"pi-3", "pi-4", "pi-5", "pi-6", "pi-7"} {
			unread(node, 10)
		}
		synctest.Wait()
		if err := on("pi-2", &bytes.Buffer{}); err != nil {
			t.Errorf("a log with a reader fails because of unread responses: %v", err)
		}
		close(w)
		whole := 0
		for range 90 {
			if err := <-ended; err == nil {
				whole++
			} else if !errors.Is(err, ask.ErrLost) {
				t.Error(err)
			}
		}
		if whole < 3 || whole > 12 { // 64 MiB hold 12 responses of 5 MiB; parts of other responses count too
			t.Errorf("%d of 90 unread responses are complete", whole)
		}
		for range 20 { // ended responses must not count any more
			if err := on("pi-1", &bytes.Buffer{}); err != nil {
				t.Fatal(err)
			}
		}
	})
}
