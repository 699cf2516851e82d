package link

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// An address is a listener of a hub with its own certificate. Closing it closes its connections
// too.
type address struct {
	net.Listener
	url string

	mu    sync.Mutex
	conns []net.Conn
}

func (a *address) close() {
	_ = a.Listener.Close()
	a.cut()
}

func (a *address) cut() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.conns {
		_ = c.Close()
	}
	a.conns = nil
}

func (a *address) connected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.conns) > 0
}

// addresses returns a listener for each name, with certificates of one CA.
func addresses(t *testing.T, names ...string) ([]*address, *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	sign := func(c *x509.Certificate) *x509.Certificate {
		der, err := x509.CreateCertificate(rand.Reader, c, ca, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		c, _ = x509.ParseCertificate(der)
		return c
	}
	ca = sign(ca)
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	issue := func(name string) tls.Certificate {
		c := &x509.Certificate{
			SerialNumber: big.NewInt(2),
			Subject:      pkix.Name{CommonName: name},
			NotBefore:    now.Add(-time.Hour),
			NotAfter:     now.Add(time.Hour),
		}
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = []net.IP{ip}
		} else {
			c.DNSNames = []string{name}
		}
		return tls.Certificate{Certificate: [][]byte{sign(c).Raw}, PrivateKey: key}
	}
	var all []*address
	h := &hub{t: t}
	for _, name := range names {
		l, err := tls.Listen(
			"tcp",
			"127.0.0.1:0",
			&tls.Config{
				Certificates: []tls.Certificate{issue(name)},
				ClientCAs:    pool,
				ClientAuth:   tls.RequireAndVerifyClientCert,
			},
		)
		if err != nil {
			t.Fatal(err)
		}
		host := name
		if name == "stranger" {
			host = "127.0.0.1"
		}
		a := &address{Listener: l, url: fmt.Sprintf("mqtts://%s:%d", host, l.Addr().(*net.TCPAddr).Port)}
		t.Cleanup(a.close)
		all = append(all, a)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if c.(*tls.Conn).Handshake() != nil {
						return
					}
					a.mu.Lock()
					a.conns = append(a.conns, c)
					a.mu.Unlock()
					h.serve(c)
				}()
			}
		}()
	}
	return all, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{issue("pi-1")}}
}

// over runs a link with these addresses until the test ends.
func over(t *testing.T, conf *tls.Config, urls ...string) *Link {
	t.Helper()
	a := &agent{load: "x", pod: "x"}
	l, err := New(Config{Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1",
		Server: strings.Join(urls, ","), TLS: conf, Source: a, Sink: a,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	a.link = l
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

func TestTheLinkTriesTheNextAddressWhenOneFails(t *testing.T) {
	all, conf := addresses(t, "127.0.0.1", "localhost", "127.0.0.1")
	over(t, conf, all[0].url, all[1].url, all[2].url)
	left := all
	for len(left) > 0 {
		var next []*address
		used := 0
		await(t, "a connection", func() bool {
			for _, a := range left {
				if a.connected() {
					return true
				}
			}
			return false
		})
		for _, a := range left {
			if a.connected() {
				used++
				a.close()
				continue
			}
			next = append(next, a)
		}
		if used != 1 {
			t.Fatalf("%d addresses are in use at once, want 1", used)
		}
		left = next
	}
}

func TestAnAddressNeedsACertificateForItsName(t *testing.T) {
	all, conf := addresses(t, "stranger", "localhost")
	l := over(t, conf, all[0].url, all[1].url)
	await(t, "the connection to the address whose certificate is valid",
		func() bool { online, _ := l.Online(); return online && all[1].connected() })
	all[1].close()
	await(t, "the refusal of the address whose certificate is for another name", func() bool {
		_, err := l.Online()
		return err != nil && strings.Contains(err.Error(), "cannot validate certificate for 127.0.0.1")
	})
	if online, _ := l.Online(); online {
		t.Error("connected to an address whose certificate is for another name")
	}
}

func TestARemovedAddressIsLeft(t *testing.T) {
	all, conf := addresses(t, "127.0.0.1", "127.0.0.1")
	l := over(t, conf, all[0].url)
	await(t, "the connection", all[0].connected)
	if err := l.SetServer(all[0].url+","+all[1].url, false); err != nil {
		t.Fatal(err)
	}
	if err := l.SetServer("https://x", false); err == nil {
		t.Error("SetServer accepted an https address")
	}
	time.Sleep(200 * time.Millisecond)
	if all[1].connected() {
		t.Error("the link left a working address for an added one")
	}
	if err := l.SetServer(all[1].url, false); err != nil {
		t.Fatal(err)
	}
	await(t, "the connection to the second address", all[1].connected)
}

func TestAnAddressThatWasGoodIsTriedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := route{}
		cfg := Config{TLS: &tls.Config{}}
		if err := r.set(&cfg, "mqtts://a, mqtts://b:1,mqtts://c,mqtts://b:1", false); err != nil || len(r.servers) != 3 {
			t.Fatal(err, len(r.servers))
		}
		l := &Link{interval: 10 * time.Second}
		l.route.servers = r.servers
		first, several := l.route.now()
		try := 0
		if l.pause(&try, true); !several {
			t.Error("now reports a single address, want several")
		}
		if now, _ := l.route.now(); now.url != first.url {
			t.Errorf("after a good session at %s, the next try is at %s, want the same", first.url, now.url)
		}
		seen := map[string]bool{first.url: true}
		for range 2 {
			if p := l.pause(&try, false); p >= line.MinPause {
				t.Errorf("the link waits %s before the next address, want less than %s", p, line.MinPause)
			}
			now, _ := l.route.now()
			seen[now.url] = true
		}
		if len(seen) != 3 {
			t.Errorf("after two failures the tried addresses are %v, want three", seen)
		}
		longest := time.Duration(0)
		for range 3 * 200 {
			longest = max(longest, l.pause(&try, false))
		}
		if longest < 4*time.Second || longest > 5*time.Second {
			t.Errorf("the longest pause is %s, want up to 5s", longest)
		}
	})
}

