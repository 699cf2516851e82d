package serve

import (
	"log/slog"
	"net"
	"testing"

	"flotilla.dev/hub/config"
	"flotilla.dev/hub/store"
)

func TestWhereAHubIsReached(t *testing.T) {
	machine := []string{"gateway", "gateway.local", "localhost", "127.0.0.1", "::1"}
	for _, tt := range []struct {
		name, listen, advertise string
		own                     []string
		want                    string
	}{
		{"the machine's first address", ":8443", "", []string{"192.168.1.10", "10.8.0.2"}, "https://192.168.1.10:8443"},
		{"an IPv4 address is preferred", ":8443", "", []string{"fd77::1", "192.168.1.10"}, "https://192.168.1.10:8443"},
		{"an IPv6 address if there is no IPv4 address", "[::]:8443", "", []string{"fd77::1", "fd77::2"}, "https://[fd77::1]:8443"},
		{"no address before the router is up", "0.0.0.0:8443", "", nil, "https://localhost:8443"},
		{"the address of the listener", "192.168.1.11:8443", "", []string{"192.168.1.10", "192.168.1.11"}, "https://192.168.1.11:8443"},
		{"the name of the listener", "gateway.local:8443", "", []string{"192.168.1.10"}, "https://gateway.local:8443"},
		{"the configured address", ":8443", "hub.example", []string{"192.168.1.10"}, "https://hub.example:8443"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Config{HTTPSListen: tt.listen, AdvertiseAddress: tt.advertise}
			if got := reachedAt(cfg, "[::]:8443", append(machine, tt.own...)); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// A gateway may start before the router that gives it an address, and may get a different address
// later.
func TestTheStoredURLFollowsTheHubsAddress(t *testing.T) {
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), Version: "test",
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	h := &Hub{Store: st, log: slog.New(slog.DiscardHandler), o: Options{Listeners: Listeners{HTTPS: listener}}}
	for _, at := range []string{"localhost", "192.168.1.10", "192.168.1.10", "192.168.1.20"} {
		h.cfg = config.Config{HTTPSListen: ":8443", AdvertiseAddress: at, HTTPSAddresses: []string{"other:8443"}}
		if err := h.storeURL(t.Context()); err != nil {
			t.Fatal(err)
		}
		url, err := st.Meta(t.Context(), store.MetaURL)
		if err != nil || url != h.url() || url != reachedAt(h.cfg, listener.Addr().String(), nil) {
			t.Errorf("with the address %s commands get %q, and the page %q: %v", at, url, h.url(), err)
		}
		if all, err := st.Meta(t.Context(), store.MetaURLs); err != nil || all != url+",https://other:8443" {
			t.Errorf("with the address %s all URLs are %q: %v", at, all, err)
		}
	}
}
