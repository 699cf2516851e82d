package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// A Server keeps the hub's own certificate: one for HTTPS and MQTT, renewed by
// itself in time, and when the hub gets a name or an address that is not in it.
type Server struct {
	authority *Authority
	names     func() []string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	looked  time.Time // when names were last compared
	renewed time.Time // when the newest one was made for the time
	turn    int       // of the authority, when current was made
	tried   int       // that of the newest look
}

const (
	serverRenew = LeafLife / 3 // left of its life when it is renewed
	lookEvery   = time.Minute  // an address that DHCP gave is served this soon
	renewPause  = 24 * time.Hour
	maxNames    = 100
)

// NewServer reads or makes the hub's certificate. names says under which names
// and addresses it is reached, see LocalNames.
func (a *Authority) NewServer(names func() []string, log *slog.Logger) (*Server, error) {
	s := &Server{authority: a, names: names, log: log}
	chain, by, turn := a.issuers()
	s.turn = turn
	p, err := a.read("server")
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		log.Warn("the hub's certificate cannot be used and is made anew", "err", err)
	case p.cert.CheckSignatureFrom(by) != nil:
		log.Info("the hub's certificate has another issuer and is made anew")
	default:
		s.current = pairOf(p.cert, chain, p.key)
	}
	_, err = s.GetCertificate(nil)
	return s, err
}

func pairOf(leaf *x509.Certificate, chain [][]byte, key *ecdsa.PrivateKey) *tls.Certificate {
	return &tls.Certificate{Certificate: append([][]byte{leaf.Raw}, chain...), PrivateKey: key, Leaf: leaf}
}

// GetCertificate is for tls.Config. When a renewal fails it serves the one it has.
func (s *Server) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now() // by the machine's time: it is others who judge it, by their clocks
	chain, by, turn := s.authority.issuers()
	former := s.current != nil && turn != s.turn && s.current.Leaf.CheckSignatureFrom(by) != nil
	if s.current != nil && turn != s.turn && !former {
		s.current, s.turn = pairOf(s.current.Leaf, chain, s.current.PrivateKey.(*ecdsa.PrivateKey)), turn
	}
	if s.current != nil && now.Sub(s.looked) < lookEvery && now.After(s.looked) && (!former || turn == s.tried) {
		return s.current, nil
	}
	s.looked, s.tried = now, turn
	names := s.names()
	due := s.current != nil && s.due(now)
	if s.current != nil && !former && !due && covers(s.current.Leaf, names) {
		return s.current, nil
	}
	fresh, err := s.issue(names)
	switch {
	case err == nil:
		s.current = fresh
		if due {
			s.renewed = now
		}
		s.log.Info("the hub has a new certificate", "names", strings.Join(names, " "), "until",
			fresh.Leaf.NotAfter.UTC().Format(time.DateOnly))
	case s.current == nil:
		return nil, err
	default:
		s.log.Error("the hub's certificate cannot be renewed", "err", err)
	}
	return s.current, nil
}

// due tells whether it is time for another certificate: the one that is served ends soon, or is
// not good yet. Another one may be no better, in the last months of the root or by a clock that
// is years off, so it is one a day.
func (s *Server) due(now time.Time) bool {
	leaf := s.current.Leaf
	return (now.After(leaf.NotAfter.Add(-serverRenew)) || early(leaf)) && now.Sub(s.renewed).Abs() >= renewPause
}

func (s *Server) issue(names []string) (*tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	leaf, _, err := s.authority.signServer("Flotilla hub", []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, names, key)
	if err != nil {
		return nil, fmt.Errorf("sign the hub's certificate: %w", err)
	}
	if err := s.authority.write("server", leaf, key); err != nil {
		return nil, err
	}
	chain, _, turn := s.authority.issuers()
	s.turn = turn
	return pairOf(leaf, chain, key), nil
}

// signServer signs the certificate of a server that answers to these names and addresses.
func (a *Authority) signServer(who string, use []x509.ExtKeyUsage, names []string,
	key *ecdsa.PrivateKey) (leaf, by *x509.Certificate, err error) {
	from, until := a.span(LeafLife)
	t := &x509.Certificate{
		Subject:     pkix.Name{Organization: []string{"Flotilla"}, CommonName: who},
		NotBefore:   from,
		NotAfter:    until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: use,
	}
	for _, n := range names[:min(len(names), maxNames)] {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	return a.sign(t, key.Public(), a.now())
}

// Names are those in the certificate that is served now.
func (s *Server) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return inside(s.current.Leaf)
}

// Expires is the end of the certificate that is served now.
func (s *Server) Expires() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.Leaf.NotAfter
}

func inside(cert *x509.Certificate) []string {
	names := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}

// covers: an address that is gone does no harm, one that is new has to be in.
func covers(cert *x509.Certificate, names []string) bool {
	have := inside(cert)
	for _, n := range names[:min(len(names), maxNames)] {
		if !slices.Contains(have, n) {
			return false
		}
	}
	return true
}

// LocalNames are the names and addresses under which this machine can be
// reached: advertised ("" for none), its host name, localhost, and every address of its
// interfaces that is good beyond one link.
func LocalNames(advertised string) []string {
	var names []string
	add := func(n string) {
		if a, err := netip.ParseAddr(n); err == nil {
			n = a.Unmap().String()
		}
		n = strings.TrimSuffix(strings.ToLower(n), ".")
		if n != "" && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	add(advertised)
	if host, err := os.Hostname(); err == nil && !strings.ContainsAny(host, " _") {
		add(host)
		if !strings.Contains(host, ".") {
			add(host + ".local") // how mDNS names it
		}
	}
	add("localhost")
	add("127.0.0.1")
	add("::1")
	links, _ := net.Interfaces()
	for _, l := range links {
		if ofContainers(l.Name) {
			continue
		}
		addresses, _ := l.Addrs()
		for _, a := range addresses {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && p.Addr().IsGlobalUnicast() {
				add(p.Addr().String())
			}
		}
	}
	return names
}

// ofContainers says whether an interface is a bridge or a pair of a container
// engine: they come and go with containers, nobody else reaches the hub through
// them, and each change would make a new certificate.
func ofContainers(link string) bool {
	for _, prefix := range []string{"docker", "br-", "podman", "cni-", "veth"} {
		if strings.HasPrefix(link, prefix) {
			return true
		}
	}
	return false
}
