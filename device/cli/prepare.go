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
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// prepared is what run has found out before anything long-lived starts.
type prepared struct {
	stateDir string
	node     string
	server   string // empty: no hub is known; workloads run all the same
	identity *join.Identity
	ended    *dismissed // the enrolment of identity, and what it ran is being removed
	reg      wire.Registration
	machine  string
	lease    time.Duration
	status   time.Duration
	journal  *request.Journal
	helper   string
	grace    grace
}

// prepare finds out who this device is and which hub it belongs to.
func prepare(f runFlags, stateDir string, m *memory.Memory, log *slog.Logger) (prepared, error) {
	p := prepared{stateDir: stateDir, lease: f.lease}
	var err error
	if p.machine, err = hardware.MachineID(""); err != nil {
		log.Warn("this machine cannot be told from a copy of it", "err", err)
	}
	if f.hub != "" {
		id, err := join.Load(stateDir)
		if err == nil {
			return p, usagef("--hub is for a device that has not joined, and the one of %s is node %s of the hub at %s: "+
				"leave --hub out, or use another --state-dir", stateDir, id.Node, id.HubURL)
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
			log.Warn("keep the identity of this device twice", "err", err)
		} else if slices.Contains(mended, join.IdentityFile) {
			log.Warn("the identity of this device was damaged, and was written anew from its copy: look at the card or disk",
				"file", filepath.Join(stateDir, join.IdentityFile))
		}
		p.adopt(id)
		p.ended = readDismissed(stateDir, id)
		p.reg = readRegistration(stateDir, log)
	case boundTo(m) != "":
		// No error of certificates or files ever stops a workload.
		p.node = boundTo(m)
		log.Error("this device does not know its hub any more and runs what it last wanted; join again with the same name",
			"err", err)
	default:
		return p, usageError{err} // it says what to do
	}
	return p, nil
}

// remember takes the lease interval that the hub said last: not that of the join, which
// may be years old. A hub that wants a longer one would take less for silence.
func (p *prepared) remember(m *memory.Memory) {
	if d, ok := m.Desired(); ok && p.lease == 0 {
		p.lease = time.Duration(d.LeaseIntervalSeconds) * time.Second
	}
}

// boundTo is the node that the stored pods are bound to.
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

// checkHub checks the addresses of a hub's development listener, or of several hubs' with commas
// between them.
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

// development prepares what is run of a device on a hub's development listener.
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

// readRegistration reads the labels and taints that join was given.
func readRegistration(stateDir string, log *slog.Logger) (r wire.Registration) {
	body, err := os.ReadFile(filepath.Join(stateDir, registrationFile))
	if err == nil {
		err = json.Unmarshal(body, &r)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("the labels and taints of the join cannot be read; they matter only before the hub knows this node", "err",
			err)
	}
	return r
}
