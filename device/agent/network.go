package agent

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
)

// A podNetwork is the agent's knowledge about the pods' network, for conditions and for back-off.
type podNetwork struct {
	absent  bool   // the agent knows that the network is absent
	block   string // block of addresses that has the problem
	problem string // why containers are not on the network; empty if they are
	asking  bool
	askAt   time.Time // time of the next check
}

const (
	networkRetry = time.Minute     // interval while the network fails, because no new pod comes to this node
	networkTime  = 5 * time.Minute // interval while the network works: on another site its addresses may be in use
)

// Network is the network for the pods of a node with a block of addresses. Its labels distinguish
// it from other clients' networks.
func Network(node, stateDirID, block string) engine.Network {
	return engine.Network{Name: "flotilla-" + node, CIDR: block,
		Labels: map[string]string{plan.LabelAgent: node, plan.LabelStateDir: stateDirID}}
}

// join adds a new container to the network with the node's addresses, and creates the network if
// needed. If that fails, the container uses the engine's default network, so that it runs anyway.
// Running containers stay on their network.
func (a *Agent) join(ctx context.Context, j job, spec *engine.Spec) error {
	if j.block == "" || spec.HostNetwork || spec.NetworkOf != "" {
		return nil
	}
	n := Network(j.node.Name, j.node.StateDir, j.block)
	err := j.engine.EnsureNetwork(ctx, n)
	if err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable)) {
		return err // the step is tried again
	}
	if err == nil {
		spec.Network = n.Name
	}
	a.post(func() { a.networkDone(j.block, err) })
	return nil
}

// checkNetwork checks at intervals whether the node's block of addresses is usable.
func (a *Agent) checkNetwork(now time.Time) (next time.Time) {
	l := &a.loop
	n := &l.network
	block := l.desired.PodCIDR
	if block == "" || l.engine == nil || l.engineErr != nil || n.asking {
		return now.Add(maxIdle)
	}
	if n.block == block && now.Before(n.askAt) {
		return n.askAt
	}
	n.asking = true
	e, want := l.engine, Network(l.o.Node.Name, l.o.Node.StateDir, block)
	a.async(askTimeout, func(ctx context.Context) func() {
		a.networkMutex.RLock()
		defer a.networkMutex.RUnlock()
		err := e.EnsureNetwork(ctx, want)
		unknown := err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable))
		return func() {
			n.asking = false
			if n.askAt = time.Now().Add(networkRetry); !unknown {
				a.networkDone(block, err)
			}
		}
	})
	return now.Add(maxIdle)
}

// networkDone records the result, and reports a new problem.
func (a *Agent) networkDone(block string, err error) {
	n := &a.loop.network
	if block != a.loop.desired.PodCIDR {
		return // the block has changed meanwhile
	}
	n.absent, n.block, n.askAt = false, block, time.Now().Add(networkTime)
	if err == nil {
		n.problem = ""
		return
	}
	n.askAt = time.Now().Add(networkRetry)
	if n.problem != err.Error() {
		a.event(corev1.EventTypeWarning, "PodNetworkUnavailable", nil, "",
			"Pods get addresses of the engine's own network and not of %s: %v", block, err)
	}
	n.problem = err.Error()
}

// removeNetwork removes the network of a node without pods, so that it blocks no addresses.
func (a *Agent) removeNetwork() {
	l := &a.loop
	if l.network.absent || len(l.desired.Pods) > 0 || len(l.o.Containers) > 0 || len(l.o.Busy) > 0 {
		return
	}
	l.network.absent = true
	e, n := l.engine, Network(l.o.Node.Name, l.o.Node.StateDir, "")
	a.async(askTimeout, func(ctx context.Context) func() {
		a.networkMutex.Lock()
		defer a.networkMutex.Unlock()
		err := e.RemoveNetwork(ctx, n)
		return func() {
			if err != nil && ctx.Err() == nil {
				a.log.Info("remove the pods' network", "err", err)
			}
		}
	})
}

// networkCondition reports whether pods get the node's addresses. If not, the scheduler sends no
// more pods, because other pods could not reach them. Present pods keep running.
func (l *loop) networkCondition() corev1.NodeCondition {
	c := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated",
		Message: "containers use the engine's own network"}
	block, err := netip.ParsePrefix(l.desired.PodCIDR)
	problem := l.network.problem
	switch {
	case l.engine == nil && l.engineErr != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "ContainerEngineUnavailable",
			"the pods' network is missing: "+l.engineErr.Error()
	case l.desired.PodCIDR == "":
	case err != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "NoRouteCreated", c.Message+": "+err.Error()
	case problem != "" && l.network.block == l.desired.PodCIDR:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "NoRouteCreated", c.Message+": "+problem
	default:
		c.Message = "containers use the addresses " + block.String()
		for _, in := range l.o.Containers {
			if ip, err := netip.ParseAddr(in.IP); err == nil && !block.Contains(ip) {
				c.Message += "; those that ran before keep theirs until they are replaced"
				break
			}
		}
	}
	return c
}

// A resolver is the content of a resolv.conf.
type resolver struct{ servers, searches, options []string }

// applyDNS adds the pod's dnsConfig to the device's resolver, as the kubelet does, unless dnsPolicy
// is None. An engine without configured servers uses the servers of the device.
func applyDNS(spec *engine.Spec, pod *corev1.Pod) {
	if pod.Spec.DNSConfig == nil || pod.Spec.DNSPolicy == corev1.DNSNone {
		return
	}
	device := deviceResolver(os.ReadFile)
	if len(spec.DNS) > 0 {
		spec.DNS = union(device.servers, spec.DNS)
	}
	if len(spec.DNSSearch) > 0 {
		spec.DNSSearch = union(device.searches, spec.DNSSearch)
	}
	if len(spec.DNSOptions) > 0 {
		spec.DNSOptions = mergeOptions(device.options, spec.DNSOptions)
	}
}

// deviceResolver returns the device's resolver for containers. With systemd-resolved it has the
// upstream servers. It never has a loopback address, because a container has its own loopback.
func deviceResolver(read func(string) ([]byte, error)) resolver {
	file, _ := read("/etc/resolv.conf") // a missing file has no entries
	r := readResolver(string(file))
	if slices.Equal(r.servers, []string{"127.0.0.53"}) {
		if file, err := read("/run/systemd/resolve/resolv.conf"); err == nil {
			r = readResolver(string(file))
		}
	}
	r.servers = slices.DeleteFunc(r.servers, func(s string) bool {
		ip, err := netip.ParseAddr(s)
		return err != nil || ip.IsLoopback() || ip.Zone() != ""
	})
	return r
}

// readResolver parses a resolv.conf. As in resolv.conf(5), the last search line and the last
// options line are used.
func readResolver(file string) (r resolver) {
	for line := range strings.Lines(file) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "nameserver":
			r.servers = append(r.servers, words[1:min(2, len(words))]...)
		case "search", "domain":
			r.searches = words[1:]
		case "options":
			r.options = words[1:]
		}
	}
	return r
}

// union is both lists without duplicates.
func union(a, b []string) (all []string) {
	for _, w := range slices.Concat(a, b) {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// mergeOptions adds options to old ones; a new value replaces the old one.
func mergeOptions(old, options []string) []string {
	name := func(o string) string { n, _, _ := strings.Cut(o, ":"); return n }
	out := slices.DeleteFunc(slices.Clone(old), func(o string) bool {
		return slices.ContainsFunc(options, func(x string) bool { return name(x) == name(o) })
	})
	return append(out, options...)
}
