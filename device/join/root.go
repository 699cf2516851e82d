package join

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"flotilla.dev/shared/wire"
)

// maxRoots is how many roots a hub may have at once: while it changes from one to
// the next, two.
const maxRoots = 4

func parseRoots(text []byte) (roots []*x509.Certificate, err error) {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if roots = append(roots, c); len(roots) > maxRoots {
			return nil, fmt.Errorf("it has more than %d certificates", maxRoots)
		}
	}
	if len(roots) == 0 {
		return nil, errors.New("it has no certificate of the hub")
	}
	return roots, nil
}

// rootsOf is the same text with nothing but its certificates.
func rootsOf(text []byte) (pem []byte, err error) {
	roots, err := parseRoots(text)
	for _, c := range roots {
		pem = append(pem, encodeCert(c)...)
	}
	return pem, err
}

// rootOf is the root that a token names; nil: none of them.
func rootOf(roots []*x509.Certificate, token wire.JoinToken) *x509.Certificate {
	for _, c := range roots {
		if pin(c) == token.Pin {
			return c
		}
	}
	return nil
}

// A Live is an identity that is renewed while it is in use.
type Live struct{ atomic.Pointer[Identity] }

// Follow makes a configuration of Identity.TLS use what the identity is at each
// handshake, its certificate and its roots: both change while a link lives. By what time the
// hub's are judged, moment says. The name that the hub must prove is the ServerName of the state,
// which the link gives also where it is an IP address.
func (l *Live) Follow(c *tls.Config, lastKnown time.Time) {
	c.Certificates, c.RootCAs = nil, nil
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		p, err := l.Load().pair()
		return &p, err
	}
	c.InsecureSkipVerify = true // VerifyConnection does the same with the roots of this moment
	c.VerifyConnection = func(s tls.ConnectionState) error {
		id := l.Load()
		roots, err := parseRoots([]byte(id.CA))
		if err != nil {
			return err
		}
		host := s.ServerName
		if host == "" { // without a name anybody's certificate of this hub's would do
			return fmt.Errorf(
				"check the certificate of the hub of node %s: no address was dialled: this is a mistake in the program", id.Node)
		}
		pool := x509.NewCertPool()
		for _, r := range roots {
			pool.AddCert(r)
		}
		err = check(s.PeerCertificates, pool, host, later(lastKnown, id.HubTime))
		var stranger x509.UnknownAuthorityError
		if errors.As(err, &stranger) {
			return fmt.Errorf("%w: %s shows a certificate of an authority that this device does not know, and was told "+
				"nothing; if the hub's root was rotated while this device was away, join it again with "+
				"`flotilla-device join … --keep-workloads` and a token from `flotilla-hub token create --site %s --node %s` "+
				"(what runs here goes on): %w", ErrWrongHub, host, id.Site, id.Node, err)
		}
		return err
	}
}
