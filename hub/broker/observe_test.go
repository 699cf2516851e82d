package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"flotilla.dev/hub/broker/pipe"
	"flotilla.dev/shared/wire"
)

// lookouts is an Observers that allows every observer unless revoked is set.
type lookouts struct {
	revoked atomic.Bool
	came    atomic.Int32
}

func (l *lookouts) May(Observer) error {
	if l.revoked.Load() {
		return errors.New("revoked")
	}
	return nil
}
func (l *lookouts) Observing(Observer) { l.came.Add(1) }

// world is a broker in a bubble, with an authority for devices and observers over TLS.
type world struct {
	*testing.T
	b    *Broker
	n    *pipe.Net
	ca   *authority
	d    *recorder
	look *lookouts
}

func observing(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, n: pipe.New(), ca: newAuthority(t), d: &recorder{}, look: &lookouts{}}
		w.b = start(t, Config{Handler: w.d, Observers: w.look, Listen: w.n, TLS: w.ca.server()})
		test(w)
	})
}

func (w *world) dial(as string, subject pkix.Name, mod func(*packets.Packet)) (*client, int) {
	w.Helper()
	raw, err := w.n.Dial(w.Context(), as)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { raw.Close() })
	return connect(w, tls.Client(raw, w.ca.client(w.ca.issue(subject, time.Now().Add(time.Hour)))), connectPacket(as, mod))
}

func (w *world) device(node string) *client {
	w.Helper()
	c, code := w.dial(node, pkix.Name{CommonName: node, Organization: []string{Organization}}, nil)
	if code != 0 {
		w.Fatalf("device %s: CONNACK %d", node, code)
	}
	c.subscribeOwn(node)
	return c
}

func (w *world) observer(name string, mod func(*packets.Packet)) (*client, int) {
	w.Helper()
	c, code := w.dial(name, pkix.Name{CommonName: ObserverPrefix + name, Organization: []string{ObserverOrganization}},
		mod)
	synctest.Wait()
	return c, code
}

// next returns all messages that an observer has received, as "topic payload".
func (c *client) next() (all []string) {
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		pk, err := c.read()
		if err != nil {
			return all
		}
		if pk.FixedHeader.Qos != 0 || pk.FixedHeader.Retain {
			c.t.Errorf("QoS %d, retained %v", pk.FixedHeader.Qos, pk.FixedHeader.Retain)
		}
		all = append(all, pk.TopicName+" "+string(pk.Payload))
	}
}

