package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Sentinels of verification.
var (
	ErrNoCertificate = errors.New("no client certificate")
	ErrUntrusted     = errors.New("client certificate refused")
)

// A Holder is who a verified certificate speaks for.
type Holder struct {
	Role Role
	Name string // node or person
	Leaf *x509.Certificate
	by   *x509.Certificate // who has signed it
}

// Verify tells whose certificate the other side of a TLS connection has shown:
// signed by this authority, of this moment, for clients, with exactly one role.
// Whether it was revoked is the caller's question.
func (a *Authority) Verify(shown []*x509.Certificate) (Holder, error) {
	return a.verify(shown, a.now())
}

// VerifyForRenewal is Verify for the one thing that a device may still do with
// a certificate which ended up to 90 days ago.
func (a *Authority) VerifyForRenewal(shown []*x509.Certificate) (Holder, error) {
	now := a.now()
	if len(shown) > 0 {
		if end := shown[0].NotAfter; now.After(end) && now.Before(end.Add(RenewalGrace)) {
			now = end
		}
	}
	h, err := a.verify(shown, now)
	if err == nil && h.Role != Device {
		return Holder{}, fmt.Errorf("%w: it is a person's", ErrUntrusted)
	}
	return h, err
}

func (a *Authority) verify(shown []*x509.Certificate, now time.Time) (Holder, error) {
	if len(shown) == 0 {
		return Holder{}, ErrNoCertificate
	}
	roots, between := a.rootPool(), x509.NewCertPool()
	a.mu.Lock()
	between.AddCert(a.middle.cert)
	a.mu.Unlock()
	for _, c := range shown[1:min(len(shown), 4)] {
		between.AddCert(c)
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return Holder{}, fmt.Errorf("%w: %w", ErrUntrusted, err)
	}
	return a.holder(chains)
}

// holder tells whose certificate it is that chains of trust begin with.
func (a *Authority) holder(chains [][]*x509.Certificate) (Holder, error) {
	if len(chains) == 0 || len(chains[0]) < 2 {
		return Holder{}, ErrNoCertificate
	}
	if !a.good(chains) {
		return Holder{}, fmt.Errorf("%w: it was signed by an authority of this hub that was revoked; a device joins "+
			"again, a person gets a new kubeconfig", ErrUntrusted)
	}
	leaf := chains[0][0]
	if len(leaf.Subject.Organization) == 1 && leaf.Subject.CommonName != "" {
		for role, org := range organizations {
			if leaf.Subject.Organization[0] == org {
				return Holder{role, nameOf(role, leaf.Subject.CommonName), leaf, chains[0][1]}, nil
			}
		}
	}
	return Holder{}, fmt.Errorf("%w: its subject %q names no role", ErrUntrusted, leaf.Subject)
}

// HTTPS is the TLS side of the HTTPS listener. It asks for a client certificate
// and takes any, or none: an ended one may still renew, and who may do what is
// decided for every request.
func (a *Authority) HTTPS(server *Server) *tls.Config {
	return a.tls(server, tls.RequestClientCert)
}

// MQTT is the TLS side of the MQTT listener: only a device or an observer whose
// certificate may passes the handshake. may is asked for each connection and refuses
// revoked ones. The library verifies the chain, and it alone: a signature that is checked
// once more is a tenth of a handshake, of which a fleet that returns makes ten thousand.
// No session is resumed: a ticket would hold what was verified then.
func (a *Authority) MQTT(server *Server, may func(Holder) error) *tls.Config {
	c := a.tls(server, tls.RequireAndVerifyClientCert)
	c.VerifyConnection = func(s tls.ConnectionState) error {
		h, err := a.holder(s.VerifiedChains)
		if err != nil {
			return err
		}
		if h.Role != Device && h.Role != Observer {
			return fmt.Errorf("%w: MQTT is for devices, and %s is a person", ErrUntrusted, h.Name)
		}
		return may(h)
	}
	c.NextProtos, c.SessionTicketsDisabled = nil, true
	return c
}

// suites are those of TLS 1.2 that authenticate what they encrypt; those with CBC were broken again
// and again.
var suites = []uint16{
	tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
	tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

func (a *Authority) tls(server *Server, auth tls.ClientAuthType) *tls.Config {
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		CipherSuites:   suites,
		GetCertificate: server.GetCertificate,
		ClientAuth:     auth,
		ClientCAs:      a.rootPool(), // so that browsers ask nobody for certificates of others
		NextProtos:     []string{"h2", "http/1.1"},
		Time:           a.now,
	}
	// each connection holds its own as long as it lives, so they share it
	var present atomic.Pointer[rooted]
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { // roots change while the hub runs
		_, _, turn := a.issuers()
		if now := present.Load(); now != nil && now.turn == turn {
			return now.config, nil
		}
		now := &rooted{c.Clone(), turn}
		now.config.GetConfigForClient, now.config.ClientCAs = nil, a.rootPool()
		present.Store(now)
		return now.config, nil
	}
	return c
}

// A rooted is a configuration with the roots that were there at a turn of the authority.
type rooted struct {
	config *tls.Config
	turn   int
}
