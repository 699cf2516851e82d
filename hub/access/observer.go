package access

import (
	"context"
	"crypto/x509"
	"fmt"

	"flotilla.dev/hub/pki"
)

// observerKey is an observer's name in the list of revoked certificates. It is not a valid user
// name.
func observerKey(name string) string { return "mqtt-observer/" + name }

// CheckObserver checks the name of an observer.
func CheckObserver(name string) error { return checkUser(name) }

// MayObserve reports whether an MQTT observer may connect: its certificate is valid, and neither
// the certificate nor its issuer was revoked.
func (g *Guard) MayObserve(ctx context.Context, shown []*x509.Certificate) error {
	h, err := g.Authority.Verify(shown)
	if err == nil && h.Role != pki.Observer {
		err = fmt.Errorf("its role is %s, not %s", h.Role, pki.Observer)
	}
	if err != nil {
		return fmt.Errorf("%w: the certificate of an MQTT observer: %w; issue a new one with `flotilla-hub mqtt-observer`",
			ErrForbidden, err)
	}
	before, err := g.Store.ClientsRevokedBefore(ctx, observerKey(h.Name))
	if err != nil {
		return err
	}
	if !before.IsZero() && !pki.IssuedAt(h.Leaf).After(before) {
		return fmt.Errorf(
			"%w: the certificates of MQTT observer %s were revoked; issue a new one with `flotilla-hub mqtt-observer`",
			ErrForbidden, h.Name)
	}
	return nil
}

// RevokeObserver revokes all certificates of an observer that have been issued. The observer's
// connections close within seconds.
func (g *Guard) RevokeObserver(ctx context.Context, name string) error {
	if err := CheckObserver(name); err != nil {
		return err
	}
	return g.Store.RevokeClients(ctx, observerKey(name), g.Now())
}
