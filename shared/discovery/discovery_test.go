package discovery

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// A hub is found on a network without a default route, as one without internet may have none.
func TestAHubIsFound(t *testing.T) {
	const inside = "FLOTILLA_TEST_IN_NAMESPACE"
	if os.Getenv(inside) == "" {
		if os.Geteuid() != 0 || exec.Command("unshare", "-n", "true").Run() != nil {
			t.Skip("a network namespace needs root")
		}
		c := exec.Command("unshare", "-n", "sh", "-c", `set -e; ip link set lo up; ip link add lan type veth peer name other; ip link set other up
			ip addr add 10.9.0.1/24 dev lan; ip link set lan up multicast on; exec "$0" -test.run "^$1\$"`, os.Args[0], t.Name())
		c.Env = append(os.Environ(), inside+"=yes")
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	if _, err := Find(t.Context(), 100*time.Millisecond); !errors.Is(err, ErrNone) {
		t.Errorf("without a hub: %v, want ErrNone", err)
	}
	for _, c := range []struct {
		listen string
		found  []string
	}{
		{"[::]:8443", []string{"https://gateway:8443", "https://10.9.0.1:8443"}},
		{"10.9.0.1:8443", []string{"https://gateway:8443", "https://10.9.0.1:8443"}},
		{"127.0.0.1:8443", nil},
	} {
		ended := make(chan error)
		h := Hub{Listen: netip.MustParseAddrPort(c.listen), Log: slog.New(slog.DiscardHandler),
			URLs: func() []string { return []string{"https://gateway:8443"} }}
		ctx, stop := context.WithCancel(t.Context())
		go func() { ended <- h.Run(ctx) }()
		found, err := Find(t.Context(), 1500*time.Millisecond)
		if !slices.Equal(found, c.found) || (err == nil) != (c.found != nil) {
			t.Errorf("a hub that listens on %s: found %q, %v; want %q", c.listen, found, err, c.found)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// Any device of the network can answer.
func TestStrangeAnswersAreIgnored(t *testing.T) {
	h := Hub{Listen: netip.MustParseAddrPort("[::]:8443"), URLs: func() []string {
		return []string{"http://plain", "https://user@host", "https://a/path", "https://a,https://b", "https://", "x", "https://good:1"}
	}}
	reply, err := h.reply(7, dnsmessage.Question{Name: dnsmessage.MustNewName(service), Type: dnsmessage.TypePTR},
		netip.MustParseAddr("10.9.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := urls(reply), []string{"https://good:1", "https://10.9.0.1:8443"}; !slices.Equal(got, want) {
		t.Errorf("the URLs are %q, want %q", got, want)
	}
	other := slices.Clone(reply)
	copy(other[13:], "_x") // another service
	for n := range reply {
		if got := urls(reply[:n]); len(got) > 0 {
			t.Errorf("the first %d bytes have the URLs %q", n, got)
		}
	}
	if got := urls(other); len(got) > 0 {
		t.Errorf("another service has the URLs %q", got)
	}
}
