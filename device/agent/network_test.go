package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/probe"
	"flotilla.dev/shared/wire"
)

// desireBlock stores a desired state with the given pods for a node with a block of addresses.
func (d *device) desireBlock(generation int64, block string, pods ...corev1.Pod) {
	d.t.Helper()
	if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "hub-1", PodCIDR: block,
		Pods: pods}); err != nil {
		d.t.Fatal(err)
	}
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

// wantAddress fails unless the pod runs with an address of the block.
func (d *device) wantAddress(pod, block string) {
	d.t.Helper()
	st := d.wantPhase(pod, corev1.PodRunning, "")
	if ip, err := netip.ParseAddr(st.PodIP); err != nil || !netip.MustParsePrefix(block).Contains(ip) {
		d.t.Errorf("pod %s has the address %q, want one of %s", pod, st.PodIP, block)
	}
}

// wantNetwork checks the status and message of NetworkUnavailable.
func (d *device) wantNetwork(status corev1.ConditionStatus, want string) {
	d.t.Helper()
	c := d.networkUnavailable()
	if c.Status != status || !strings.Contains(c.Message, want) {
		d.t.Errorf("NetworkUnavailable is %s: %q, want %s and %q", c.Status, c.Message, status, want)
	}
}

func (d *device) networkUnavailable() (c corev1.NodeCondition) {
	cs := d.agent.Status().Status.Conditions
	if i := slices.IndexFunc(cs, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeNetworkUnavailable }); i >= 0 {
		c = cs[i]
	}
	return c
}

const engines = "172.17.0.0/16" // addresses of the fake engine's default network

func TestPodsGetTheAddressesOfTheirNode(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		host := makePod("host", "wait")
		host.Spec.HostNetwork = true
		d.end()
		d.config.Policy.HostNetwork = true
		d.start()
		d.fake.Record()
		d.desireBlock(1, "10.64.3.0/24", makePod("one", "wait"), makePod("two", "wait", "wait"), host)
		d.wantAddress("one", "10.64.3.0/24")
		d.wantAddress("two", "10.64.3.0/24") // the pod's sandbox has the address
		if st, ok := d.pod("host"); !ok || st.PodIP != "192.0.2.7" {
			t.Errorf("the pod on the device's network has the address %q, want the device's", st.PodIP)
		}
		d.wantNetwork(corev1.ConditionFalse, "containers use the addresses 10.64.3.0/24")
		if got := d.networks(); !slices.Equal(got, []string{"EnsureNetwork flotilla-pi-1 10.64.3.0/24"}) {
			t.Errorf("the calls about networks are %v, want one EnsureNetwork", got)
		}
	})
}

// networks are the calls that created and removed networks.
func (d *device) networks() (out []string) {
	for _, c := range d.fake.Calls() {
		if strings.Contains(c, "Network ") {
			out = append(out, c)
		}
	}
	return out
}

func TestWithoutTheNodesNetworkAPodRunsOnTheDefaultNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		overlap := errors.New("its addresses overlap 10.64.0.0/16, which this device reaches through eth0")
		for range 3 { // two containers and the agent's own check try the network
			d.fake.Fail("EnsureNetwork", overlap)
		}
		d.desireBlock(1, "10.64.3.0/24", makePod("a", "wait"), makePod("b", "wait"))
		d.wantAddress("a", engines)
		d.wantAddress("b", engines)
		d.wantNetwork(corev1.ConditionTrue, "through eth0")
		reports := 0
		for _, r := range d.reasons() {
			if r == "PodNetworkUnavailable" {
				reports++
			}
		}
		if reports != 1 {
			t.Errorf("the conflict is reported %d times, want once", reports)
		}
		d.desireBlock(2, "10.64.3.0/24", makePod("a", "wait"), makePod("b", "wait"), makePod("c", "wait"))
		d.wantAddress("c", "10.64.3.0/24") // the conflict is over
		d.wantAddress("a", engines)        // pod a was not restarted
		d.wantNetwork(corev1.ConditionFalse, "those that ran before keep theirs")
	})
}

func TestRunningContainersKeepTheirNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.desire(1, makePod("a", "wait"))
		time.Sleep(2 * time.Second)
		d.wantAddress("a", engines)
		before := d.containers()
		d.desireBlock(2, "10.64.3.0/24", makePod("a", "wait"))
		if got := d.containers(); !slices.Equal(got, before) {
			t.Fatalf("the containers were %q and are now %q", before, got)
		}
		d.wantNetwork(corev1.ConditionFalse, "those that ran before keep theirs")
		list, _ := d.fake.Containers(t.Context(), plan.LabelAgent)
		d.fake.Exit(list[0].Name, 1)
		time.Sleep(time.Minute)
		d.wantAddress("a", "10.64.3.0/24")

		// A new block is for new pods, because the old network is in use.
		d.desireBlock(3, "10.64.9.0/24", makePod("a", "wait"), makePod("b", "wait"))
		d.wantAddress("a", "10.64.3.0/24")
		d.wantAddress("b", engines)
		d.wantNetwork(corev1.ConditionTrue, "is on it")
	})
}

func TestAnUnavailableEngineChangesNoNetwork(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.Fail("EnsureNetwork", engine.ErrUnavailable)
		d.desireBlock(1, "10.64.3.0/24", makePod("a", "wait"))
		time.Sleep(time.Minute)
		d.wantAddress("a", "10.64.3.0/24")
		if slices.Contains(d.reasons(), "PodNetworkUnavailable") {
			t.Error("an unavailable engine was reported as a network failure")
		}
	})
}

func TestTheNetworkIsRemovedWithTheLastPod(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.Record()
		a, b := makePod("a", "wait"), makePod("b", "wait")
		d.desireBlock(1, "10.64.3.0/24", a, b)
		d.desireBlock(2, "10.64.3.0/24", a)
		time.Sleep(time.Minute)
		if got := d.networks(); len(got) != 1 {
			t.Fatalf("with one pod left the calls are %v, want no further call", got)
		}
		d.end() // a restarted agent finds the network
		d.start()
		d.desireBlock(3, "10.64.3.0/24")
		time.Sleep(2 * time.Minute)
		if got := d.networks(); !slices.Equal(got, []string{"EnsureNetwork flotilla-pi-1 10.64.3.0/24",
			"RemoveNetwork flotilla-pi-1"}) {
			t.Fatalf("without pods the calls are %v, want a RemoveNetwork", got)
		}
		d.desireBlock(4, "10.64.9.0/24", b)
		d.wantAddress("b", "10.64.9.0/24")
	})
}

// A node whose network fails gets no new pods that would try the network. So the agent tries it
// itself, and reports a failure before the first pod.
func TestANodeReportsItsNetworkBeforeTheFirstPod(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		time.Sleep(time.Second)
		d.wantNetwork(corev1.ConditionFalse, "engine's own")
		inTheWay := errors.New("its addresses overlap 10.64.0.0/16, which this device reaches through wlan0")
		for range 3 {
			d.fake.Fail("EnsureNetwork", inTheWay)
		}
		d.desireBlock(1, "10.64.3.0/24")
		d.wantNetwork(corev1.ConditionTrue, "through wlan0")
		d.end() // a restarted agent detects the conflict too
		d.start()
		time.Sleep(2 * time.Second)
		d.wantNetwork(corev1.ConditionTrue, "through wlan0")
		time.Sleep(3 * time.Minute) // the conflict is over
		d.wantNetwork(corev1.ConditionFalse, "containers use the addresses 10.64.3.0/24")
		d.desireBlock(2, "10.64.3.0/24", makePod("a", "wait"))
		d.wantAddress("a", "10.64.3.0/24")
		d.fake.Fail("EnsureNetwork", inTheWay)
		time.Sleep(6 * time.Minute) // the device has moved to a site where the addresses are in use
		d.desireBlock(3, "engine's choice", makePod("a", "wait"))
		d.wantNetwork(corev1.ConditionTrue, "engine's choice")
		d.desireBlock(4, "10.64.9.0/24", makePod("a", "wait"))
		d.wantNetwork(corev1.ConditionTrue, "is on it")
		d.desireBlock(5, "", makePod("a", "wait"))
		d.wantNetwork(corev1.ConditionFalse, "engine's own")
	})
}

func TestWithoutAnEngineThePodsNetworkIsMissing(t *testing.T) {
	bubbleWithoutEngine(t, func(t *testing.T, d *device) {
		d.desireBlock(1, "10.64.3.0/24", makePod("a", "wait"))
		time.Sleep(time.Minute)
		d.wantNetwork(corev1.ConditionTrue, "the pods' network is missing")
		d.fake.SetDown(false)
		time.Sleep(10 * time.Second)
		d.wantNetwork(corev1.ConditionFalse, "10.64.3.0/24")
		d.fake.SetDown(true) // running pods keep their addresses
		time.Sleep(time.Minute)
		d.wantNetwork(corev1.ConditionFalse, "10.64.3.0/24")
	})
}

