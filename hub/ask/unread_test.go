package ask_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/ask"
	"flotilla.dev/shared/wire"
)

// devices answer for any node.
type devices struct {
	client *ask.Client
	mu     sync.Mutex
	asked  [][2]string // node and ID of each command
}

func (d *devices) Request(node, id string, r wire.Request) error {
	if r.Type == wire.RequestExec {
		d.mu.Lock()
		d.asked = append(d.asked, [2]string{node, id})
		d.mu.Unlock()
		d.client.Reply(node, id, wire.Reply{})
	}
	return nil
}

// At a limit, the hub ends the responses with the most unread bytes. A response with a reader goes
// on.
func TestUnreadResponsesDoNotBlockReaders(t *testing.T) {
	const chunk = 32 << 10
	for _, c := range []struct {
		name          string
		nodes, slow   int // nodes, and unread responses of each, which keep 2 MiB and the chunk being written
		rest          int // chunks of one more unread response, which together reach the limit
		ended, reader int // number of responses that end; the node that has a reader
	}{
		{"the limit of the reader's node", 1, 8, 9, 1, 0},
		{"the limit of another node", 1, 8, 9, 0, 1},
		{"the limit of all nodes", 8, 4, 33, 1, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				d := &devices{}
				d.client = &ask.Client{Broker: d}
				begin := func(node int, s ask.IO, over chan<- error) [2]string {
					pod := onPi.DeepCopy()
					pod.Spec.NodeName = fmt.Sprint("pi-", node)
					go func() {
						over <- d.client.Exec(ctx, pod, corev1.PodExecOptions{Container: "c", Command: []string{"x"}}, s)
					}()
					synctest.Wait()
					return d.asked[len(d.asked)-1]
				}
				never := make(chan struct{})
				over := make(chan error, c.nodes*c.slow+1)
				for n := range c.nodes*c.slow + 1 {
					chunks := wire.ReplyWindow
					if n == c.nodes*c.slow {
						chunks = c.rest
					}
					at := begin(n%c.nodes, ask.IO{Stdout: &slowWriter{may: never}}, over)
					for seq := range uint64(chunks) {
						d.client.Reply(at[0], at[1], wire.Reply{Seq: seq + 1, Data: make([]byte, chunk)})
						synctest.Wait() // the first chunk is on its way to the blocked reader
					}
				}
				if n := len(over); n > 0 {
					t.Fatalf("%d responses ended below the limit", n)
				}
				var read bytes.Buffer
				done := make(chan error, 1)
				at := begin(c.reader, ask.IO{Stdout: &read}, done)
				const chunks = 100
				for seq := range uint64(chunks) {
					d.client.Reply(at[0], at[1], wire.Reply{Seq: seq + 1, Data: make([]byte, chunk)})
					synctest.Wait()
				}
				d.client.Reply(at[0], at[1], wire.Reply{Seq: chunks + 1, EOF: true})
				if err := <-done; err != nil || read.Len() != chunks*chunk {
					t.Errorf("the reader got %d bytes of %d, %v", read.Len(), chunks*chunk, err)
				}
				close(never) // the blocked readers read what they still have
				synctest.Wait()
				if n := len(over); n != c.ended {
					t.Errorf("%d unread responses ended, want %d", n, c.ended)
				}
				for range len(over) {
					if err := <-over; !errors.Is(err, ask.ErrLost) || !strings.Contains(err.Error(), "most of them of this response") {
						t.Errorf("an unread response ended with %v", err)
					}
				}
			})
		})
	}
}

// A device that exceeds a limit loses its response with the most unread bytes first.
func TestTheLargestBacklogEndsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		d := &devices{}
		d.client = &ask.Client{Broker: d}
		never := make(chan struct{})
		over := make(chan string, 10)
		begin := func(name string) [2]string {
			go func() {
				err := d.client.Exec(ctx, onPi, corev1.PodExecOptions{Container: "c", Command: []string{"x"}},
					ask.IO{Stdout: &slowWriter{may: never}})
				if ctx.Err() == nil {
					over <- fmt.Sprint(name, errors.Is(err, ask.ErrLost))
				}
			}()
			synctest.Wait()
			return d.asked[len(d.asked)-1]
		}
		send := func(at [2]string, chunks, size int) {
			for seq := range chunks {
				d.client.Reply(at[0], at[1], wire.Reply{Seq: uint64(seq) + 1, Data: make([]byte, size)})
			}
		}
		send(begin("greedy"), 60, 128<<10)
		for range 4 {
			send(begin("honest"), wire.ReplyWindow, 32<<10)
		}
		send(begin("honest"), 48, 32<<10)
		close(never)
		synctest.Wait()
		if n := len(over); n != 1 {
			t.Fatalf("%d responses ended, want 1", n)
		}
		if got := <-over; got != "greedytrue" {
			t.Errorf("the ended response and whether it was lost: %s, want greedytrue", got)
		}
	})
}
