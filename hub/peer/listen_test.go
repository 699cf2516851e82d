package peer

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"flotilla.dev/hub/leader"
)

// counted is a listener that counts its open connections.
type counted struct {
	net.Listener
	mu         sync.Mutex
	open, most int
}

type countedConn struct {
	net.Conn
	of   *counted
	once sync.Once
}

func (l *counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open++
	l.most = max(l.most, l.open)
	return &countedConn{Conn: c, of: l}, nil
}

func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.open--
	})
	return c.Conn.Close()
}

func (l *counted) counts() (open, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open, l.most
}

// Clients without a hub's certificate use few connections, so that they do not affect devices, the
// database and other hubs.
func TestUnauthenticatedClientsUseFewConnections(t *testing.T) {
	h := newHubs(t)
	server, err := h.authority.NewServer(func() []string { return []string{"127.0.0.1"} }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &counted{Listener: raw}
	s := &http.Server{Handler: Accept(http.HandlerFunc(h.answer), func(leader.Status) {}),
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)}
	over := make(chan error, 1)
	go func() { over <- s.Serve(Listen(l, h.authority.Peers(server))) }()
	defer func() { _ = s.Close(); <-over }()
	var strangers []net.Conn
	for range 2 * maxHandshakes {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		strangers = append(strangers, c)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if open, _ := l.counts(); open >= maxHandshakes {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no client has connected")
		}
	}
	time.Sleep(100 * time.Millisecond) // long enough for all clients to connect
	if _, most := l.counts(); most > maxHandshakes {
		t.Errorf("%d unauthenticated clients have a connection, want %d at most", most, maxHandshakes)
	}
	for _, c := range strangers {
		_ = c.Close()
	}
	h.passer.SetLeader("hub-a", raw.Addr().String())
	if code, text, _ := ask(t, h.client(t, "", false), h.standby.URL+"/nodes", nil); code != http.StatusOK ||
		!strings.Contains(text, "by hub-b") {
		t.Errorf("a hub gets %d %s", code, text)
	}
}
