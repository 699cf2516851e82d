package remote

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/panics"
)

// channels is a command's client on a WebSocket. The first byte of each message is the stream's
// number. In v5 the message 255, 0 ends the input; v4 has no such message. The base64 forms are for
// clients that send only text; their first byte is a digit. Before v4 an error was plain text, and
// success an empty message.
type channels struct {
	*socket
	*input
	enabled  Streams
	v5       bool
	beforeV4 bool // a protocol older than v4
}

const (
	v4Base64 = "v4." + wsstream.Base64ChannelWebSocketProtocol
	v1       = wsstream.ChannelWebSocketProtocol
	v1Base64 = wsstream.Base64ChannelWebSocketProtocol
)

var commandProtocols = []string{remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name, v4Base64, v1,
	v1Base64}

func acceptChannels(w http.ResponseWriter, r *http.Request, enabled Streams) (session, error) {
	protocol, err := choose(websocket.Subprotocols(r), commandProtocols)
	if err != nil {
		return nil, err
	}
	s, err := upgrade(w, r, protocol)
	if err != nil {
		return nil, err
	}
	s.text = protocol == v4Base64 || protocol == v1Base64
	c := &channels{socket: s, input: newInput(), enabled: enabled, v5: protocol == remotecommand.StreamProtocolV5Name,
		beforeV4: protocol == v1 || protocol == v1Base64}
	go c.listen()
	if c.v5 { // v5 clients need no first message; kubectl 1.30 to 1.32 reports it as an error
		return c, nil
	}
	// Clients older than v5 wait for a first message, which says that the streams are open.
	first := channel{c.socket, remotecommand.StreamErr}
	switch {
	case enabled.Stdout:
		first.id = remotecommand.StreamStdOut
	case enabled.Stderr:
		first.id = remotecommand.StreamStdErr
	}
	_, _ = first.Write(nil)
	return c, nil
}

// listen reads until the client closes the connection. While the command does not read its input,
// listen waits too, and the next ping notices that the client has gone.
func (c *channels) listen() {
	defer panics.Catch("stream")
	defer c.markClosed()
	defer c.input.abort()
	buf := make([]byte, 32<<10)
	for {
		_, message, err := c.conn.NextReader()
		// Before v5 a normal close ends the input.
		if websocket.IsCloseError(err, websocket.CloseNormalClosure) && !c.v5 {
			c.input.close()
		}
		if err != nil {
			return
		}
		if _, err := io.ReadFull(message, buf[:1]); err != nil {
			continue // some clients keep the connection open with empty messages
		}
		if c.text {
			buf[0] -= '0'
			message = base64.NewDecoder(base64.StdEncoding, message)
		}
		switch buf[0] {
		case remotecommand.StreamStdIn:
			if c.enabled.Stdin {
				c.typed(message, buf)
			}
		case remotecommand.StreamResize:
			_ = c.resize(json.NewDecoder(io.LimitReader(message, maxSize)))
		case remotecommand.StreamClose:
			if _, err := io.ReadFull(message, buf[:1]); err == nil && c.v5 && buf[0] == remotecommand.StreamStdIn {
				c.input.close()
			}
		}
	}
}

func (c *channels) typed(message io.Reader, buf []byte) {
	for {
		n, err := message.Read(buf)
		if n > 0 {
			c.input.write(buf[:n])
		}
		if err != nil {
			return // the next message fails as well
		}
	}
}

func (c *channels) io() ask.IO {
	var s ask.IO
	if c.enabled.Stdout {
		s.Stdout = channel{c.socket, remotecommand.StreamStdOut}
	}
	if c.enabled.Stderr {
		s.Stderr = channel{c.socket, remotecommand.StreamStdErr}
	}
	return c.of(c.enabled, s)
}

func (c *channels) gone() <-chan struct{} { return c.closed }

func (c *channels) end(st *metav1.Status) {
	c.stop()
	b, _ := json.Marshal(st) // strings and numbers can always be encoded
	if c.beforeV4 {
		b = []byte(st.Message)
	}
	if !c.beforeV4 || st.Status != metav1.StatusSuccess {
		_, _ = channel{c.socket, remotecommand.StreamErr}.Write(b)
	}
	c.closeGracefully()
}

// A channel writes to one stream.
type channel struct {
	*socket
	id byte
}

func (c channel) Write(b []byte) (int, error) {
	var message []byte
	if c.text {
		message = base64.StdEncoding.AppendEncode([]byte{'0' + c.id}, b)
	} else {
		message = append(append(make([]byte, 0, 1+len(b)), c.id), b...)
	}
	if err := c.send(message); err != nil {
		return 0, err
	}
	return len(b), nil
}
