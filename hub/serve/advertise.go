package serve

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
)

// advertiseEvery is how often the hub looks whether its address or its authority has changed.
const advertiseEvery = time.Minute

// advertiseAll keeps what the fleet knows of its hub.
func (h *Hub) advertiseAll(ctx context.Context) error {
	tick := time.NewTicker(advertiseEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := h.advertise(ctx); err != nil && ctx.Err() == nil {
				h.log.Warn("the Service kubernetes and the ConfigMaps kube-root-ca.crt may be old", "err", err)
			}
			if err := h.keepPeer(ctx); err != nil && ctx.Err() == nil {
				h.log.Warn("standbys may look for this hub at an old address", "err", err)
			}
			if h.o.HTTPS == nil {
				continue
			}
			if err := h.keepURL(ctx); err != nil && ctx.Err() == nil {
				h.log.Warn("tokens and kubeconfigs that commands make may name an old address", "err", err)
			}
		}
	}
}

// keepPeer tells the hubs that stand by where they reach this one, which leads.
func (h *Hub) keepPeer(ctx context.Context) error {
	if h.o.lead == nil {
		return nil
	}
	at, former := peerAddress(h.o, h.o.names()), h.peerAt.Load()
	if *former == at {
		return nil
	}
	if err := h.Store.ReachedAt(ctx, at); err != nil {
		return err
	}
	h.log.Info("standbys reach this hub at another address", "address", at, "former", *former)
	h.peerAt.Store(&at)
	return nil
}

// advertise tells the fleet where the hub's API is, and by which authority to know it. Where it
// is known, nothing is done.
func (h *Hub) advertise(ctx context.Context) error {
	says := state.Advertisement{Root: string(h.authority.RootPEM())}
	if h.o.HTTPS != nil {
		says.Address, says.Port = advertised(h.cfg.AdvertiseAddress, h.o.HTTPS.Addr(), pki.LocalNames(""))
	}
	known := func(s state.Snapshot) bool {
		have := s.Advertisement()
		return have != nil && have.Address == says.Address && have.Port == says.Port && have.Root == says.Root
	}
	if known(h.Loop.Snapshot()) {
		return nil
	}
	_, err := h.Loop.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		if known(s) {
			return nil, nil
		}
		next := says
		next.ObjectMeta = metav1.ObjectMeta{Name: state.HubName, CreationTimestamp: metav1.NewTime(now)}
		if have := s.Advertisement(); have != nil {
			have.ObjectMeta.DeepCopyInto(&next.ObjectMeta)
		}
		return []state.Change{state.Put(&next, "")}, nil
	})
	if err != nil {
		return fmt.Errorf("advertise the hub: %w", err)
	}
	return nil
}

// advertised is the address and the port at which others reach a listener, as far as it has an address: the one that
// was configured, the one that it is bound to, or else the machine's first.
func advertised(configured string, at net.Addr, machine []string) (address string, port int32) {
	bound, err := netip.ParseAddrPort(at.String())
	if err != nil { // a pipe of a test's
		return "", 0
	}
	port = int32(bound.Port())
	if a, err := netip.ParseAddr(configured); err == nil {
		return a.Unmap().String(), port
	}
	if a := bound.Addr().Unmap(); !a.IsUnspecified() {
		return a.WithZone("").String(), port
	}
	if own := ownAddress(machine); own.IsValid() {
		return own.String(), port
	}
	return "127.0.0.1", port
}

// ownAddress is the one of a machine's names at which others reach it: its first of IPv4, or of IPv6
// where it has none; not valid where it has no address yet.
func ownAddress(names []string) (own netip.Addr) {
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil || a.IsLoopback() {
			continue
		}
		if a.Is4() {
			return a
		}
		if !own.IsValid() {
			own = a
		}
	}
	return own
}
