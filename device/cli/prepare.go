package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flotilla.dev/device/hardware"
	"flotilla.dev/device/join"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/mirror"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// prepared is the state of the run command before it starts the agent and the link.
type prepared struct {
	stateDir string
	node     string
	server   string // empty if no hub is known: the stored workloads run
	identity *join.Identity
	ended    *dismissed // the enrolment has ended, and the workloads are being removed
	reg      wire.Registration
	machine  string
	lease    time.Duration
	status   time.Duration
	journal  *request.Journal
	helper   string
	mirror   string
	upgrade  upgradeFlags
	images   *mirror.Mirror // nil: without a hub
	grace    grace
}

// prepare determines this device's identity and its hub.
func prepare(f runFlags, stateDir string, m *memory.Memory, log *slog.Logger) (prepared, error) {
	p := prepared{stateDir: stateDir, lease: f.lease}
	var err error
	if p.machine, err = hardware.MachineID(""); err != nil {
		log.Warn("this machine has no id that tells it from a copy", "err", err)
	}
	if f.hub != "" {
		id, err := join.Load(stateDir)
		if err == nil {
			return p, usagef("--hub is only for a device that has not joined, but the device of %s is node %s of the hub "+
				"at %s: "+
				"omit --hub, or use another --state-dir", stateDir, id.Node, id.HubURL)
		}
		if !errors.Is(err, join.ErrNotJoined) {
			return p, usageError{err}
		}
		p.remember(m)
		return p, p.development(f)
	}
	p.remember(m)
	id, err := join.Load(stateDir)
	switch {
	case err == nil:
		if mended, err := join.Repair(stateDir, id); err != nil {
			log.Warn("cannot store the second copy of this device's identity", "err", err)
		} else if slices.Contains(mended, join.IdentityFile) {
			log.Warn("the identity of this device was damaged and is restored from its copy: check the card or disk",
				"file", filepath.Join(stateDir, join.IdentityFile))
		}
		p.adopt(id)
		p.ended = readDismissed(stateDir, id)
		p.reg = readRegistration(stateDir, log)
	case boundTo(m) != "":
		// An error in certificates or files never stops a workload.
		p.node = boundTo(m)
		log.Error("the identity of this device is lost; its last workloads keep running: join again with the same name",
			"err", err)
	default:
		return p, usageError{err} // the error says what to do
	}
	return p, nil
}

// remember uses the lease interval that the hub set last, because the interval of the join may be
// years old. If it is too long, the hub considers the device unreachable.
func (p *prepared) remember(m *memory.Memory) {
	if d, ok := m.Desired(); ok && p.lease == 0 {
		p.lease = time.Duration(d.LeaseIntervalSeconds) * time.Second
	}
}

// boundTo returns the node to which the stored pods are bound.
func boundTo(m *memory.Memory) string {
	d, _ := m.Desired()
	for i := range d.Pods {
		if n := d.Pods[i].Spec.NodeName; n != "" {
			return n
		}
	}
	return ""
}

func (p *prepared) adopt(id join.Identity) {
	p.identity, p.node, p.server = &id, id.Node, id.Server()
	if p.lease == 0 {
		p.lease = time.Duration(id.LeaseIntervalSeconds) * time.Second
	}
}

// hubOf returns a function that reads the hub's present HTTPS addresses and credentials from the
// last renewed identity.
func (p prepared) hubOf(m *memory.Memory) func() (mirror.Hub, error) {
	return func() (mirror.Hub, error) {
		id, err := join.Load(p.stateDir)
		if err != nil {
			return mirror.Hub{}, err
		}
		last, _ := m.Desired()
		conf, err := id.TLS(last.Time)
		if err != nil {
			return mirror.Hub{}, err
		}
		addresses := []string{strings.TrimPrefix(id.HubURL, "https://")}
		for _, h := range id.Hubs {
			if h != addresses[0] {
				addresses = append(addresses, h)
			}
		}
		h := mirror.Hub{Addresses: addresses, TLS: conf}
		if last.Images != nil {
			h.PeerKey = last.Images.PeerKey
		}
		return h, nil
	}
}

// checkHub checks addresses of development listeners, separated by commas.
func checkHub(hubs string) error {
	for hub := range strings.SplitSeq(hubs, ",") {
		u, err := url.Parse(hub)
		if err != nil || u.Scheme != "mqtt" || u.Port() == "" {
			return usagef("--hub %q must be mqtt://127.0.0.1:PORT, the address of flotilla-hub serve --mqtt-dev-listen", hub)
		}
		if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return usagef("--hub %q is not on this machine: the development listener is on loopback only; join a hub "+
				"elsewhere with flotilla-device join", hub)
		}
	}
	return nil
}

// development fills in the state of a device that uses a hub's development listener.
func (p *prepared) development(f runFlags) error {
	err := checkHub(f.hub)
	if err != nil {
		return err
	}
	p.server, p.node = f.hub, f.node
	if p.node == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("find the host name: %w; set --node-name", err)
		}
		p.node = strings.ToLower(host)
	}
	if err := checkNode(p.node); err != nil {
		return err
	}
	if p.reg.Labels, err = parseLabels(f.labels); err != nil {
		return err
	}
	if p.reg.Taints, err = parseTaints(f.taints); err != nil {
		return err
	}
	if f.site != "" {
		p.reg.Labels[labelZone] = f.site
	}
	return nil
}

// readRegistration reads the labels and taints that were given to join.
func readRegistration(stateDir string, log *slog.Logger) (r wire.Registration) {
	body, err := os.ReadFile(filepath.Join(stateDir, registrationFile))
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cannot read the labels and taints given to join; they matter only until the hub knows this node", "err",
			err)
	}
	return r
}