func TestDevicesOfAFailedAddressSpreadOverAllOthers(t *testing.T) {
	cfg := Config{TLS: &tls.Config{}}
	began, after := map[string]int{}, map[string]int{}
	for range 3000 {
		l := &Link{interval: 10 * time.Second}
		if err := l.route.set(&cfg, "mqtts://a,mqtts://b,mqtts://c", false); err != nil {
			t.Fatal(err)
		}
		s, _ := l.route.now()
		began[s.url]++
		if s.url == "mqtts://a" {
			try := 0
			l.pause(&try, false)
			s, _ = l.route.now()
			after[s.url]++
		}
	}
	for _, url := range []string{"mqtts://a", "mqtts://b", "mqtts://c"} {
		if began[url] < 800 || began[url] > 1200 {
			t.Errorf("%d of 3000 devices begin with %s, want about 1000", began[url], url)
		}
	}
	if after["mqtts://a"] != 0 || after["mqtts://b"] < 350 || after["mqtts://c"] < 350 {
		t.Errorf("devices of the failed address a went to %v, want about half to b and half to c", after)
	}
}

// A dead address uses up 4 s of the grace period, not 10.
func TestAnAddressThatDropsPacketsTimesOutEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hub{t: t}
		tries := 0
		a := &agent{load: "x", pod: "x"}
		l, err := New(Config{
			Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1",
			Server: "mqtt://127.0.0.1:1,mqtt://127.0.0.1:2", Source: a, Sink: a,
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Dial: func(ctx context.Context) (net.Conn, error) {
				if tries++; tries == 1 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return h.dial(ctx)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		a.link = l
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx) }()
		time.Sleep(4300 * time.Millisecond)
		if online, err := l.Online(); !online {
			t.Errorf("not connected to the second address after 4.3 s: %v", err)
		}
		cancel()
		<-done
	})
}

// A path that loses large packets, or a hub that stands still, accepts a connection and then is
// silent. The time to detect that grows with the bytes sent.
func TestAnAddressThatAcknowledgesNothingIsLeft(t *testing.T) {
	for _, external := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mute := &hub{
				t:        t,
				external: external,
				lose:     func(what string) bool { return what != "suback" && what != "connack" && what != "dial" },
			}
			good := &hub{t: t, external: external}
			a := &agent{load: "x", pod: "x"}
			for i := range 300 {
				a.others = append(a.others,
					wire.PodStatus{UID: types.UID(rand.Text()), Namespace: rand.Text(), Name: fmt.Sprint(i, rand.Text())})
			}
			var l *Link
			l, err := New(Config{
				Node: "pi-1", Machine: "3f2a9c0d1e4b5a67", Boot: "b1",
				Server: "mqtt://127.0.0.1:1,mqtt://127.0.0.1:2", External: external,
				Source: a, Sink: a, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
				Dial: func(ctx context.Context) (net.Conn, error) {
					if to, _ := l.route.now(); strings.HasSuffix(to.url, ":1") {
						return mute.dial(ctx)
					}
					return good.dial(ctx)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			a.link = l
			for to, _ := l.route.now(); !strings.HasSuffix(to.url, ":1"); to, _ = l.route.now() {
				l.route.next()
			}
			l.route.failed = 0
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- l.Run(ctx) }()
			time.Sleep(3 * time.Minute)
			if n := with(mute, func(h *hub) int { return h.connects }); n != 1 {
				t.Errorf("behind a broker %v: connected %d times to the address that acknowledges nothing, want once", external,
					n)
			}
			agree(t, good, a, "at the second address")
			cancel()
			<-done
			for _, h := range []*hub{mute, good} {
				h.mu.Lock()
				if h.conn != nil {
					h.conn.Close()
				}
				h.mu.Unlock()
			}
			time.Sleep(time.Minute)
		})
	}
}

// crypto/tls leaves an IP address out of the ConnectionState, and join.Live needs it.
func TestVerifyConnectionGetsTheDialledAddress(t *testing.T) {
	all, conf := addresses(t, "127.0.0.1")
	names := make(chan string, 16)
	conf.VerifyConnection = func(s tls.ConnectionState) error { names <- s.ServerName; return nil }
	over(t, conf, all[0].url)
	if name := <-names; name != "127.0.0.1" {
		t.Errorf("VerifyConnection got server name %q, want the dialled address", name)
	}
}
