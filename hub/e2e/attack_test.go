package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/join"
	"flotilla.dev/shared/wire"
)

// attack uses the certificate of a stolen device at an external broker. The observer "spy" may read
// everything there. The device of pi-2 has been replaced.
func attack(t *testing.T, h *hub, victim, old, thief *testDevice, retains bool) {
	address := victim.id.MQTTAddress
	spyDir := filepath.Join(t.TempDir(), "spy")
	output(t, program(t, "hub", here), "mqtt-observer", "--data-dir", h.dir, "--name", "spy", "--out", spyDir)
	look, err := client(t, address, pair(t, spyDir), func(o *paho.ClientOptions) { o.SetClientID("spy") })
	if err != nil {
		t.Fatal(err)
	}
	look.subscribes("#")
	await(t, "the spy receives leases", patience, func() error {
		if len(look.receivedOf("nodes/"+victim.id.Node+"/lease")) == 0 {
			return errors.New("none")
		}
		return nil
	})
	conf, err := thief.id.TLS(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	as := func(t *testing.T, change func(*paho.ClientOptions)) *spy {
		t.Helper()
		s, err := client(t, address, conf, func(o *paho.ClientOptions) {
			o.SetClientID(fmt.Sprintf("thief-%d", machineIDs.Add(1)))
			if change != nil {
				change(o)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	done := h.neverUnknown(t)
	connected := func() string { return h.metric(t, "flotilla_mqtt_sessions") }
	was := connected()

	t.Run("a device cannot publish on topics of other nodes or of the hub", func(t *testing.T) {
		s := as(t, nil)
		for _, c := range []string{"lease", "status", "pods", "event", "presence", "reply/x", "desired", "request/x"} {
			s.says("fleet/v1/nodes/"+victim.id.Node+"/"+c, []byte(`{"boot":"`+victim.boot+`","evil":1,"state":"shutdown"}`),
				false)
		}
		s.says("fleet/v1/nodes/thief/desired", []byte(`{"evil":1}`), false)
		s.says("fleet/v1/nodes/thief/request/x", []byte(`{"evil":1}`), false)
		s.says("other", []byte(`{"evil":1}`), false)
		s.says("$SYS/broker/x", []byte(`{"evil":1}`), false)
		s.says("fleet/v1/nodes/thief/event", []byte(`{"marker":1}`), false) // a topic of its own node
		await(t, "the thief's message on its own topic", patience, func() error {
			if len(look.receivedOf("marker")) == 0 {
				return errors.New("not received")
			}
			return nil
		})
		if got := look.receivedOf("evil"); len(got) > 0 {
			t.Errorf("the broker delivered the thief's messages %q", got)
		}
	})
	t.Run("a device does not receive messages of other nodes", func(t *testing.T) {
		s := as(t, nil)
		s.subscribes("#", "+/#", "$SYS/#", "fleet/v1/#", "fleet/v1/nodes/+/desired", "fleet/v1/nodes/"+victim.id.Node+
			"/desired", "fleet/v1/nodes/"+victim.id.Node+"/request/+", "fleet/v1/nodes/+/lease",
			"$share/g/fleet/v1/nodes/+/desired", "$share/g/fleet/v1/nodes/"+victim.id.Node+"/desired", "$share/g/#")
		victim.runs(h, "secret")
		if len(look.receivedOf("nodes/"+victim.id.Node+"/desired")) == 0 {
			t.Fatal("the spy received no desired state: the test proves nothing")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, message := range s.received {
			if !strings.HasPrefix(message, "fleet/v1/nodes/thief/desired ") &&
				!strings.HasPrefix(message, "fleet/v1/nodes/thief/request/") {
				t.Errorf("the thief received %.100s", message)
			}
		}
	})
	t.Run("a user or an observer with a node's name is not that node", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "mine")
		output(t, program(t, "hub", here), "mqtt-observer", "--data-dir", h.dir, "--name", victim.id.Node, "--out", dir)
		received, published := len(look.receivedOf("nodes/"+victim.id.Node+"/desired")), 0
		for who, conf := range map[string]*tls.Config{
			"observer": pair(t, dir),
			"user":     h.clientCertificate(victim.id.Node, "viewer"),
			"the hub":  h.clientCertificate("flotilla:hub", "viewer"),
		} {
			s, err := client(t, address, conf, func(o *paho.ClientOptions) { o.SetClientID("namesake") })
			if err != nil {
				t.Logf("%s: CONNECT is refused: %v", who, err)
				continue
			}
			s.subscribes("#", "fleet/v1/nodes/"+victim.id.Node+"/desired", "fleet/v1/nodes/"+victim.id.Node+"/request/+",
				"fleet/v1/nodes/+/lease")
			s.says("fleet/v1/nodes/"+victim.id.Node+"/presence", []byte(`{"boot":"namesake","state":"shutdown"}`), false)
			s.says("fleet/v1/nodes/"+victim.id.Node+"/desired", []byte(`{"namesake":1}`), false)
			victim.runs(h, fmt.Sprintf("namesake-%d", published))
			published++
			s.mu.Lock()
			if len(s.received) > 0 {
				t.Errorf("%s received %q", who, s.received[0])
			}
			s.mu.Unlock()
		}
		if published > 0 && len(look.receivedOf("nodes/"+victim.id.Node+"/desired")) == received {
			t.Fatal("there were no messages: the test proves nothing")
		}
		if got := look.receivedOf(`"namesake"`); len(got) > 0 {
			t.Errorf("the broker delivered messages of a node's namesake: %q", got)
		}
	})
	t.Run("nothing is retained, and a will has only the device's own topics", func(t *testing.T) {
		s := as(t, nil)
		s.says("fleet/v1/nodes/thief/presence", []byte(`{"boot":"retained-one","state":"lost"}`), true)
		for name, will := range map[string]func(*paho.ClientOptions){
			"another's": func(o *paho.ClientOptions) {
				o.SetBinaryWill("fleet/v1/nodes/"+victim.id.Node+"/presence", []byte(`{"boot":"foreign-will","state":"lost"}`), 1,
					false)
			},
			"a retained message": func(o *paho.ClientOptions) {
				o.SetBinaryWill("fleet/v1/nodes/thief/presence", []byte(`{"boot":"retained-will","state":"lost"}`), 1, true)
			},
		} {
			var mu sync.Mutex
			var raw net.Conn
			s, err := client(t, address, conf, func(o *paho.ClientOptions) {
				o.SetClientID("thief")
				o.SetCustomOpenConnectionFn(func(u *url.URL, o paho.ClientOptions) (net.Conn, error) {
					mu.Lock()
					defer mu.Unlock()
					c, err := dialTLS(address, conf)
					raw = c
					return c, err
				})
				will(o)
			})
			if err != nil {
				t.Logf("%s: CONNECT is refused: %v", name, err)
				continue
			}
			mu.Lock()
			_ = raw.Close() // the broker publishes the will
			mu.Unlock()
			_ = s
		}
		time.Sleep(time.Second)
		if got := look.receivedOf("foreign-will"); len(got) > 0 {
			t.Errorf("the broker delivered a will on another node's topic: %q", got)
		}
		late, err := client(t, address, pair(t, spyDir), func(o *paho.ClientOptions) { o.SetClientID("late") }) // with the client ID of the observer spy
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if look, err = client(t, address, pair(t, spyDir),
				func(o *paho.ClientOptions) { o.SetClientID("spy") }); err != nil {
				t.Fatal(err)
			}
			look.subscribes("#")
		}()
		late.subscribes("#")
		time.Sleep(time.Second)
		if got := late.receivedOf("RETAINED"); len(got) > 0 && !retains {
			t.Errorf("the broker has retained %q", got)
		}
	})
	t.Run("too large or too many messages harm no other client", func(t *testing.T) {
		s := as(t, nil)
		s.says("fleet/v1/nodes/thief/status", make([]byte, 300<<10), false)
		s.says("fleet/v1/nodes/thief/lease", make([]byte, 2<<10), false)
		s = as(t, nil)
		for i := range 20_000 {
			s.Publish("fleet/v1/nodes/thief/lease", 0, false, fmt.Sprintf(`{"boot":"b","seq":%d}`, i))
		}
		victim.runs(h, "during-the-flood")
		as(t, nil).says("fleet/v1/nodes/thief/status", make([]byte, 6<<20), false)
		victim.runs(h, "after-the-flood")
		if !strings.Contains(h.metric(t, `flotilla_mqtt_offences_total{kind="packet-too-large"}`), "1") {
			t.Error("the hub must count the large message: " + h.metric(t, "flotilla_mqtt_offences_total"))
		}
	})
	t.Run("a device cannot take over another session", func(t *testing.T) {
		before := len(look.receivedOf("nodes/" + victim.id.Node + "/presence"))
		for _, id := range []string{wire.ClientID(victim.id.Node, victim.id.MachineID), victim.id.Node, "flotilla:hub"} {
			if _, err := client(t, address, conf, func(o *paho.ClientOptions) { o.SetClientID(id) }); err != nil {
				t.Logf("as %s: CONNECT is refused: %v", id, err)
			}
		}
		time.Sleep(2 * time.Second)
		if n := len(look.receivedOf("nodes/" + victim.id.Node + "/presence")); n != before {
			t.Error("the victim's session has ended")
		}
		if online, _ := victim.link.Online(); !online {
			t.Error("the victim is not connected")
		}
		if now := connected(); now != was {
			t.Errorf("%s nodes are connected, want %s as before", now, was)
		}
	})
	done()
	t.Run("a replaced device is refused, with the reason over HTTPS", func(t *testing.T) {
		old.stop()
		oldID := old.id
		newer := h.testDevice(old.id.Node).run()
		await(t, "the new device", patience, func() error {
			if newer.StoredGeneration() == 0 {
				return errors.New("the new device has no desired state")
			}
			return h.ready(old.id.Node, corev1.ConditionTrue)
		})
		newer.stop() // the old device is refused even if the new one is not connected
		imposter := &testDevice{t: t, id: oldID}
		imposter.run()
		await(t, "the refusal", patience, func() error {
			if !strings.Contains(h.output.String(), "another device has joined as this node") {
				return errors.New("the hub's log does not report the replaced device")
			}
			return nil
		})
		await(t, "the silence of the node", patience, func() error {
			if h.ready(old.id.Node, corev1.ConditionTrue) == nil {
				return errors.New("the node is ready")
			}
			return nil
		})
		imposter.stop()
		_, err := join.Renew(t.Context(), oldID, join.Options{})
		var d *join.Dismissal
		if !errors.As(err, &d) {
			t.Errorf("renewal by the replaced device: %v, want its dismissal", err)
		}
		newer.run()
		await(t, "the new device reconnects", patience, func() error { return h.ready(old.id.Node, corev1.ConditionTrue) })
	})
}

// clientCertificate is the TLS configuration of a kubeconfig.
func (h *hub) clientCertificate(name, role string) *tls.Config {
	h.t.Helper()
	text := output(h.t, program(h.t, "hub", here), "kubeconfig", "--data-dir", h.dir, "--user", name, "--role", role)
	field := func(name string) []byte {
		m := regexp.MustCompile(name + `: (\S+)`).FindStringSubmatch(text)
		if m == nil {
			h.t.Fatalf("the kubeconfig has no %s", name)
		}
		b, err := base64.StdEncoding.DecodeString(m[1])
		if err != nil {
			h.t.Fatal(err)
		}
		return b
	}
	cert, err := tls.X509KeyPair(field("client-certificate-data"), field("client-key-data"))
	if err != nil {
		h.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(field("certificate-authority-data"))
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}}
}
