package cluster

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/e2e/postgrestest"
	"flotilla.dev/hub/store"
)

// Standbys forward requests to the leader's current address.
func TestTheLeadersAddressFollowsChanges(t *testing.T) {
	server, log := postgrestest.Start(t), slog.New(slog.DiscardHandler)
	o := store.Options{Dir: t.TempDir(), Database: server.Database(), Version: "test", Log: log}
	standby, err := store.StandBy(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	own := store.Member{Name: "a", Address: "127.0.0.1:8444"}
	row, err := standby.Row(t.Context())
	if err == nil {
		own.Token, err = standby.Take(t.Context(), row, own)
	}
	if err := errors.Join(err, standby.Close()); err != nil {
		t.Fatal(err)
	}
	member := own
	o.Member = &member
	st, err := store.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l := &Lead{Member: own, log: log}
	l.address.Store(&own.Address)
	for _, at := range []string{"192.168.1.10:8444", "192.168.1.10:8444", "192.168.1.20:8444"} {
		l.cfg.PeerAddress = at
		l.UpdateAddress(t.Context(), st)
		if said, err := st.Meta(t.Context(), "leader"); err != nil || !strings.Contains(said, at) {
			t.Errorf("address %s: standbys read %s, %v", at, said, err)
		}
	}
}

func TestThePeerAddress(t *testing.T) {
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	for _, tt := range []struct{ own, want string }{{"::1", "127.0.0.1"}, {"192.168.1.10", "192.168.1.10"},
		{"192.168.1.20", "192.168.1.20"}} {
		if got := peerAddress(config.Config{}, listener, []string{"gateway", "127.0.0.1",
			tt.own}); got != net.JoinHostPort(tt.want, port) {
			t.Errorf("own address %s: peers use %s, want %s", tt.own, got, tt.want)
		}
	}
}
