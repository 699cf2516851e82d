package remote

import (
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"flotilla.dev/hub/panics"
)

// A socket is a WebSocket with pings and one writer at a time. Writes have no deadline, because a
// TLS connection is broken after a write times out, and a client may pause its terminal.
type socket struct {
	conn  *websocket.Conn
	text  bool // messages are text, not binary
	pongs chan string

	writing sync.Mutex
	once    sync.Once
	closed  chan struct{} // closed when the client has closed its side or is lost
}

// upgrade answers with an upgrade to a WebSocket of the protocol.
func upgrade(w http.ResponseWriter, r *http.Request, protocol string) (*socket, error) {
	var refused error
	u := websocket.Upgrader{
		Subprotocols: []string{protocol},
		CheckOrigin:  func(*http.Request) bool { return true }, // the caller has checked the origin
		Error: func(_ http.ResponseWriter, _ *http.Request, _ int, reason error) {
			refused = hijackFailed(reason)
		},
	}
	// The headers tell a standby that the user is authenticated.
	conn, err := u.Upgrade(w, r, w.Header())
	if err != nil {
		return nil, refused
	}
	s := &socket{conn: conn, pongs: make(chan string, 1), closed: make(chan struct{})}
	conn.SetPingHandler(func(data string) error {
		select {
		case s.pongs <- data:
		default: // an earlier pong is not written yet, and is enough
		}
		return nil
	})
	go s.sendPings()
	return s, nil
}

// sendPings writes pings and pongs until the client closes the connection.
func (s *socket) sendPings() {
	defer panics.CatchThen("stream", func(error) { s.markClosed() })
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		kind, data := websocket.PingMessage, ""
		select {
		case <-s.closed:
			return
		case data = <-s.pongs:
			kind = websocket.PongMessage
		case <-t.C:
		}
		switch err := s.conn.WriteControl(kind, []byte(data), time.Time{}); err {
		case nil:
		case websocket.ErrCloseSent: // the hub is closing the connection
			return
		default:
			s.markClosed()
			return
		}
	}
}

// send writes one message.
func (s *socket) send(message []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	kind := websocket.BinaryMessage
	if s.text {
		kind = websocket.TextMessage
	}
	return s.conn.WriteMessage(kind, message)
}

// markClosed marks the client as gone.
func (s *socket) markClosed() { s.once.Do(func() { close(s.closed) }) }

// closeGracefully sends a close message, gives the client time to read the data before it, and
// closes the connection. The caller must keep reading until closeGracefully returns.
func (s *socket) closeGracefully() {
	timeout := time.AfterFunc(closeTimeout, func() { _ = s.conn.Close() })
	defer timeout.Stop()
	_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Time{})
	<-s.closed
	_ = s.conn.Close()
}
