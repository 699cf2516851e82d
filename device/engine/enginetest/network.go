package enginetest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"flotilla.dev/device/engine"
)

// ownNetwork is the engine's default network.
var ownNetwork = netip.MustParsePrefix("172.17.0.0/16")

// EnsureNetwork implements engine.Engine.
func (t *Fake) EnsureNetwork(ctx context.Context, n engine.Network) error {
	if err := t.enter(ctx, "EnsureNetwork", n.Name); err != nil {
		return err
	}
	defer t.mu.Unlock()
	want, err := netip.ParsePrefix(n.CIDR)
	if err != nil || want != want.Masked() {
		return fmt.Errorf("make network %s: %q is not a block of addresses", n.Name, n.CIDR)
	}
	if have, ok := t.networks[n.Name]; ok {
		if have.CIDR == n.CIDR {
			return nil
		}
		if err := t.dropNetwork(have, n.Labels); err != nil {
			return err
		}
	}
	if ownNetwork.Overlaps(want) {
		return fmt.Errorf("make network %s: its addresses %s overlap those of network bridge", n.Name, n.CIDR)
	}
	for _, other := range t.networks {
		if netip.MustParsePrefix(other.CIDR).Overlaps(want) {
			return fmt.Errorf("make network %s: its addresses %s overlap those of network %s", n.Name, n.CIDR, other.Name)
		}
	}
	t.record("EnsureNetwork", n.Name, n.CIDR)
	n.Labels = maps.Clone(n.Labels)
	t.networks[n.Name] = n
	return nil
}

// RemoveNetwork implements engine.Engine.
func (t *Fake) RemoveNetwork(ctx context.Context, n engine.Network) error {
	if err := t.enter(ctx, "RemoveNetwork", n.Name); err != nil {
		return err
	}
	defer t.mu.Unlock()
	have, ok := t.networks[n.Name]
	if !ok {
		return nil
	}
	return t.dropNetwork(have, n.Labels)
}

// dropNetwork removes a network that has the labels and no running container.
func (t *Fake) dropNetwork(have engine.Network, labels map[string]string) error {
	for k, v := range labels {
		if have.Labels[k] != v {
			return fmt.Errorf("remove network %s: it belongs to another program", have.Name)
		}
	}
	for _, c := range t.containers {
		if c.spec.Network == have.Name && c.spec.NetworkOf == "" && c.state == engine.Running {
			return fmt.Errorf("remove network %s: container %s is on it", have.Name, c.spec.Name)
		}
	}
	t.record("RemoveNetwork", have.Name)
	delete(t.networks, have.Name)
	return nil
}

// address returns the address of the number-th container on a network.
func address(n engine.Network, number int) string {
	p, err := netip.ParsePrefix(n.CIDR)
	if err != nil {
		return ""
	}
	a := p.Addr().Next() // the bridge's address
	for range number%250 + 1 {
		if next := a.Next(); p.Contains(next) {
			a = next
		} else {
			a = p.Addr().Next().Next()
		}
	}
	return a.String()
}
