package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestPerAddressLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Addresses{Most: 5, Rate: 1, Burst: 4}
		ip := IP(&fakeConn{addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7)}})
		var errs []error
		for range 6 {
			if err := a.Enter(ip); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) != 2 || !errors.Is(errs[0], ErrFast) {
			t.Errorf("six connections at once: %q; want a burst of four", errs)
		}
		time.Sleep(3 * time.Second)
		_ = a.Enter(ip)
		if err := a.Enter(ip); !errors.Is(err, ErrMany) {
			t.Errorf("the sixth concurrent connection: %v", err)
		}
		for range 5 {
			a.Leave(ip)
		}
		time.Sleep(time.Minute)
		_ = a.Enter(ip)
		a.Leave(ip)
		for range 10 {
			if err := a.Enter(IP(&fakeConn{addr: &net.TCPAddr{IP: net.IPv6loopback}})); err != nil {
				t.Errorf("loopback is limited: %v", err)
			}
		}
		time.Sleep(time.Minute)
		if a.Len() > 1 {
			t.Errorf("%d addresses are stored", a.Len())
		}
	})
}

// Addresses without connections are removed, even if many disconnect at once.
func TestUnusedAddressesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Addresses{Most: 5, Rate: 1, Burst: 4}
		of := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
		for range 3 {
			for i := range 3000 {
				for range 2 { // the rate of one connection recovers at once, that of a second one within a second
					if err := a.Enter(of(i)); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := range 3000 {
				a.Leave(of(i))
				a.Leave(of(i))
			}
			if a.Len() != 3000 {
				t.Errorf("%d of 3000 addresses that reconnect at once are stored", a.Len())
			}
			time.Sleep(time.Minute)
		}
		_ = a.Enter(of(0))
		if a.Leave(of(0)); a.Len() != 0 {
			t.Errorf("%d addresses are never removed", a.Len())
		}
	})
}

// In this fleet every device has its own address.
func BenchmarkAFleetLeaves(b *testing.B) {
	for _, fleet := range []int{1000, 18000} {
		b.Run(fmt.Sprintf("fleet=%d", fleet), func(b *testing.B) {
			for b.Loop() {
				a := Addresses{Most: 5, Rate: 1, Burst: 4}
				of := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
				for i := range fleet {
					_ = a.Enter(of(i))
					_ = a.Enter(of(i))
				}
				for i := range fleet {
					a.Leave(of(i))
					a.Leave(of(i))
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(fleet), "us/device")
		})
	}
}

type fakeConn struct {
	net.Conn
	addr net.Addr
}

func (f *fakeConn) RemoteAddr() net.Addr { return f.addr }

func TestOneNetworkOfIPv6IsOneAddress(t *testing.T) {
	at := func(text string) any { return IP(&fakeConn{addr: &net.TCPAddr{IP: net.ParseIP(text)}}) }
	if at("2001:db8::1") != at("2001:db8::ffff:1") || at("2001:db8::1") == at("2001:db8:0:1::1") {
		t.Error("a /64 does not count as one address")
	}
	if at("::ffff:192.0.2.7") != at("192.0.2.7") || at("192.0.2.7") == at("192.0.2.8") {
		t.Error("each IPv4 address does not count separately")
	}
}

func TestFileDescriptorsAreReservedForMQTT(t *testing.T) {
	for _, tt := range []struct {
		files       uint64
		https, mqtt int
	}{{1024, 192, 576}, {2500, 561, 1683}, {20000, 1024, 18720}, {1 << 40, 1024, 65536}, {100, 16, 48}} {
		if https, mqtt := divide(tt.files); https != tt.https || mqtt != tt.mqtt {
			t.Errorf("of %d files HTTPS may use %d and MQTT %d, want %d and %d", tt.files, https, mqtt, tt.https, tt.mqtt)
		}
	}
}
