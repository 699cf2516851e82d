package sim

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/join"
	"flotilla.dev/device/link"
	"flotilla.dev/hub/access"
	"flotilla.dev/hub/state"
)

// options returns the options of a device that joins or renews its certificate.
func (d *simDevice) options() join.Options {
	return join.Options{
		URL: "https://127.0.0.1:8443", Node: d.name, MachineID: d.machine, StateDir: filepath.Join(d.dir, "state"),
		Log: d.w.log.With("device", d.key),
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			w := d.w
			w.mu.Lock()
			web := w.web
			w.mu.Unlock()
			if web == nil {
				return nil, errors.New("dial: connection refused: no hub")
			}
			return web.Dial(ctx, d.key)
		},
	}
}

// join gives the device an identity.
func (d *simDevice) join(token string) error {
	o := d.options()
	o.Token = token
	_, err := join.Join(context.Background(), o)
	return err
}

// secure makes the device use its identity, and returns the function that renews it.
func (d *simDevice) secure(ctx context.Context, c *link.Config) func() error {
	w := d.w
	w.t.Helper()
	o := d.options()
	o.Dismissed, c.Dismissed = d.leave, d.leave
	id, err := join.Load(o.StateDir)
	if err != nil {
		w.t.Fatal(err)
	}
	conf, err := id.TLS(time.Time{})
	if err != nil {
		w.t.Fatal(err)
	}
	var pair atomic.Pointer[tls.Certificate]
	pair.Store(&conf.Certificates[0])
	conf.Certificates = nil
	conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Load(), nil }
	conf.ServerName = "127.0.0.1"
	c.TLS, c.Server = conf, id.Server()
	return func() error {
		return join.Run(ctx, id, o, func(id join.Identity) {
			if fresh, err := tls.X509KeyPair([]byte(id.Certificate), []byte(id.Key)); err == nil {
				pair.Store(&fresh)
			}
		})
	}
}

func TestFleetDevicesJoinWithATokenAndUseCertificates(t *testing.T) {
	t.Parallel()
	simulate(t, func(t *testing.T, w *world) {
		time.Sleep(40 * 365 * 24 * time.Hour) // devices do not accept a time before their program was built
		w.tls = true
		w.startHub()
		ctx := context.Background()
		token := func(n access.NewJoinToken) string {
			t.Helper()
			n.Uses, n.Life, n.By = max(n.Uses, 1), time.Hour, "someone"
			k, err := w.hub.Guard.CreateJoinToken(ctx, n)
			if err != nil {
				t.Fatal(err)
			}
			return k.Text()
		}
		both := token(access.NewJoinToken{Site: "oslo", Uses: 2, Labels: map[string]string{"rack": "a"}})
		for _, name := range []string{"pi-1", "pi-2"} {
			d := w.newDevice(name, "oslo")
			if err := d.join(both); err != nil {
				t.Fatal(err)
			}
			d.start()
		}
		third := w.newDevice("pi-3", "oslo")
		if err := third.join(both); !errors.Is(err, join.ErrRefused) {
			t.Errorf("a token for two devices accepts a third: %v", err)
		}
		w.alter(func() { w.devices = w.devices[:2] })
		w.settleWithin(15*time.Second, "joining")
		for _, d := range w.devices {
			if n := w.node(d.name); state.SiteOf(n) != "oslo" || n.Labels["rack"] != "a" {
				t.Errorf("%s has the labels %v", d.name, n.Labels)
			}
		}
		w.deploy("kiosk", 4)
		w.settleWithin(10*time.Second, "the deployment")

		w.restartHub(20 * time.Second)
		w.until(70*time.Second, "all connected", func() bool { return w.connected() == 2 })
		w.settleWithin(twoLeases, "the hub's restart")

		// Hub and devices are without power for a year and a fortnight, so the certificates of both
		// sides have expired. The containers start at once, and the rest follows.
		for _, d := range w.devices {
			d.powerCut()
		}
		w.stopHub()
		time.Sleep(379 * 24 * time.Hour)
		for _, d := range w.devices {
			d.powerOn()
		}
		w.until(time.Minute, "everything runs again",
			func() bool { return len(w.devices[0].running())+len(w.devices[1].running()) == 4 })
		w.startHub()
		// a failed renewal is retried after an hour
		w.until(2*time.Hour, "all connected", func() bool { return w.connected() == 2 })
		w.settleWithin(twoLeases, "a year without power")

		// The deletion of a Node ends its device's rights: the device is dismissed, stops its pods,
		// and cannot connect.
		out := w.devices[0]
		w.do(func(s state.Snapshot, _ time.Time) ([]state.Change, error) {
			return []state.Change{state.Remove(s.Node(out.name), "delete "+out.name)}, nil
		})
		time.Sleep(10 * time.Minute)
		if w.snapshot().Node(out.name) != nil || w.hub.Broker.Online(out.name) {
			t.Error("a device whose Node was deleted is connected")
		}
		if n := len(out.running()); n != 0 || out.dismissed() == nil {
			t.Errorf("%d pods of the device run, and its dismissal is %+v", n, out.dismissed())
		}
		live := 0
		for _, p := range w.pods("kiosk") {
			if p.DeletionTimestamp == nil && p.Spec.NodeName == "pi-2" && p.Status.Phase == corev1.PodRunning {
				live++
			}
		}
		if live != 4 {
			t.Errorf("%d of 4 pods run on the remaining node", live)
		}

		// Broken hardware is replaced: another machine joins as pi-2 and gets its pods.
		broken := w.devices[1]
		wanted := broken.running()
		broken.powerCut()
		fresh := w.newClone("new-hardware", "pi-2", "oslo")
		if err := fresh.join(token(access.NewJoinToken{Site: "oslo", Node: "pi-2"})); err != nil {
			t.Fatal(err)
		}
		fresh.start()
		same := func() bool {
			var a, b []types.UID
			for uid := range fresh.running() {
				a = append(a, uid)
			}
			for uid := range wanted {
				b = append(b, uid)
			}
			slices.Sort(a)
			slices.Sort(b)
			return slices.Equal(a, b)
		}
		w.until(70*time.Second, "the new machine runs the pods of the old one", same)
		if rec := w.snapshot().Record("pi-2"); rec.MachineID != fresh.machine || w.node("pi-2").Labels["rack"] != "a" {
			t.Errorf("pi-2 is machine %s with the labels %v", rec.MachineID, w.node("pi-2").Labels)
		}
		if said := w.look.sentences("evict "); len(said) > 0 {
			t.Errorf("%v", said)
		}
	})
}
