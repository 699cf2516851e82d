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

// A podNetwork is what the agent remembers of the network that its pods are put on.
// The engine knows whether it is there; this is for telling people, and for not
// asking in vain.
type podNetwork struct {
	idle    bool   // it is known not to be there, so nothing need be removed
	block   string // that problem is about
	problem string // why containers are not put on it; empty: they are
	asking  bool
	askAt   time.Time // look again, whether a container wants it or not
}

const (
	networkRetry = time.Minute     // while the network cannot be had: nobody may be sent here to try it
	networkTime  = 5 * time.Minute // while it can: the device may have moved to where its addresses are taken
)

// Network is the network for the pods of a node with a block of addresses. Its labels
// tell it from one of somebody else's.
func Network(node, stateDirID, block string) engine.Network {
	return engine.Network{Name: "flotilla-" + node, CIDR: block,
		Labels: map[string]string{plan.LabelAgent: node, plan.LabelStateDir: stateDirID}}
}

// join puts a container that gets a network of its own on the one with the node's
// addresses, and sees to it that this is there. Where it cannot be had the container
// goes to the engine's own: addresses are no reason not to run. Containers that run
// already stay where they are.
func (a *Agent) join(ctx context.Context, j job, spec *engine.Spec) error {
	if j.block == "" || spec.HostNetwork || spec.NetworkOf != "" {
		return nil
	}
	n := Network(j.node.Name, j.node.StateDir, j.block)
	err := j.engine.EnsureNetwork(ctx, n)
	if err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable)) {
		return err // to be tried again
	}
	if err == nil {
		spec.Network = n.Name
	}
	a.post(func() { a.joined(j.block, err) })
	return nil
}

// checkNetwork looks from time to time whether the node's addresses can be had.
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
		a.joining.RLock()
		defer a.joining.RUnlock()
		err := e.EnsureNetwork(ctx, want)
		lost := err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable))
		return func() {
			n.asking = false
			if n.askAt = time.Now().Add(networkRetry); !lost {
				a.joined(block, err)
			}
		}
	})
	return now.Add(maxIdle)
}

// joined notes how that went, and tells of a change for the worse.
func (a *Agent) joined(block string, err error) {
	n := &a.loop.network
	if block != a.loop.desired.PodCIDR {
		return // the hub has given it another one meanwhile
	}
	n.idle, n.block, n.askAt = false, block, time.Now().Add(networkTime)
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

// leave removes the network when the node has no pods any more: what is not used
// must not stand in anybody's way.
func (a *Agent) leave() {
	l := &a.loop
	if l.network.idle || len(l.desired.Pods) > 0 || len(l.o.Containers) > 0 || len(l.o.Busy) > 0 {
		return
	}
	l.network.idle = true
	e, n := l.engine, Network(l.o.Node.Name, l.o.Node.StateDir, "")
	a.async(askTimeout, func(ctx context.Context) func() {
		a.joining.Lock()
		defer a.joining.Unlock()
		err := e.RemoveNetwork(ctx, n)
		return func() {
			if err != nil && ctx.Err() == nil {
				a.log.Info("the network of the pods stays", "err", err)
			}
		}
	})
}

// networkCondition says whether pods get the addresses that the node has for them. Where
// they do not, no more are sent here: others would look for them at those addresses. What
// runs goes on, and so does what comes all the same.
func (l *loop) networkCondition() corev1.NodeCondition {
	c := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated",
		Message: "containers use the engine's own network"}
	block, err := netip.ParsePrefix(l.desired.PodCIDR)
	problem := l.network.problem
	switch {
	case l.engine == nil && l.engineErr != nil:
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "ContainerEngineUnavailable",
			"there is no network for pods: "+l.engineErr.Error()
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

// A resolver is what a resolv.conf says.
type resolver struct{ servers, searches, options []string }

// resolving completes what a pod's dnsConfig says of the resolver: as with the kubelet that is laid
// over the device's, unless the pod's dnsPolicy is None. An engine takes the device's only where it
// is given none.
func resolving(spec *engine.Spec, pod *corev1.Pod) {
	if pod.Spec.DNSConfig == nil || pod.Spec.DNSPolicy == corev1.DNSNone {
		return
	}
	device := deviceResolver(os.ReadFile)
	if len(spec.DNS) > 0 {
		spec.DNS = both(device.servers, spec.DNS)
	}
	if len(spec.DNSSearch) > 0 {
		spec.DNSSearch = both(device.searches, spec.DNSSearch)
	}
	if len(spec.DNSOptions) > 0 {
		spec.DNSOptions = layOver(device.options, spec.DNSOptions)
	}
}

// deviceResolver is the device's resolver as containers can have it: where it asks
// systemd-resolved, that one's servers, and none of the device's own loopback, where containers
// have another.
func deviceResolver(read func(string) ([]byte, error)) resolver {
	file, _ := read("/etc/resolv.conf") // none: the device has nothing to add
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

// readResolver reads a resolv.conf; as for the resolver, the last line of searches and of options
// counts.
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

// both are the words of two lists, each once.
func both(a, b []string) (all []string) {
	for _, w := range slices.Concat(a, b) {
		if !slices.Contains(all, w) {
			all = append(all, w)
		}
	}
	return all
}

// layOver puts options over others: of one name the newer one counts.
func layOver(old, options []string) []string {
	name := func(o string) string { n, _, _ := strings.Cut(o, ":"); return n }
	out := slices.DeleteFunc(slices.Clone(old), func(o string) bool {
		return slices.ContainsFunc(options, func(x string) bool { return name(x) == name(o) })
	})
	return append(out, options...)
}
