package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/join"
	"flotilla.dev/hub/store/postgrestest"
)

// A crew is several hubs on one PostgreSQL database, each of which devices know.
type crew struct {
	t    *testing.T
	hubs []*hub
}

// newCrew starts them; the first leads.
func newCrew(t *testing.T, count int, args ...string) *crew {
	t.Helper()
	database := postgrestest.Start(t, "fsync=on", "full_page_writes=on").Database()
	c := &crew{t: t}
	var https, mqtt []string
	for range count {
		https, mqtt = append(https, freePort(t)), append(mqtt, freePort(t))
	}
	addresses := ownAddresses(t)
	for i := range count {
		h := &hub{t: t, dir: filepath.Join(t.TempDir(), "hub"), https: https[i], dev: freePort(t)}
		h.args = append([]string{
			"serve", "--data-dir", h.dir, "--https-listen", h.https, "--mqtt-listen", mqtt[i], "--mqtt-dev-listen", h.dev, "--peer-listen", freePort(t), "--database", database,
			"--lease-interval", leaseInterval.String(), "--node-monitor-grace-period", "40s", "--node-startup-grace-period", "60s", "--cluster-cidr", addresses,
			"--https-addresses", strings.Join(https, ","),
		}, args...)
		if !slices.Contains(args, "--broker") {
			h.args = append(h.args, "--mqtt-addresses", strings.Join(mqtt, ","))
		}
		if i > 0 {
			h.keyOf(c.hubs[0])
		}
		h.start()
		c.hubs = append(c.hubs, h)
	}
	return c
}

// keyOf copies the key of secrets from another hub, as people do.
func (h *hub) keyOf(first *hub) {
	h.t.Helper()
	key, err := os.ReadFile(filepath.Join(first.dir, "secrets.key"))
	if err == nil {
		err = os.MkdirAll(h.dir, 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(h.dir, "secrets.key"), key, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// leader waits for the one that leads, and that it is one.
func (c *crew) leader() (leader *hub, standbys []*hub) {
	c.t.Helper()
	await(c.t, "one hub that leads", 40*time.Second, func() error {
		leader, standbys = nil, nil
		for _, h := range c.hubs {
			switch {
			case h.ended():
			case !leads(h):
				standbys = append(standbys, h)
			case leader != nil:
				c.t.Fatalf("%s and %s lead", leader.dir, h.dir)
			default:
				leader = h
			}
		}
		if leader == nil {
			return errors.New("none leads")
		}
		return nil
	})
	return leader, standbys
}

// TestADeviceOutlivesTheHubThatItJoinedThrough joins real devices over TLS, one of them through
// a standby, and kills the hub that leads. They go to the next one, and renew their certificates there.
func TestADeviceOutlivesTheHubThatItJoinedThrough(t *testing.T) {
	t.Parallel()
	e := findEngine(t, "docker", "DOCKER_SOCK", "/var/run/docker.sock")
	c := newCrew(t, 2)
	a, standbys := c.leader()
	b := standbys[0]
	one := a.join("oslo", e)
	two := a.joinThrough(b, "bergen", e)
	for _, d := range []*device{one, two} {
		d.run()
	}
	a.allReady(2)
	for d, at := range map[*device]*hub{one: a, two: b} {
		if id, err := join.Load(d.dir); err != nil || id.HubURL != "https://"+at.https || !slices.Equal(id.Hubs, []string{a.https, b.https}) || len(id.Brokers) != 2 {
			t.Errorf("%s knows %+v, %v", d.node, id, err)
		}
	}
	a.kill()
	if next, _ := c.leader(); next != b {
		t.Fatal("nobody has taken over")
	}
	b.allReady(2)
	output(t, program(t, "hub", here), "ca", "rotate", "--root", "--data-dir", b.dir) // each device is told to renew
	for _, d := range []*device{one, two} {
		await(t, d.node+" renews at the hub that is left", time.Minute, func() error {
			id, err := join.Load(d.dir)
			if err == nil && (id.HubURL != "https://"+b.https || strings.Count(id.CA, "BEGIN") != 2) {
				err = errors.New("its hub is " + id.HubURL)
			}
			return err
		})
	}
	if events := b.kubectl("get", "events", "-A"); strings.Contains(events, "NodeNotReady") {
		t.Errorf("a node was not ready, because another hub leads:\n%s", events)
	}
}
