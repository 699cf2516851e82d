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

// A Server holds the hub's certificate for HTTPS and MQTT. It renews the certificate in time, and
// when the hub gets a name or an address that the certificate does not have.
type Server struct {
	authority *Authority
	names     func() []string
	log       *slog.Logger

	mu         sync.Mutex
	current    *tls.Certificate
	compared   time.Time // last comparison of names
	renewed    time.Time // last renewal near the expiry
	generation int       // the authority's generation when current was issued
	tried      int       // the authority's generation at the last attempt
}

const (
	serverRenew  = LeafLife / 3 // remaining lifetime at which the certificate is renewed
	compareEvery = time.Minute  // maximum delay until the certificate has a new DHCP address
	renewPause   = 24 * time.Hour
	maxNames     = 100
)

// NewServer reads or issues the hub's certificate. names returns the hub's names and addresses, see
// LocalNames.
func (a *Authority) NewServer(names func() []string, log *slog.Logger) (*Server, error) {
	s := &Server{authority: a, names: names, log: log}
	chain, by, generation := a.issuers()
	s.generation = generation
	p, err := a.read("server")
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		log.Warn("the hub's certificate is unusable; issuing a new one", "err", err)
	case p.cert.CheckSignatureFrom(by) != nil:
		log.Info("the hub's certificate has another issuer; issuing a new one")
	default:
		s.current = pairOf(p.cert, chain, p.key)
	}
	_, err = s.GetCertificate(nil)
	return s, err
}

func pairOf(leaf *x509.Certificate, chain [][]byte, key *ecdsa.PrivateKey) *tls.Certificate {
	return &tls.Certificate{Certificate: append([][]byte{leaf.Raw}, chain...), PrivateKey: key, Leaf: leaf}
}

// GetCertificate is for tls.Config. If a renewal fails, it returns the current certificate.
func (s *Server) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now() // the machine's time, because clients check the certificate with their own clocks
	chain, by, generation := s.authority.issuers()
	former := s.current != nil && generation != s.generation && s.current.Leaf.CheckSignatureFrom(by) != nil
	if s.current != nil && generation != s.generation && !former {
		s.current, s.generation = pairOf(s.current.Leaf, chain, s.current.PrivateKey.(*ecdsa.PrivateKey)), generation
	}
	if s.current != nil && now.Sub(s.compared) < compareEvery && now.After(s.compared) &&
		(!former || generation == s.tried) {
		return s.current, nil
	}
	s.compared, s.tried = now, generation
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
		s.log.Info("issued a new certificate for the hub", "names", strings.Join(names, " "), "until",
			fresh.Leaf.NotAfter.UTC().Format(time.DateOnly))
	case s.current == nil:
		return nil, err
	default:
		s.log.Error("cannot renew the hub's certificate", "err", err)
	}
	return s.current, nil
}

// due reports whether the current certificate expires soon or is not valid yet. It is true at most
// once a day, because near the root's expiry or with a wrong clock a new certificate has the same
// problem.
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
	chain, _, generation := s.authority.issuers()
	s.generation = generation
	return pairOf(leaf, chain, key), nil
}

// signServer issues a server certificate for names and addresses.
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

// Names returns the names in the current certificate.
func (s *Server) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return inside(s.current.Leaf)
}

// Expires returns the expiry of the current certificate.
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

// covers reports whether a certificate has all names. It may have more, because an unused address
// is harmless.
func covers(cert *x509.Certificate, names []string) bool {
	have := inside(cert)
	for _, n := range names[:min(len(names), maxNames)] {
		if !slices.Contains(have, n) {
			return false
		}
	}
	return true
}

// LocalNames returns the names and addresses of this machine: advertised (if not ""), the host
// name, localhost, and every address of its interfaces that is not link-local.
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
			add(host + ".local") // the mDNS name
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

// ofContainers reports whether an interface is a bridge or veth pair of a container engine. Clients
// do not connect through these interfaces. They change with the containers, which must not cause a
// new certificate.
func ofContainers(link string) bool {
	for _, prefix := range []string{"docker", "br-", "podman", "cni-", "veth"} {
		if strings.HasPrefix(link, prefix) {
			return true
		}
	}
	return false
}
