package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// A NewJoinToken says whom a join token lets in.
type NewJoinToken struct {
	Site   string            // the site of whoever joins with it
	Node   string            // the one node that it is for; "": any name
	Labels map[string]string // of whoever joins with it
	Uses   int               // how many devices
	Life   time.Duration
	By     string // who asks for it
	// Approval: whoever joins with it waits until an administrator approves.
	Approval bool
}

const (
	maxTokenUses = 10_000
	maxTokenLife = 366 * 24 * time.Hour
)

// CreateJoinToken makes a join token. Its secret is shown this once: only the hash is kept.
func (g *Guard) CreateJoinToken(ctx context.Context, n NewJoinToken) (wire.JoinToken, error) {
	if err := n.check(); err != nil {
		return wire.JoinToken{}, fmt.Errorf("create join token: %w", err)
	}
	now := g.Now()
	t := wire.JoinToken{Pin: g.Authority.Pin(), ID: newID(), Secret: newSecret()}
	err := g.Store.AddJoinToken(ctx, store.JoinToken{
		ID: t.ID, Hash: hash(t.Secret), Site: n.Site, Node: n.Node, Labels: n.Labels, Uses: n.Uses,
		Created: now, CreatedBy: n.By, Expires: now.Add(n.Life), Approval: n.Approval,
	})
	if err != nil {
		return wire.JoinToken{}, fmt.Errorf("create join token: %w", err)
	}
	return t, nil
}

// check names every mistake at once.
func (n *NewJoinToken) check() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	if msgs := validation.IsDNS1123Label(n.Site); len(msgs) > 0 {
		if len(n.Site) > validation.DNS1123LabelMaxLength {
			wrong("site has %d characters: use at most %d", len(n.Site), validation.DNS1123LabelMaxLength)
		} else {
			wrong("site %q: use lower-case letters, digits and '-', such as oslo", n.Site)
		}
	}
	if n.Node != "" {
		if err := wire.ValidNode(n.Node); err != nil {
			wrong("%w", err)
		}
	}
	switch {
	case n.Uses < 1 || n.Uses > maxTokenUses:
		wrong("uses %d; use 1 to %d", n.Uses, maxTokenUses)
	case n.Node != "" && n.Uses != 1:
		wrong("uses %d, but a token for node %s is for one device; use 1", n.Uses, n.Node)
	}
	if n.Life < time.Minute || n.Life > maxTokenLife {
		wrong("ttl %s; use a minute up to a year, such as 1h or 720h", n.Life)
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		if msgs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(n.Labels[key])...); len(msgs) > 0 {
			wrong("label %.63q=%.63q: %s", key, n.Labels[key], msgs[0])
		}
	}
	return errors.Join(errs...)
}

// JoinTokens lists every join token, ended ones for a month; secrets are not known.
func (g *Guard) JoinTokens(ctx context.Context) ([]store.JoinToken, error) {
	return g.Store.JoinTokens(ctx)
}

// RevokeJoinToken ends a join token now. Devices that joined with it stay.
func (g *Guard) RevokeJoinToken(ctx context.Context, id string) error {
	if err := g.Store.RevokeJoinToken(ctx, id, g.Now()); err != nil {
		return fmt.Errorf("revoke join token %s: %w", id, err)
	}
	return nil
}
