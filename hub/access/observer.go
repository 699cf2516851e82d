package access

import (
	"context"
	"crypto/x509"
	"fmt"

	"flotilla.dev/hub/pki"
)

// observerKey is how an observer stands among those whose certificates were revoked. No
// user has such a name.
func observerKey(name string) string { return "mqtt-observer/" + name }

// CheckObserver says whether an observer may have this name.
func CheckObserver(name string) error { return checkUser(name) }

// MayObserve says whether the certificate that an MQTT observer has shown lets its holder
// look on now: it has not ended, and neither it nor who has signed it was revoked.
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

// RevokeObserver ends all certificates of an observer that were issued until now, and
// within seconds the connections that were made with them.
func (g *Guard) RevokeObserver(ctx context.Context, name string) error {
	if err := CheckObserver(name); err != nil {
		return err
	}
	return g.Store.RevokeClients(ctx, observerKey(name), g.Now())
}
