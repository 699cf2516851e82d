package remote

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	"flotilla.dev/hub/ask"
)

// A hijacked is a connection that was read up to the end of its request.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
	read *bufio.Reader
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(h.read, bufio.NewWriter(h.conn)), nil
}

// If a command does not read its input, the hub does not read the connection, not even its end.
// Pings notice that the client has gone.
func TestPingsDetectAClientThatHasGone(t *testing.T) {
	for name, open := range map[string]func(t *testing.T, c net.Conn) (write func([]byte) error){
		"WebSocket": func(t *testing.T, c net.Conn) func([]byte) error {
			d := websocket.Dialer{
				Subprotocols:   []string{remotecommand.StreamProtocolV5Name},
				NetDialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil },
			}
			conn, _, err := d.DialContext(t.Context(), "ws://hub/", nil)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _, _ = conn.ReadMessage() }()
			return func(b []byte) error { return conn.WriteMessage(websocket.BinaryMessage, b) }
		},
		"SPDY": func(t *testing.T, c net.Conn) func([]byte) error {
			conn := upgradeSPDY(t, c, remotecommand.StreamProtocolV4Name)
			openStream(t, conn, http.Header{corev1.StreamType: {corev1.StreamTypeError}})
			stdin := openStream(t, conn, http.Header{corev1.StreamType: {corev1.StreamTypeStdin}})
			return func(b []byte) error {
				_, err := stdin.Write(b)
				return err
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				theirs, ours := net.Pipe()
				ended := make(chan struct{})
				go func() {
					read := bufio.NewReader(ours)
					r, err := http.ReadRequest(read)
					if err != nil {
						t.Error(err)
						return
					}
					if err := Serve(hijacked{ResponseWriter: httptest.NewRecorder(), conn: ours, read: read}, r, Streams{Stdin: true},
						func(ctx context.Context, _ ask.IO) error {
							<-ctx.Done()
							close(ended)
							return ctx.Err()
						}); err != nil {
						t.Error(err)
					}
				}()
				write := open(t, theirs)
				stuck := make(chan struct{})
				go func() {
					defer close(stuck)
					for b := make([]byte, 16<<10); write(b) == nil; {
					}
				}()
				synctest.Wait()
				select {
				case <-stuck:
					t.Fatal("the hub must not read the client's end")
				default:
				}
				_ = theirs.Close()
				time.Sleep(2 * pingEvery)
				synctest.Wait()
				select {
				case <-ended:
				default:
					t.Error("the command must end when the client has gone")
				}
				time.Sleep(closeTimeout)
			})
		})
	}
}
