package pki

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"sync"
	"time"
)

// Peer is the role of another hub of the database. It is valid only at the peer listener. There the
// hub trusts the user that the other hub names.
const Peer Role = "peer"

// A PeerClient is a hub's identity at another hub. Each process creates its key, never stores it,
// and replaces it in time.
type PeerClient struct {
	authority *Authority
	name      string

	mu         sync.Mutex
	current    *tls.Certificate
	generation int
}

// NewPeerClient returns a client with the hub's name.
func (a *Authority) NewPeerClient(name string) *PeerClient {
	return &PeerClient{authority: a, name: name}
}

// Config is the TLS configuration of one connection. Each connection needs its own, because roots
// change while the hub runs.
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
	chain, _, generation := p.authority.issuers()
	now := time.Now()
	if p.current != nil && p.generation == generation && now.Before(p.current.Leaf.NotAfter.Add(-serverRenew)) {
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
	p.current, p.generation = pairOf(leaf, chain, key), generation
	return p.current, nil
}

// Peers is the TLS configuration of the peer listener. Only a hub of this fleet completes the
// handshake.
func (a *Authority) Peers(server *Server) *tls.Config {
	c := a.tls(server, tls.RequireAnyClientCert)
	c.MinVersion, c.NextProtos = tls.VersionTLS13, []string{"http/1.1"} // HTTP/2 cannot upgrade to a stream
	c.VerifyConnection = func(s tls.ConnectionState) error {
		h, err := a.Verify(s.PeerCertificates)
		if err == nil && h.Role != Peer {
			err = fmt.Errorf("%w: this listener is for hubs of the database, and %s is a %s", ErrUntrusted, h.Name, h.Role)
		}
		return err
	}
	return c
}
