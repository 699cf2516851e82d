package pki

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// A Role is the role of a certificate's holder.
type Role string

// The roles in certificates.
const (
	Device   Role = "device"
	Admin    Role = "admin"
	Operator Role = "operator"
	Viewer   Role = "viewer"
	Observer Role = "observer" // a read-only MQTT tool, at the broker only
	Hub      Role = "hub"      // the hub, at an external broker only
)

// The subject of the hub's certificate for an external broker. Devices and users cannot have these
// names.
const (
	HubOrganization = "flotilla:hubs"
	HubName         = "flotilla:hub"
)

// organizations are the roles' names in a certificate's subject.
var organizations = map[Role]string{
	Device:   "flotilla:devices",
	Admin:    "flotilla:admins",
	Operator: "flotilla:operators",
	Viewer:   "flotilla:viewers",
	Observer: "flotilla:observers",
	Hub:      HubOrganization,
	Peer:     "flotilla:peers",
}

// Prefixes of common names that are not node names. An external broker sees only the common name. A
// node's name has no colon, so a name with a prefix never equals a node's.
const (
	UserPrefix     = "user:"
	ObserverPrefix = "observer:"
)

// commonName is the common name of a user or an observer.
func commonName(role Role, name string) string {
	if role == Observer {
		return ObserverPrefix + name
	}
	return UserPrefix + name
}

// nameOf is the inverse of commonName. Certificates of older hubs have no prefix.
func nameOf(role Role, common string) string {
	switch role {
	case Admin, Operator, Viewer:
		return strings.TrimPrefix(common, UserPrefix)
	case Observer:
		return strings.TrimPrefix(common, ObserverPrefix)
	}
	return common
}

// ErrRequest is returned for an invalid certificate request, which the sender has to change.
var ErrRequest = errors.New("bad certificate request")

// A Request is a verified certificate request, so its sender has the private key.
type Request struct {
	key any
	spk []byte
}

// KeyHash is the SHA-256 of the request's public key (SPKI), in hex.
func (r Request) KeyHash() string {
	sum := sha256.Sum256(r.spk)
	return hex.EncodeToString(sum[:])
}

// ParseRequest parses a PEM certificate request and verifies its signature. It ignores the names in
// the request, because the hub assigns them.
func ParseRequest(text []byte) (Request, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return Request{}, fmt.Errorf("%w: it is not a PEM certificate request", ErrRequest)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return Request{}, fmt.Errorf("%w: %w", ErrRequest, err)
	}
	switch k := csr.PublicKey.(type) {
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() && k.Curve != elliptic.P384() {
			return Request{}, fmt.Errorf("%w: its curve is %s; use P-256", ErrRequest, k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	case *rsa.PublicKey:
		if n := k.N.BitLen(); n < 2048 || n > 4096 {
			return Request{}, fmt.Errorf("%w: its RSA key has %d bits; use ECDSA P-256", ErrRequest, n)
		}
	default:
		return Request{}, fmt.Errorf("%w: a key of type %T; use ECDSA P-256", ErrRequest, k)
	}
	if err := csr.CheckSignature(); err != nil {
		return Request{}, fmt.Errorf("%w: its key did not sign it: %w", ErrRequest, err)
	}
	return Request{csr.PublicKey, csr.RawSubjectPublicKeyInfo}, nil
}

// A Certificate is an issued certificate.
type Certificate struct {
	ChainPEM []byte // leaf, intermediate
	NotAfter time.Time
}

// SignDevice issues the certificate of a node's device for a year, with CN = node.
func (a *Authority) SignDevice(r Request, node string) (Certificate, error) {
	if errs := validation.IsDNS1123Subdomain(node); len(errs) > 0 {
		return Certificate{}, fmt.Errorf("sign certificate of node %q: %s", node, errs[0])
	}
	now := a.now()
	from, until := a.span(LeafLife)
	leaf, by, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{Organization: []string{organizations[Device]}, CommonName: node},
		URIs:        []*url.URL{{Scheme: "fleet", Host: "node", Path: "/" + node}},
		NotBefore:   from,
		NotAfter:    until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, r.key, now)
	if err != nil {
		return Certificate{}, fmt.Errorf("sign certificate of node %s: %w", node, err)
	}
	return Certificate{encodeCert(leaf, by), leaf.NotAfter}, nil
}

// IssueClient issues a certificate with its key for a user or an MQTT tool.
func (a *Authority) IssueClient(role Role, user string, life time.Duration) (chainPEM, keyPEM []byte, err error) {
	org, ok := organizations[role]
	switch {
	case !ok || role == Device || role == Hub || role == Peer:
		return nil, nil, fmt.Errorf("issue certificate of %q: %q is not a role of a person; use admin, operator or viewer",
			user, role)
	case user == "":
		return nil, nil, errors.New("issue certificate: the user name is empty")
	case life <= 0 || life > LeafLife:
		return nil, nil, fmt.Errorf("issue certificate of %s: lifetime %s is not between 0 and %s", user, life, LeafLife)
	}
	return a.issueClient(org, commonName(role, user), life)
}

func (a *Authority) issueClient(org, user string, life time.Duration) (chainPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	now := a.now()
	from, until := a.span(life)
	leaf, by, err := a.sign(&x509.Certificate{
		Subject:     pkix.Name{Organization: []string{org}, CommonName: user},
		NotBefore:   from,
		NotAfter:    until,
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, key.Public(), now)
	if err != nil {
		return nil, nil, fmt.Errorf("issue certificate of %s: %w", user, err)
	}
	keyPEM, err = encodeKey(key)
	return encodeCert(leaf, by), keyPEM, err
}

// sign completes and signs a leaf certificate. A leaf never outlives its issuer.
func (a *Authority) sign(t *x509.Certificate, public any, now time.Time) (leaf, by *x509.Certificate, err error) {
	signer, err := a.signer(now)
	if err != nil {
		return nil, nil, err
	}
	if t.NotAfter.After(signer.cert.NotAfter) {
		t.NotAfter = signer.cert.NotAfter
	}
	t.SerialNumber = serial(now)
	t.BasicConstraintsValid = true
	der, err := x509.CreateCertificate(rand.Reader, t, signer.cert, public, signer.key)
	if err != nil {
		return nil, nil, err
	}
	leaf, err = x509.ParseCertificate(der)
	return leaf, signer.cert, err
}
