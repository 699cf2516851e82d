// Package discovery finds hubs on the local network by multicast DNS (RFC 6762 and 6763). A hub
// announces the service _flotilla._tcp, and a device that joins with --discover queries it.
//
// It trusts no answer: package join compares a hub's certificate with the token. The hub's package
// serve calls Run, and the device's package cli calls Find.
package discovery

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	service = "_flotilla._tcp.local."
	maxURLs = 16
	// maxPacket is the size of the largest packet on a network without jumbo frames.
	maxPacket = 1472
	// key begins each TXT string; a hub's URL follows.
	key = "url="
	ttl = 120 // seconds
	// lookEvery is how often a hub checks for new network interfaces.
	lookEvery = time.Minute
)

// group is the address of multicast DNS.
var group = &net.UDPAddr{IP: net.IPv4(224, 0, 0, 251), Port: 5353}

// A Hub is what a hub announces.
type Hub struct {
	Listen netip.AddrPort  // address of HTTPS; unspecified: all addresses of the machine
	URLs   func() []string // URLs at which devices reach the hub
	Log    *slog.Logger
}

// Run announces the hub on every network interface that it listens on, until ctx ends. Without such
// an interface, for example on loopback, it announces nothing.
func (h Hub) Run(ctx context.Context) error {
	listeners := map[string]*net.UDPConn{}
	defer func() {
		for _, c := range listeners {
			_ = c.Close()
		}
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		now := map[string]bool{}
		for _, i := range interfaces() {
			if h.address(i).IsValid() {
				now[i.Name] = true
			}
			if !now[i.Name] || listeners[i.Name] != nil {
				continue
			}
			c, err := net.ListenMulticastUDP("udp4", &i, group)
			if err != nil {
				h.Log.Warn("cannot announce the hub: devices on this network cannot join with --discover", "interface", i.Name,
					"err", err)
				continue
			}
			listeners[i.Name] = c
			go h.answer(c, i)
		}
		for name, c := range listeners {
			if !now[name] {
				_ = c.Close()
				delete(listeners, name)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// answer replies to each query for the service, until the listener is closed.
func (h Hub) answer(c *net.UDPConn, at net.Interface) {
	packet := make([]byte, maxPacket)
	for {
		n, from, err := c.ReadFromUDPAddrPort(packet)
		if err != nil {
			return
		}
		var q dnsmessage.Message
		if q.Unpack(packet[:n]) != nil || q.Response {
			continue
		}
		for _, question := range q.Questions {
			own := h.address(at)
			if question.Type != dnsmessage.TypePTR || !strings.EqualFold(question.Name.String(), service) || !own.IsValid() {
				continue
			}
			if reply, err := h.reply(q.ID, question, own); err == nil {
				_, _ = c.WriteToUDPAddrPort(reply, from) // the device asks again
			}
			break
		}
	}
}

// reply is the answer to a legacy unicast query (RFC 6762, section 6.7): it repeats the question
// and goes only to the sender.
func (h Hub) reply(id uint16, question dnsmessage.Question, own netip.Addr) ([]byte, error) {
	host := strings.ReplaceAll(own.String(), ".", "-")
	instance, err := dnsmessage.NewName(host + "." + service)
	if err != nil {
		return nil, err
	}
	target, err := dnsmessage.NewName("flotilla-" + host + ".local.")
	if err != nil {
		return nil, err
	}
	var txt []string
	for _, u := range h.URLs() {
		if len(key+u) <= 255 && len(txt) < maxURLs { // the limit of a TXT string
			txt = append(txt, key+u)
		}
	}
	head := func(name dnsmessage.Name) dnsmessage.ResourceHeader {
		return dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttl}
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, Response: true, Authoritative: true},
		Questions: []dnsmessage.Question{question},
		Answers:   []dnsmessage.Resource{{Header: head(question.Name), Body: &dnsmessage.PTRResource{PTR: instance}}},
		Additionals: []dnsmessage.Resource{
			{Header: head(instance), Body: &dnsmessage.SRVResource{Port: h.Listen.Port(), Target: target}},
			{Header: head(instance), Body: &dnsmessage.TXTResource{TXT: txt}},
			{Header: head(target), Body: &dnsmessage.AResource{A: own.As4()}},
		},
	}
	return m.Pack()
}

// address is an interface's first IPv4 address at which the hub listens, or the zero Addr.
func (h Hub) address(i net.Interface) netip.Addr {
	have, _ := i.Addrs()
	for _, a := range have {
		p, err := netip.ParsePrefix(a.String())
		if at := h.Listen.Addr(); err == nil && p.Addr().Is4() && (at.IsUnspecified() || at.Unmap() == p.Addr()) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

// interfaces lists the network interfaces that carry multicast, without loopback.
func interfaces() (all []net.Interface) {
	have, _ := net.Interfaces()
	const need = net.FlagUp | net.FlagMulticast
	for _, i := range have {
		if i.Flags&(need|net.FlagLoopback) == need {
			all = append(all, i)
		}
	}
	return all
}