func TestAnObserverSeesBothDirectionsWithoutSecrets(t *testing.T) {
	observing(t, func(w *world) {
		dev := w.device("pi-1")
		w.device("pi-2")
		o, code := w.observer("kari", nil)
		if code != 0 || w.look.came.Load() != 1 {
			t.Fatalf("CONNACK %d, reported %d", code, w.look.came.Load())
		}
		if got := o.subscribe("fleet/v1/#", "fleet/v1/nodes/pi-1/#"); !bytes.Equal(got, []byte{0, 0}) {
			t.Fatalf("SUBACK %v", got)
		}
		const secret = "hunter2"
		dev.publish0(topicOf("pi-1", wire.ChannelLease), `{"boot":"b1","seq":1}`)
		dev.publish1(topicOf("pi-1", wire.ChannelStatus), `{"boot":"b1","seq":1}`, false)
		dev.publish1(topicOf("pi-1", wire.ChannelEvent), `{"boot":"b1","type":"Normal","reason":"Pulled","message":"m"}`, false)
		dev.publish1(wire.ReplyTopic(wire.DefaultPrefix, "pi-1", "r1"), `{"seq":0,"data":"`+secret+`"}`, false)
		dev.publish1(topicOf("pi-2", wire.ChannelStatus), secret, false) // a message on a forbidden topic is not shown
		dev.publish1(topicOf("pi-1", wire.ChannelStatus), secret, true)  // a retained message is not shown
		if err := w.b.Publish("pi-1", wire.ChannelDesired, []byte(secret), []byte(secret+secret)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := w.b.Request("pi-1", "r2", wire.Request{Type: wire.RequestExec, Command: []string{secret}}); err != nil {
			t.Fatal(err)
		}
		dev.read()
		dev.read()
		dev.read()
		got := o.next()
		want := []string{
			`fleet/v1/nodes/pi-1/lease {"boot":"b1","seq":1}`,
			`fleet/v1/nodes/pi-1/status {"boot":"b1","seq":1}`,
			`fleet/v1/nodes/pi-1/event {"boot":"b1","type":"Normal","reason":"Pulled","message":"m"}`,
			`fleet/v1/nodes/pi-1/reply/r1 {"withheld":true,"bytes":26}`,
			`fleet/v1/nodes/pi-1/desired {"withheld":true,"bytes":7}`,
			`fleet/v1/nodes/pi-1/desired {"withheld":true,"bytes":14}`,
			`fleet/v1/nodes/pi-1/request/r2 {"withheld":true,"type":"exec","bytes":`,
		}
		for _, each := range want {
			if !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, each) }) {
				t.Errorf("the observer does not receive %s", each)
			}
		}
		if len(got) != len(want) || strings.Contains(strings.Join(got, "\n"), secret) {
			t.Errorf("it sees\n%s", strings.Join(got, "\n"))
		}
		if s := w.b.Stats(); s.Observers != 1 || s.Observed["sent"] != 7 || s.Observed["dropped"] != 0 || s.Sessions != 2 {
			t.Errorf("stats %+v", s)
		}
	})
}

func TestAnObserverMaySubscribeBelowThePrefixOnly(t *testing.T) {
	observing(t, func(w *world) {
		o, _ := w.observer("kari", nil)
		for _, c := range []struct {
			filter string
			code   byte
		}{
			{"#", 0x80}, {"+/#", 0x80}, {"+/v1/#", 0x80}, {"fleet/#", 0x80}, {"fleet/v1", 0x80}, {"fleet/v10/#", 0x80}, {"$SYS/#", 0x80}, {"$share/g/fleet/v1/#", 0x80},
			{"/fleet/v1/#", 0x80}, {"fleet/v1/#/x", 0x80}, {"fleet/v1/a#", 0x80}, {"fleet/v1/a+/x", 0x80}, {"fleet/v1/" + strings.Repeat("x", 300), 0x80}, {"fleet/v2/#", 0x80},
			{"fleet/v1/#", 0}, {"fleet/v1/nodes/+/lease", 0}, {"fleet/v1/nodes/pi-1/#", 0},
		} {
			if got := o.subscribe(c.filter); got[0] != c.code {
				t.Errorf("%q: SUBACK %d, want %d", c.filter, got[0], c.code)
			}
		}
		granted := 0
		for i := range 1000 {
			if o.subscribe(fmt.Sprintf("fleet/v1/nodes/pi-%d/#", i))[0] == 0 {
				granted++
			}
		}
		if granted > maxFilters-2 || int(w.b.observers.filters.Load()) != maxFilters {
			t.Errorf("%d of 1,000 subscriptions were granted, %d are stored", granted, w.b.observers.filters.Load())
		}
		o.conn.Close()
		synctest.Wait()
		if w.b.observers.active() || w.b.Stats().Observers != 0 {
			t.Error("the observer's subscriptions still exist")
		}
	})
}

func TestFiltersMatchByTheRulesOfMQTT(t *testing.T) {
	for _, c := range []struct {
		filter, topic string
		want          bool
	}{
		{"a/#", "a", true}, {"a/#", "a/b", true}, {"a/#", "a/b/c", true}, {"a/#", "ab", false},
		{"a/+", "a/b", true}, {"a/+", "a", false}, {"a/+", "a/b/c", false}, {"a/+/c", "a/b/c", true}, {"a/+/c", "a/b/d", false},
		{"a/+/#", "a/b", true}, {"a/b", "a/b", true}, {"a/b", "a/b/c", false}, {"a/b/c", "a/b", false}, {"a/+", "a/", true},
	} {
		if got := matches(c.filter, c.topic); got != c.want {
			t.Errorf("%s matches %s: %v", c.filter, c.topic, got)
		}
	}
}

