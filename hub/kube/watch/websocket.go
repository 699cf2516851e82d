package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/panics"
)

// watchProtocols name the encodings of events as messages: base64 text, or binary.
var watchProtocols = []string{"base64.binary.k8s.io", "binary.k8s.io"}

// ServeWebSocket runs a watch on a WebSocket until either side or ctx ends it.
func (w *Watch) ServeWebSocket(ctx context.Context, rw http.ResponseWriter, r *http.Request,
	o *internalversion.ListOptions) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	websocket.Server{
		Handshake: func(config *websocket.Config, _ *http.Request) error {
			if len(config.Protocol) == 0 {
				return nil
			}
			for _, p := range config.Protocol {
				if slices.Contains(watchProtocols, p) {
					config.Protocol = []string{p}
					return nil
				}
			}
			return errors.New("unsupported WebSocket protocol")
		},
		Handler: func(conn *websocket.Conn) {
			go func() { // drop the client's messages, but notice a close
				defer panics.Catch("watch")
				defer cancel()
				_, _ = io.Copy(io.Discard, conn)
			}()
			w.out = messages{conn, w.Form.Media}
			w.run(ctx, o)
		},
	}.ServeHTTP(rw, r)
}

// messages sends each frame as one message. It omits the separators of the HTTP stream.
type messages struct {
	conn  *websocket.Conn
	media string
}

func (m messages) write(frames []byte) error {
	send := func(message any) error {
		if err := m.conn.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		return websocket.Message.Send(m.conn, message)
	}
	if m.media == resource.MediaProto {
		for len(frames) > 0 {
			end := 4 + binary.BigEndian.Uint32(frames)
			if err := send(frames[4:end]); err != nil {
				return err
			}
			frames = frames[end:]
		}
		return nil
	}
	for frame := range bytes.Lines(frames) {
		if err := send(strings.TrimSuffix(string(frame), "\n")); err != nil {
			return err
		}
	}
	return nil
}
