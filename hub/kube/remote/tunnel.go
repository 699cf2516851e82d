package remote

import (
	"io"
	"net"
	"time"

	"github.com/gorilla/websocket"
)

// A tunnel is a connection whose bytes are messages of a WebSocket.
type tunnel struct {
	*socket
	net.Conn // has the addresses and deadlines
	message  io.Reader
}

func newTunnel(s *socket) *tunnel { return &tunnel{socket: s, Conn: s.conn.NetConn()} }

func (t *tunnel) Read(p []byte) (int, error) {
	for {
		if t.message == nil {
			_, m, err := t.conn.NextReader()
			if err != nil {
				t.markClosed()
				return 0, io.EOF
			}
			t.message = m
		}
		n, err := t.message.Read(p)
		if n > 0 || err == nil {
			return n, nil
		}
		t.message = nil // the next message fails as well
	}
}

func (t *tunnel) Write(p []byte) (int, error) {
	if err := t.send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (t *tunnel) Close() error {
	t.markClosed()
	_ = t.socket.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Now().Add(time.Second))
	return t.socket.conn.Close()
}