func TestAnObserverPublishesNothing(t *testing.T) {
	observing(t, func(w *world) {
		dev := w.device("pi-1")
		o, _ := w.observer("kari", nil)
		other, _ := w.observer("olav", nil)
		other.subscribe("fleet/v1/#")
		for _, topic := range []string{topicOf("pi-1", wire.ChannelStatus), topicOf("pi-1", wire.ChannelDesired), "$SYS/x",
			"x"} {
			for _, retain := range []bool{false, true} {
				if !o.publish1(topic, `{"boot":"b1","seq":9}`, retain) {
					t.Errorf("%s was not acknowledged: the client would repeat it for ever", topic)
				}
			}
			o.publish0(topic, `{"boot":"b1","seq":9}`)
		}
		dev.ping() // pi-1 received nothing before the response
		if w.d.count("status") > 0 || w.d.count("offence") > 0 || len(other.next()) > 0 ||
			w.b.Stats().Offences["topic"] != 12 {
			t.Errorf("received %q; %v", w.d.all(), w.b.Stats().Offences)
		}
		o.send(packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Publish, Qos: 2}, ProtocolVersion: 4,
			PacketID: 3, TopicName: "x", Payload: []byte("x")})
		if _, err := o.read(); err == nil {
			t.Error("QoS 2 was accepted")
		}
		for name, mod := range map[string]func(*packets.Packet){
			"a will":          willOf(topicOf("pi-1", wire.ChannelPresence), lostWill),
			"a retained will": func(pk *packets.Packet) { willOf("x", "x")(pk); pk.Connect.WillRetain = true },
		} {
			if _, code := w.observer("kari", mod); code != notAuthorized {
				t.Errorf("%s: CONNACK %d", name, code)
			}
		}
		// Neither the name nor the client ID makes an observer a device.
		if c, code := w.observer("pi-1", nil); code != 0 || w.d.count("connected pi-1") != 1 ||
			w.d.count("disconnected pi-1") != 0 {
			t.Errorf("CONNACK %d; received %q", code, w.d.all())
		} else if got := c.subscribe(topicOf("pi-1", wire.ChannelDesired)); got[0] != 0 {
			t.Errorf("SUBACK %d", got[0])
		}
		dev.ping()
	})
}

