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

// brokerLife is how long the hub's certificate at a broker is good; it is made anew at half of
// it, and when what signs changes.
const brokerLife = 30 * 24 * time.Hour

// AtBroker is how the hub connects to a broker whose certificates its authority signs, see
// IssueServer, with a certificate that is made here, and never written anywhere. The name that
// the broker must prove is the ServerName of the state, which whoever dials gives also where it
// is an IP address.
func (a *Authority) AtBroker() *tls.Config {
	var mu sync.Mutex
	var current *tls.Certificate
	// VerifyConnection does the same with the roots of this moment
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

// verifyBroker checks the certificate of a broker that was dialled under a name.
func (a *Authority) verifyBroker(s tls.ConnectionState, name string) error {
	if len(s.PeerCertificates) == 0 || name == "" {
		return errors.New("the broker shows no certificate")
	}
	o := x509.VerifyOptions{DNSName: name, Roots: a.rootPool(), Intermediates: x509.NewCertPool(), CurrentTime: a.now()}
	for _, m := range s.PeerCertificates[1:] {
		o.Intermediates.AddCert(m)
	}
	if _, err := s.PeerCertificates[0].Verify(o); err != nil {
		return fmt.Errorf("the certificate of the broker: %w; `flotilla-hub broker-config` makes one", err)
	}
	return nil
}

// IssueServer makes a key and a certificate of a broker's, for a year. By it the members of a
// cluster are each other's clients too; it names no role, so it is nobody to a hub.
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

// ErrProof: a device has not proved that a boot is its own.
var ErrProof = errors.New("no proof of the device's key")

// Proved returns the hash of the key that has signed that a boot is of a node of this hub.
func Proved(hub, node, boot string, p *wire.Proof) (keyHash string, err error) {
	if p == nil {
		return "", fmt.Errorf("%w: its agent is too old for a broker between it and the hub; update it", ErrProof)
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
		return "", fmt.Errorf("%w: the signature is not of that key over this node and boot", ErrProof)
	}
	hash := sha256.Sum256(p.Key)
	return hex.EncodeToString(hash[:]), nil
}
