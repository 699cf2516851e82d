package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"flotilla.dev/shared/wire"
)

// brokerLife is the lifetime of the hub's certificate for an external broker. The hub replaces the
// certificate after half of that, and when the issuer changes.
const brokerLife = 30 * 24 * time.Hour

// AtBroker is the TLS client configuration for an external broker that has a certificate of
// IssueServer. The hub's own certificate is created here and never stored. The caller sets
// ServerName, also for an IP address.
func (a *Authority) AtBroker() *tls.Config {
	var mu sync.Mutex
	var current *tls.Certificate
	// VerifyConnection verifies with the current roots.
	c := &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: suites, Time: a.now, InsecureSkipVerify: true}
	c.VerifyConnection = func(s tls.ConnectionState) error { return a.verifyBroker(s, s.ServerName) }
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		_, by, _ := a.issuers()
		if current != nil && a.now().Before(current.Leaf.NotAfter.Add(-brokerLife/2)) &&
			current.Leaf.CheckSignatureFrom(by) == nil {
			return current, nil
		}
		chain, key, err := a.issueClient(HubOrganization, HubName, brokerLife)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(chain, key)
		if err != nil {
			return nil, err
		}
		current = &pair
		return current, nil
	}
	return c
}

// verifyBroker verifies the certificate of a broker that was dialled by name.
func (a *Authority) verifyBroker(s tls.ConnectionState, name string) error {
	if len(s.PeerCertificates) == 0 || name == "" {
		return errors.New("the broker sent no certificate")
	}
	o := x509.VerifyOptions{DNSName: name, Roots: a.rootPool(), Intermediates: x509.NewCertPool(), CurrentTime: a.now()}
	for _, m := range s.PeerCertificates[1:] {
		o.Intermediates.AddCert(m)
	}
	if _, err := s.PeerCertificates[0].Verify(o); err != nil {
		return fmt.Errorf("the certificate of the broker: %w; issue one with `flotilla-hub broker-config`", err)
	}
	return nil
}

// IssueServer issues a broker's certificate with its key, for a year. Members of a broker cluster
// also use it as clients of each other. It has no role, so the hub refuses it as a client.
func (a *Authority) IssueServer(names []string) (chainPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	leaf, by, err := a.signServer("Flotilla broker",
		[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, names, key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign the certificate of a broker: %w", err)
	}
	keyPEM, err = encodeKey(key)
	return encodeCert(leaf, by), keyPEM, err
}

// ErrProof is returned for a boot without a valid signature by the device's key.
var ErrProof = errors.New("no proof of the device's key")

// Proved verifies the signature of a device over hub, node and boot, and returns the key's hash.
func Proved(hub, node, boot string, p *wire.Proof) (keyHash string, err error) {
	if p == nil {
		return "", fmt.Errorf("%w: its agent is too old for an external broker; update it", ErrProof)
	}
	key, err := x509.ParsePKIXPublicKey(p.Key)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrProof, err)
	}
	text := wire.ProofText(hub, node, boot)
	sum, good := sha256.Sum256(text), false
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		good = ecdsa.VerifyASN1(k, sum[:], p.Signature)
	case ed25519.PublicKey:
		good = ed25519.Verify(k, text, p.Signature)
	case *rsa.PublicKey:
		good = k.N.BitLen() <= 4096 && rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], p.Signature) == nil
	}
	if !good {
		return "", fmt.Errorf("%w: the signature does not match the key, the node and the boot", ErrProof)
	}
	hash := sha256.Sum256(p.Key)
	return hex.EncodeToString(hash[:]), nil
}