// With a real engine, pods have addresses of the block, reach each other and are probed there. No
// network is created for a block that overlaps the device's network.
func TestRealEnginePodsGetTheAddressesOfTheirNode(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		n := time.Now().UnixNano()
		block := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18 + byte(n>>20&1), byte(n >> 12),
			byte(n>>4) &^ 15}), 28)
		pod := func(name string, commands ...string) corev1.Pod {
			p := makePod(name, commands...)
			p.UID = types.UID("uid-" + name + d.node)
			p.Spec.TerminationGracePeriodSeconds = new(int64)
			return p
		}
		web, caller := pod("web", "serve :8080"), pod("pair", "serve :8080", "wait")
		port := freePort(t)
		web.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: port,
			HostIP: "127.0.0.1"}}
		for _, p := range []*corev1.Pod{&web, &caller} {
			p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1,
				ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/",
					Port: intstr.FromInt32(8080)}}}
		}
		store := func(generation int64, block string, pods ...corev1.Pod) {
			t.Helper()
			if err := d.agent.Store(wire.Desired{Generation: generation, Hub: "h", PodCIDR: block,
				Pods: pods}); err != nil {
				t.Fatal(err)
			}
		}
		store(1, block.String(), web, caller)
		d.await("both are ready", func() bool { return ready(d.pod("web")) && ready(d.pod("pair")) })
		var addresses []string
		for _, name := range []string{"web", "pair"} {
			st := d.pod(name)
			if ip, err := netip.ParseAddr(st.PodIP); err != nil || !block.Contains(ip) {
				t.Errorf("pod %s has the address %q, want one of %s", name, st.PodIP, block)
			}
			addresses = append(addresses, st.PodIP)
		}
		if conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 5*time.Second); err != nil {
			t.Errorf("connect to the host port: %v", err)
		} else {
			_ = conn.Close()
		}
		for _, c := range d.list() {
			if c.Labels[plan.LabelPodName] != "pair" || c.Labels[plan.LabelContainer] != "c1" {
				continue
			}
			var out probe.Limited
			out.Max = 1000
			if code, err := d.eng.Exec(t.Context(), c.ID, []string{"/tool", "get", "http://" + addresses[0] + ":8080/"},
				engine.Streams{Stdout: &out, Stderr: &out}); err != nil || code != 0 {
				t.Errorf("one pod does not reach the other: %d %v %s", code, err, out.Bytes)
			}
		}

		// Without pods the network is removed.
		store(2, block.String(), deletedPod(web, 0), deletedPod(caller, 0))
		d.await("the pods are gone", func() bool { return d.pod("web") == nil && d.pod("pair") == nil })
		store(3, block.String())
		d.await("the network is gone", func() bool {
			probe := Network(d.node, "another", block.String())
			return d.eng.RemoveNetwork(t.Context(), probe) == nil // fails, because of the other id, while the network exists
		})

		// The device's own network has priority.
		own := ownNetwork(t)
		third := pod("third", "serve :8080")
		third.Spec.Containers[0].ReadinessProbe = web.Spec.Containers[0].ReadinessProbe
		store(4, own.String(), third)
		d.await("the third pod is ready", func() bool { return ready(d.pod("third")) })
		if ip, err := netip.ParseAddr(d.pod("third").PodIP); err != nil || own.Contains(ip) {
			t.Errorf("the third pod has the address %q", d.pod("third").PodIP)
		}
		found := false
		for _, c := range d.agent.Status().Status.Conditions {
			found = found || c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionTrue &&
				strings.Contains(c.Message, "which this device reaches through")
		}
		if !found {
			t.Errorf("the conditions lack the conflict: %+v", d.agent.Status().Status.Conditions)
		}
	})
}

// ownNetwork is a network of this machine that does not belong to an engine.
func ownNetwork(t *testing.T) netip.Prefix {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		_, err := os.Stat("/sys/class/net/" + link.Name + "/bridge") // a bridge belongs to an engine
		if link.Flags&net.FlagLoopback != 0 || link.Flags&net.FlagUp == 0 || err == nil {
			continue
		}
		addresses, _ := link.Addrs()
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Bits() < 30 {
				return p.Masked()
			}
		}
	}
	t.Skip("this machine has no network except those of engines")
	return netip.Prefix{}
}
