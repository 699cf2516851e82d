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

// maxRoots limits a hub's roots. A hub has two while it changes from one to the next.
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

// rootsOf returns the certificates of a PEM text without other content.
func rootsOf(text []byte) (pem []byte, err error) {
	roots, err := parseRoots(text)
	for _, c := range roots {
		pem = append(pem, encodeCert(c)...)
	}
	return pem, err
}

// rootOf returns the root that a token names, or nil.
func rootOf(roots []*x509.Certificate, token wire.JoinToken) *x509.Certificate {
	for _, c := range roots {
		if pin(c) == token.Pin {
			return c
		}
	}
	return nil
}

// A Live is an identity that may be renewed while it is in use.
type Live struct{ atomic.Pointer[Identity] }

// Follow makes a configuration of Identity.TLS use the present certificate and roots at each
// handshake, because both change while a link runs. checkTime returns the time of the check. The
// expected name is the ServerName of the connection state, which the link sets for IP addresses
// too.
func (l *Live) Follow(c *tls.Config, lastKnown time.Time) {
	c.Certificates, c.RootCAs = nil, nil
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		p, err := l.Load().pair()
		return &p, err
	}
	c.InsecureSkipVerify = true // VerifyConnection checks the certificate with the present roots
	c.VerifyConnection = func(s tls.ConnectionState) error {
		id := l.Load()
		roots, err := parseRoots([]byte(id.CA))
		if err != nil {
			return err
		}
		host := s.ServerName
		if host == "" { // without a name any certificate of the hub's root would pass
			return fmt.Errorf(
				"check the certificate of the hub of node %s: no address was dialled: this is an error in the program", id.Node)
		}
		pool := x509.NewCertPool()
		for _, r := range roots {
			pool.AddCert(r)
		}
		err = check(s.PeerCertificates, pool, host, later(lastKnown, id.HubTime))
		var stranger x509.UnknownAuthorityError
		if errors.As(err, &stranger) {
			return fmt.Errorf("%w: %s has a certificate of an unknown authority, and nothing was sent to it; "+
				"if the hub's root was rotated while this device was offline, join it again with "+
				"`flotilla-device join … --keep-workloads` and a token from `flotilla-hub token create --site %s --node %s` "+
				"(workloads keep running): %w", ErrWrongHub, host, id.Site, id.Node, err)
		}
		return err
	}
}
