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

// Why an address may not have one more connection.
var (
	ErrMany = errors.New("no more are taken from one address")
	ErrFast = errors.New("it opens connections too fast")
)

// Addresses counts connections by address. Loopback, and connections in memory, are
// not counted: programs of this machine share one address.
type Addresses struct {
	Most  int     // connections of an address at once
	Rate  float64 // new ones of an address per second
	Burst int     // of them at once
	Asks  float64 // requests per second of those on its connections who do not show who they are
	Asked int     // of them at once

	mu    sync.Mutex
	by    map[netip.Addr]*visits
	swept time.Time // when those that have gone were looked for
}

type visits struct {
	open int
	rate *rate.Limiter
	debt float64 // requests of strangers that are not forgiven yet
	at   time.Time
}

// owes is the debt at a moment.
func (v *visits) owes(now time.Time, forgiven float64) float64 {
	return max(0, v.debt-forgiven*now.Sub(v.at).Seconds())
}

// forgotten tells whether nothing is held against an address that has gone.
func (a *Addresses) forgotten(v *visits, now time.Time) bool {
	return v.open == 0 && v.rate.TokensAt(now) >= float64(a.Burst)-1 && v.owes(now, a.Asks) < 1
}

// sweepAgain is how often all addresses are looked at for those that have gone, at most: a fleet
// of which each device has its own leaves in one moment.
const sweepAgain = time.Second

// IP is the other end's address, invalid where it does not count.
func IP(c net.Conn) netip.Addr {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() {
		return netip.Addr{}
	}
	ip, _ := netip.AddrFromSlice(a.IP)
	return Whose(ip)
}

// Whose is what an address counts as. An IPv6 customer has a whole /64, which counts as one.
func Whose(ip netip.Addr) netip.Addr {
	if ip = ip.Unmap().WithZone(""); ip.Is6() {
		p, _ := ip.Prefix(64)
		return p.Addr()
	}
	return ip
}

// Enter counts a connection, or says why there may not be one more: ErrMany or ErrFast.
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

// Leave takes back an Enter. An address is forgotten with its last connection once
// its rate is forgiven, looked at when somebody leaves.
func (a *Addresses) Leave(ip netip.Addr) {
	if !ip.IsValid() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v, now := a.by[ip], time.Now()
	if v.open--; a.forgotten(v, now) {
		delete(a.by, ip)
	}
	if now.Sub(a.swept) < sweepAgain {
		return
	}
	a.swept = now
	for ip, v := range a.by {
		if a.forgotten(v, now) {
			delete(a.by, ip)
		}
	}
}

// Ask counts a request on one of an address's connections, and tells whether there may be
// one more of somebody who has not shown who they are.
func (a *Addresses) Ask(ip netip.Addr) bool { return a.ask(ip, 1) }

// Unask takes back an Ask: its sender has shown who they are.
func (a *Addresses) Unask(ip netip.Addr) { a.ask(ip, -1) }

func (a *Addresses) ask(ip netip.Addr, n float64) bool {
	if !ip.IsValid() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	v, now := a.by[ip], time.Now()
	if v == nil { // its connection was closed meanwhile
		return false
	}
	debt := v.owes(now, a.Asks) + n
	if debt > float64(a.Asked) {
		return false
	}
	v.debt, v.at = max(debt, 0), now
	return true
}

// Len is how many addresses are remembered.
func (a *Addresses) Len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.by)
}
