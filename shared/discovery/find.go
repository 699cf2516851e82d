package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/ipv4"
)

// ErrNone: no hub has answered.
var ErrNone = errors.New("no hub has answered on the local network")

// askEvery is how often Find repeats its query: a packet may be lost.
const askEvery = time.Second

// Find returns the URLs of the hubs that answer on the local network within the time wait, at most
// 16.
func Find(ctx context.Context, wait time.Duration) ([]string, error) {
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	name := dnsmessage.MustNewName(service)
	query, err := (&dnsmessage.Message{Questions: []dnsmessage.Question{
		{Name: name, Type: dnsmessage.TypePTR, Class: dnsmessage.ClassINET}}}).Pack()
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(wait)
	var found []string
	packet := make([]byte, maxPacket)
	for time.Now().Before(end) && ctx.Err() == nil {
		for _, i := range interfaces() {
			if err = ipv4.NewPacketConn(c).SetMulticastInterface(&i); err == nil {
				_, err = c.WriteToUDP(query, group)
			}
		}
		if err := c.SetReadDeadline(time.Now().Add(min(askEvery, time.Until(end)))); err != nil {
			return nil, err
		}
		for {
			n, _, err := c.ReadFromUDPAddrPort(packet)
			if err != nil {
				break
			}
			for _, u := range urls(packet[:n]) {
				if len(found) < maxURLs && !slices.Contains(found, u) {
					found = append(found, u)
				}
			}
		}
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case len(found) == 0 && err != nil: // no interface could send
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	case len(found) == 0:
		return nil, ErrNone
	}
	return found, nil
}

// urls are the addresses of a hub in an answer: those that it wrote itself, and that of its
// interface on this network.
func urls(packet []byte) (all []string) {
	var m dnsmessage.Message
	if m.Unpack(packet) != nil || !m.Response || len(m.Answers) == 0 ||
		!strings.EqualFold(m.Answers[0].Header.Name.String(), service) {
		return nil
	}
	var port uint16
	var at netip.Addr
	for _, r := range append(m.Answers, m.Additionals...) {
		switch b := r.Body.(type) {
		case *dnsmessage.SRVResource:
			port = b.Port
		case *dnsmessage.AResource:
			at = netip.AddrFrom4(b.A)
		case *dnsmessage.TXTResource:
			for _, txt := range b.TXT {
				text, ok := strings.CutPrefix(txt, key)
				if u, err := url.Parse(text); ok && err == nil && u.Hostname() != "" && text == "https://"+u.Host &&
					!strings.Contains(text, ",") {
					all = append(all, text)
				}
			}
		}
	}
	if port != 0 && at.IsValid() {
		all = append(all, "https://"+netip.AddrPortFrom(at, port).String())
	}
	return all
}