func TestASlowObserverIsDisconnectedAndDelaysNoDevice(t *testing.T) {
	observing(t, func(w *world) {
		dev := w.device("pi-1")
		o, _ := w.observer("kari", func(pk *packets.Packet) { pk.Connect.Keepalive = 0 })
		o.subscribe("fleet/v1/#")
		status := `{"boot":"b1","seq":1,"x":"` + strings.Repeat("x", 200<<10) + `"}`
		began := time.Now()
		for range 10 { // the observer reads no message
			if !dev.publish1(topicOf("pi-1", wire.ChannelStatus), status, false) {
				t.Fatal("a device's message was not acknowledged")
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("a device waited %s", took)
		}
		s := w.b.Stats()
		if s.Observed["dropped"] < 4 || s.Observed["sent"] > 6 {
			t.Errorf("counters after ten statuses of 200 KiB: %v, but 1 MiB may wait", s.Observed)
		}
		time.Sleep(2 * writeTimeout)
		synctest.Wait()
		if w.b.Stats().Observers != 0 || !w.b.Online("pi-1") {
			t.Errorf("%d observers after %s without reading", w.b.Stats().Observers, 2*writeTimeout)
		}
	})
}

func TestObserversAreLimitedAndEndWithTheirAccess(t *testing.T) {
	observing(t, func(w *world) {
		all := make([]*client, maxObservers)
		for i := range all {
			all[i], _ = w.observer(fmt.Sprintf("o-%d", i), func(pk *packets.Packet) { pk.Connect.Keepalive = 60 })
			all[i].subscribe("fleet/v1/#")
		}
		if _, code := w.observer("one-more", nil); code != unavailable || w.b.Stats().Refused["capacity"] != 1 {
			t.Errorf("CONNACK %d; %v", code, w.b.Stats().Refused)
		}
		time.Sleep(85 * time.Second) // a tool that pings once a minute stays connected
		if got := w.b.Stats().Observers; got != maxObservers {
			t.Fatalf("%d observers", got)
		}
		w.look.revoked.Store(true)
		time.Sleep(askObserver + time.Millisecond)
		synctest.Wait()
		if got := w.b.Stats().Observers; got != 0 {
			t.Errorf("%d observers %s after they were revoked", got, askObserver)
		}
		if _, code := w.observer("o-1", nil); code != notAuthorized {
			t.Errorf("CONNACK %d after it was revoked", code)
		}
	})
}

func TestMosquittoSubObserves(t *testing.T) {
	sub, pub := tool(t, "mosquitto_sub"), tool(t, "mosquitto_pub")
	ca := newAuthority(t)
	mine := pemOf(t, t.TempDir(), ca, ca.issue(pkix.Name{CommonName: "kari", Organization: []string{ObserverOrganization}},
		time.Now().Add(time.Hour)))
	l, dev := loopback(t), loopback(t)
	b := start(t, Config{Handler: &recorder{}, Observers: &lookouts{}, Listen: l, DevListen: dev, TLS: ca.server()})
	c := dialDev(t, dev.Addr(), "pi-1", nil)
	c.subscribeOwn("pi-1")
	args := append([]string{"-h", "127.0.0.1", "-p", port(l)}, mine...)
	for _, filter := range []string{"#", "$SYS/#"} {
		if out, _ := run(t, sub, append(args, "-W", "5", "-t", filter)...); !strings.Contains(out, "denied") {
			t.Errorf("%s: %s", filter, out)
		}
	}
	if out, err := run(t, pub, append(args, "-q", "1", "-t", topicOf("pi-1", wire.ChannelStatus), "-m", `{"boot":"b1","seq":1}`)...); err != nil {
		t.Errorf("a publish at QoS 1 was not acknowledged: %v\n%s", err, out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, sub, append(args, "-v", "-q", "2", "-C", "2", "-t", "fleet/v1/#")...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "its subscription", b.observers.active)
	c.publish0(topicOf("pi-1", wire.ChannelLease), `{"boot":"b1","seq":1}`)
	if err := b.Publish("pi-1", wire.ChannelDesired, []byte("hunter2")); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	want := "fleet/v1/nodes/pi-1/lease {\"boot\":\"b1\",\"seq\":1}\nfleet/v1/nodes/pi-1/desired {\"withheld\":true,\"bytes\":7}\n"
	if out.String() != want {
		t.Errorf("mosquitto_sub shows\n%swant\n%s", &out, want)
	}
}

func TestAnObserverThatReadsMissesNoMessage(t *testing.T) {
	observing(t, func(w *world) {
		dev := w.device("pi-1")
		o, _ := w.observer("kari", nil)
		o.subscribe("fleet/v1/+/+/status")
		status := `{"boot":"b1","seq":1,"x":"` + strings.Repeat("x", 200<<10) + `"}`
		for i := range 10 { // 2 MB in total
			dev.ping()
			o.ping()
			dev.publish1(topicOf("pi-1", wire.ChannelStatus), status, false)
			if got := o.next(); len(got) != 1 || !strings.HasSuffix(got[0], status) {
				t.Fatalf("status %d: %d messages", i, len(got))
			}
		}
		if s := w.b.Stats().Observed; s["sent"] != 10 || s["dropped"] != 0 {
			t.Errorf("%v", s)
		}
	})
}
