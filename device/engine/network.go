package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
)

// EnsureNetwork checks the host's routes before it creates a network. Docker does not check them:
// it gives a bridge the addresses of the device's own LAN, which cuts the device off from its hub.
func (a *api) EnsureNetwork(ctx context.Context, n Network) error {
	want, err := netip.ParsePrefix(n.CIDR)
	if err != nil || want != want.Masked() {
		return fmt.Errorf("make network %s: %q is not an address range such as 10.64.3.0/24", n.Name, n.CIDR)
	}
	a.making.Lock()
	defer a.making.Unlock()
	have, err := a.findNetwork(ctx, n.Name)
	if err != nil {
		return err
	}
	if have != nil {
		if slices.Contains(subnets(have), want) { // the device may have moved to another LAN since
			own := func() string { return interfaceOf(want.Addr().Next()) }
			if r, ok := conflictingRoute(notThrough(own, hostRoutes), want); ok {
				return fmt.Errorf("use network %s: its addresses %s overlap %s, which this device reaches through %s", n.Name,
					want, r.to, r.through)
			}
			return nil
		}
		if err := a.removeOurs(ctx, have, n); err != nil {
			return fmt.Errorf("replace network %s, which has the addresses %v and not %s: %w", n.Name, subnets(have), want, err)
		}
	}
	if r, ok := conflictingRoute(hostRoutes(), want); ok {
		return fmt.Errorf("make network %s: its addresses %s overlap %s, which this device reaches through %s", n.Name, want,
			r.to, r.through)
	}
	options := client.NetworkCreateOptions{Driver: "bridge", Labels: n.Labels,
		IPAM: &network.IPAM{Config: []network.IPAMConfig{{Subnet: want, Gateway: want.Addr().Next()}}}}
	if want.Addr().Is6() {
		yes := true
		options.EnableIPv6 = &yes
	}
	if _, err = a.client().NetworkCreate(ctx, n.Name, options); err == nil {
		return nil
	}
	if have, lookErr := a.findNetwork(ctx, n.Name); lookErr == nil && have != nil && slices.Contains(subnets(have), want) {
		return nil // another process created it first
	}
	return explain(err, "make network "+n.Name+" with the addresses", n.CIDR)
}

// notThrough returns the host's routes except those through the network's own interface. Podman
// creates that interface with the first container and removes it with the last, so notThrough reads
// the interface's name before and after the routes.
func notThrough(own func() string, routes func() []route) []route {
	before, all, after := own(), routes(), own()
	return slices.DeleteFunc(all, func(r route) bool { return r.through == before || r.through == after })
}

func (a *api) RemoveNetwork(ctx context.Context, n Network) error {
	have, err := a.findNetwork(ctx, n.Name)
	if err != nil || have == nil {
		return err
	}
	return a.removeOurs(ctx, have, n)
}

// removeOurs removes a network with the labels. Engines refuse while the network is in use, but
// Podman 4.3 refuses only a removal by name: by id it removes the network although containers use
// it.
func (a *api) removeOurs(ctx context.Context, have *network.Inspect, n Network) error {
	for k, v := range n.Labels {
		if have.Labels[k] != v {
			return fmt.Errorf("remove network %s: it belongs to another program: it lacks the label %s=%s", n.Name, k, v)
		}
	}
	_, err := a.client().NetworkRemove(ctx, have.Name, client.NetworkRemoveOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return explain(err, "remove network", n.Name)
}

// findNetwork returns the network of this name, or nil. It lists first, because inspecting a name
// also finds a network whose id begins with the name.
func (a *api) findNetwork(ctx context.Context, name string) (*network.Inspect, error) {
	if a.podman() {
		return a.findPodmanNetwork(ctx, name)
	}
	list, err := a.client().NetworkList(ctx, client.NetworkListOptions{Filters: client.Filters{}.Add("name", name)})
	if err != nil {
		return nil, explain(err, "look for network", name)
	}
	for _, each := range list.Items {
		if each.Name != name {
			continue
		}
		found, err := a.client().NetworkInspect(ctx, each.ID, client.NetworkInspectOptions{})
		if errdefs.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, explain(err, "look at network", name)
		}
		return &found.Network, nil
	}
	return nil, nil
}

// findPodmanNetwork uses Podman's own API. Podman's Docker API also lists the containers of each
// network and locks every container for that, so a container that hangs in its start would block
// the starts of all others.
func (a *api) findPodmanNetwork(ctx context.Context, name string) (*network.Inspect, error) {
	status, text, err := a.libpod(ctx, http.MethodGet, "networks/json", nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %s", http.StatusText(status), text)
	}
	var all []struct {
		ID, Name string
		Labels   map[string]string
		Subnets  []struct{ Subnet netip.Prefix }
	}
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil {
		return nil, explain(err, "look for network", name)
	}
	for _, each := range all {
		if each.Name != name {
			continue
		}
		found := &network.Inspect{}
		found.ID, found.Name, found.Labels = each.ID, each.Name, each.Labels
		for _, s := range each.Subnets {
			found.IPAM.Config = append(found.IPAM.Config, network.IPAMConfig{Subnet: s.Subnet})
		}
		return found, nil
	}
	return nil, nil
}

func subnets(n *network.Inspect) (all []netip.Prefix) {
	for _, c := range n.IPAM.Config {
		all = append(all, c.Subnet.Masked())
	}
	return all
}

// addressOf returns the address of a container. On a network of EnsureNetwork it prefers the IPv6
// address: such a network also has IPv4 addresses, since older engines need them.
func addressOf(networks map[string]*network.EndpointSettings, mode string) netip.Addr {
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		n := networks[name]
		switch {
		case n == nil:
		case name == mode && mode != "bridge" && n.GlobalIPv6Address.IsValid():
			return n.GlobalIPv6Address
		case n.IPAddress.IsValid():
			return n.IPAddress
		case n.GlobalIPv6Address.IsValid():
			return n.GlobalIPv6Address
		}
	}
	return netip.Addr{}
}
