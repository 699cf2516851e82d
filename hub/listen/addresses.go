package listen

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// The reasons why an address gets no further connection.
var (
	ErrMany = errors.New("no more are taken from one address")
	ErrFast = errors.New("it opens connections too fast")
)

// Addresses counts connections by address. Loopback and in-memory connections are not counted,
// because local programs share one address.
type Addresses struct {
	Most     int     // open connections of one address
	Rate     float64 // new connections of one address per second
	Burst    int     // new connections at once, above Rate
	AskRate  float64 // unauthenticated requests per second from one address
	AskBurst int     // unauthenticated requests at once, above AskRate

	mu    sync.Mutex
	by    map[netip.Addr]*visits
	swept time.Time // when idle addresses were last removed
}

type visits struct {
	open int
	rate *rate.Limiter
	debt float64 // unauthenticated requests, reduced over time by AskRate
	at   time.Time
}

// debtAt returns the debt at a moment.
func (v *visits) debtAt(now time.Time, forgiven float64) float64 {
	return max(0, v.debt-forgiven*now.Sub(v.at).Seconds())
}

// unused tells whether an address without connections has used none of its limits.
func (a *Addresses) unused(v *visits, now time.Time) bool {
	return v.open == 0 && v.rate.TokensAt(now) >= float64(a.Burst)-1 && v.debtAt(now, a.AskRate) < 1
}

// sweepEvery is the least time between two sweeps over all addresses, because many devices may
// disconnect at the same moment.
const sweepEvery = time.Second

// IP returns the address of the client. It is invalid if the client's connections are not counted.
func IP(c net.Conn) netip.Addr {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(a.IP)
	return Prefix(ip)
}

// Prefix returns the prefix under which an address is counted. An IPv6 customer has a whole /64,
// which counts as one address.
func Prefix(ip netip.Addr) netip.Addr {
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		p, _ := ip.Prefix(64)
		return p.Addr()
	}
	return ip
}

// Enter counts a connection, or refuses it with ErrMany or ErrFast.
func (a *Addresses) Enter(ip netip.Addr) error {
	if !ip.IsValid() {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v := a.by[ip]
	if v == nil {
		if a.by == nil {
			a.by = map[netip.Addr]*visits{}
		}
		v = &visits{rate: rate.NewLimiter(rate.Limit(a.Rate), a.Burst)}
		a.by[ip] = v
	}
	switch {
	case v.open >= a.Most:
		return fmt.Errorf("%s has %d connections: %w", ip, v.open, ErrMany)
	case !v.rate.Allow():
		return fmt.Errorf("%s opens more than %g connections a second: %w", ip, a.Rate, ErrFast)
	}
	v.open++
	return nil
}

// Leave undoes an Enter. It also removes addresses that have no connection and have used none of
// their limits.
func (a *Addresses) Leave(ip netip.Addr) {
	if !ip.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v, now := a.by[ip], time.Now()
	if v.open--; a.unused(v, now) {
		delete(a.by, ip)
	}
	if now.Sub(a.swept) < sweepEvery {
		return
	}
	a.swept = now
	for ip, v := range a.by {
		if a.unused(v, now) {
			delete(a.by, ip)
		}
	}
}

// Ask counts an unauthenticated request on a connection of an address, and tells whether it is
// within the limit.
func (a *Addresses) Ask(ip netip.Addr) bool { return a.ask(ip, 1) }

// Unask undoes an Ask, because the request turned out to be authenticated.
func (a *Addresses) Unask(ip netip.Addr) { a.ask(ip, -1) }

func (a *Addresses) ask(ip netip.Addr, n float64) bool {
	if !ip.IsValid() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v, now := a.by[ip], time.Now()
	if v == nil { // its connection was closed meanwhile, and the address removed
		return false
	}
	debt := v.debtAt(now, a.AskRate) + n
	if debt > float64(a.AskBurst) {
		return false
	}
	v.debt, v.at = max(debt, 0), now
	return true
}

// Len returns the number of addresses that are remembered.
func (a *Addresses) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.by)
}
