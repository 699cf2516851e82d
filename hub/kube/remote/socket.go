package remote

import (
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"flotilla.dev/hub/panics"
)

// A socket is a WebSocket with one writer at a time and a beat. Nothing that it
// writes has a deadline: a TLS connection whose write ran out of time is broken for
// good, and a client that pauses its terminal is no reason for that.
type socket struct {
	conn  *websocket.Conn
	text  bool // messages are text
	pongs chan string

	writing sync.Mutex
	once    sync.Once
	left    chan struct{} // closed when the client has closed its side, or is lost
}

// upgrade answers with a WebSocket of the protocol.
func upgrade(w http.ResponseWriter, r *http.Request, protocol string) (*socket, error) {
	var refused error
	u := websocket.Upgrader{
		Subprotocols: []string{protocol},
		CheckOrigin:  func(*http.Request) bool { return true }, // the caller has
		Error: func(_ http.ResponseWriter, _ *http.Request, _ int, reason error) {
			refused = hijackFailed(reason)
		},
	}
	// what was said of the answer goes along: by it a standby knows the caller from a stranger
	conn, err := u.Upgrade(w, r, w.Header())
	if err != nil {
		return nil, refused
	}
	s := &socket{conn: conn, pongs: make(chan string, 1), left: make(chan struct{})}
	conn.SetPingHandler(func(data string) error {
		select {
		case s.pongs <- data:
		default: // the one before is not written yet, and will do
		}
		return nil
	})
	go s.beat()
	return s, nil
}

// beat writes pings and answers those of the client until it has left.
func (s *socket) beat() {
	defer panics.CatchThen("stream", func(error) { s.leave() })
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		kind, data := websocket.PingMessage, ""
		select {
		case <-s.left:
			return
		case data = <-s.pongs:
			kind = websocket.PongMessage
		case <-t.C:
		}
		switch err := s.conn.WriteControl(kind, []byte(data), time.Time{}); err {
		case nil:
		case websocket.ErrCloseSent: // we are parting
			return
		default:
			s.leave()
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

// leave notes that there is nobody any more.
func (s *socket) leave() { s.once.Do(func() { close(s.left) }) }

// part says goodbye, gives the client some time to read what came before, and
// closes the connection. Somebody has to read from it until then.
func (s *socket) part() {
	late := time.AfterFunc(parting, func() { _ = s.conn.Close() })
	defer late.Stop()
	_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""),
		time.Time{})
	<-s.left
	_ = s.conn.Close()
}
