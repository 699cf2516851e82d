package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Errors of verification.
var (
	ErrNoCertificate = errors.New("no client certificate")
	ErrUntrusted     = errors.New("client certificate refused")
)

// A Holder is the owner of a verified certificate.
type Holder struct {
	Role Role
	Name string // node or user
	Leaf *x509.Certificate
	by   *x509.Certificate // the certificate's issuer
}

// Verify returns the holder of a client certificate chain. The certificate must be issued by this
// authority, valid now, for clients, and have exactly one role. The caller checks for revocation.
func (a *Authority) Verify(shown []*x509.Certificate) (Holder, error) {
	return a.verify(shown, a.now())
}

// VerifyForRenewal is Verify for a renewal. It accepts a device's certificate up to 90 days after
// its expiry.
func (a *Authority) VerifyForRenewal(shown []*x509.Certificate) (Holder, error) {
	now := a.now()
	if len(shown) > 0 {
		if end := shown[0].NotAfter; now.After(end) && now.Before(end.Add(RenewalGrace)) {
			now = end
		}
	}
	h, err := a.verify(shown, now)
	if err == nil && h.Role != Device {
		return Holder{}, fmt.Errorf("%w: its holder is a user, not a device", ErrUntrusted)
	}
	return h, err
}

func (a *Authority) verify(shown []*x509.Certificate, now time.Time) (Holder, error) {
	if len(shown) == 0 {
		return Holder{}, ErrNoCertificate
	}
	roots, between := a.rootPool(), x509.NewCertPool()
	a.mu.Lock()
	between.AddCert(a.intermediate.cert)
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

// holder returns the holder of the leaf of verified chains.
func (a *Authority) holder(chains [][]*x509.Certificate) (Holder, error) {
	if len(chains) == 0 || len(chains[0]) < 2 {
		return Holder{}, ErrNoCertificate
	}
	if !a.good(chains) {
		return Holder{}, fmt.Errorf("%w: its issuer was revoked; join the device "+
			"again, or create a new kubeconfig", ErrUntrusted)
	}
	leaf := chains[0][0]
	if len(leaf.Subject.Organization) == 1 && leaf.Subject.CommonName != "" {
		for role, org := range organizations {
			if leaf.Subject.Organization[0] == org {
				return Holder{role, nameOf(role, leaf.Subject.CommonName), leaf, chains[0][1]}, nil
			}
		}
	}
	return Holder{}, fmt.Errorf("%w: its subject %q has no role", ErrUntrusted, leaf.Subject)
}

// HTTPS is the TLS configuration of the HTTPS listener. It requests a client certificate, but does
// not verify it in the handshake: an expired certificate may still be renewed, and each request is
// authorized separately.
func (a *Authority) HTTPS(server *Server) *tls.Config {
	return a.tls(server, tls.RequestClientCert)
}

// MQTT is the TLS configuration of the MQTT listener. Only a device or an observer that may accepts
// completes the handshake; may refuses revoked certificates. Only crypto/tls verifies the chain: a
// second signature check would add a tenth to each of ten thousand handshakes. Sessions are not
// resumed, because a ticket would skip these checks.
func (a *Authority) MQTT(server *Server, may func(Holder) error) *tls.Config {
	c := a.tls(server, tls.RequireAndVerifyClientCert)
	c.VerifyConnection = func(s tls.ConnectionState) error {
		h, err := a.holder(s.VerifiedChains)
		if err != nil {
			return err
		}
		if h.Role != Device && h.Role != Observer {
			return fmt.Errorf("%w: MQTT is for devices, and %s is a user", ErrUntrusted, h.Name)
		}
		return may(h)
	}
	c.NextProtos, c.SessionTicketsDisabled = nil, true
	return c
}

// suites are the TLS 1.2 suites with authenticated encryption. CBC suites were broken repeatedly.
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
		ClientCAs:      a.rootPool(), // so that browsers offer only certificates of this authority
		NextProtos:     []string{"h2", "http/1.1"},
		Time:           a.now,
	}
	// Connections share one configuration to save memory.
	var present atomic.Pointer[rooted]
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { // roots change while the hub runs
		_, _, generation := a.issuers()
		if now := present.Load(); now != nil && now.generation == generation {
			return now.config, nil
		}
		now := &rooted{c.Clone(), generation}
		now.config.GetConfigForClient, now.config.ClientCAs = nil, a.rootPool()
		present.Store(now)
		return now.config, nil
	}
	return c
}

// A rooted is a configuration with the roots of one generation of the authority.
type rooted struct {
	config     *tls.Config
	generation int
}
