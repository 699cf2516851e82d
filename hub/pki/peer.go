package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"sync"
	"time"
)

// Peer is the role of another hub of the same fleet: good for its peer listener, where
// it is believed when it says who sends a request, and for nothing else.
const Peer Role = "peer"

// A PeerClient is how a hub shows another one who it is. Its key is never stored: each process
// makes one, and a new one in time.
type PeerClient struct {
	authority *Authority
	name      string

	mu      sync.Mutex
	current *tls.Certificate
	turn    int
}

// NewPeerClient returns a client that other hubs know by name.
func (a *Authority) NewPeerClient(name string) *PeerClient {
	return &PeerClient{authority: a, name: name}
}

// Config is the TLS of one connection to a peer: roots change while the hub runs.
func (p *PeerClient) Config(host string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: host, RootCAs: p.authority.rootPool(), Time: p.authority.now,
		NextProtos:           []string{"http/1.1"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return p.certificate() },
	}
}

func (p *PeerClient) certificate() (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	chain, _, turn := p.authority.issuers()
	now := time.Now()
	if p.current != nil && p.turn == turn && now.Before(p.current.Leaf.NotAfter.Add(-serverRenew)) {
		return p.current, nil
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	from, until := p.authority.span(LeafLife)
	leaf, _, err := p.authority.sign(&x509.Certificate{
		Subject:   pkix.Name{Organization: []string{organizations[Peer]}, CommonName: p.name},
		NotBefore: from, NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key.Public(), p.authority.now())
	if err != nil {
		return nil, fmt.Errorf("sign this hub's certificate for its peers: %w", err)
	}
	p.current, p.turn = pairOf(leaf, chain, key), turn
	return p.current, nil
}

// Peers is the TLS side of the peer listener: only a hub of this fleet passes the handshake.
func (a *Authority) Peers(server *Server) *tls.Config {
	c := a.tls(server, tls.RequireAnyClientCert)
	c.MinVersion, c.NextProtos = tls.VersionTLS13, []string{"http/1.1"} // streams are upgraded, which HTTP/2 cannot
	c.VerifyConnection = func(s tls.ConnectionState) error {
		h, err := a.Verify(s.PeerCertificates)
		if err == nil && h.Role != Peer {
			err = fmt.Errorf("%w: this listener is for hubs of the fleet, and %s is a %s", ErrUntrusted, h.Name, h.Role)
		}
		return err
	}
	return c
}
