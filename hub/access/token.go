package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// A NewJoinToken is a request for a join token.
type NewJoinToken struct {
	Site   string            // of the devices that join with it
	Node   string            // the only node that may join; "": any name
	Names  store.DeviceNames // of the devices
	Labels map[string]string // of the nodes that join with it
	Uses   int               // number of devices
	Life   time.Duration
	By     string // user that requests it
	// Approval makes devices that join with the token wait for an administrator.
	Approval bool
}

const (
	maxTokenUses = 10_000
	maxTokenLife = 366 * 24 * time.Hour
)

// CreateJoinToken creates a join token. Its secret is shown only once, because the hub stores only
// the hash.
func (g *Guard) CreateJoinToken(ctx context.Context, n NewJoinToken) (wire.JoinToken, error) {
	if err := n.check(); err != nil {
		return wire.JoinToken{}, fmt.Errorf("create join token: %w", err)
	}
	now := g.Now()
	t := wire.JoinToken{Pin: g.Authority.Pin(), ID: newID(), Secret: newSecret()}
	err := g.Store.AddJoinToken(ctx, store.JoinToken{
		ID: t.ID, Hash: hash(t.Secret), Site: n.Site, Node: n.Node, Names: n.Names, Labels: n.Labels, Uses: n.Uses,
		Created: now, CreatedBy: n.By, Expires: now.Add(n.Life), Approval: n.Approval,
	})
	if err != nil {
		return wire.JoinToken{}, fmt.Errorf("create join token: %w", err)
	}
	return t, nil
}

// check returns all errors together.
func (n *NewJoinToken) check() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...))
	}
	if msgs := validation.IsDNS1123Label(n.Site); len(msgs) > 0 {
		if len(n.Site) > validation.DNS1123LabelMaxLength {
			wrong("site has %d characters; use at most %d", len(n.Site), validation.DNS1123LabelMaxLength)
		} else {
			wrong("site %q is not valid; use lower-case letters, digits and '-', such as oslo", n.Site)
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
		wrong("uses %d: a token for node %s is for one device; use 1", n.Uses, n.Node)
	case n.Node != "" && (len(n.Names.BySerial) > 0 || n.Names.Prefix != ""):
		wrong("a token for node %s needs no list or prefix of names", n.Node)
	}
	if l := len(n.Names.BySerial); l > maxTokenUses {
		wrong("%d names; give at most %d", l, maxTokenUses)
	}
	if p := n.Names.Prefix; p != "" {
		if err := wire.ValidNode(p + strings.Repeat("0", serialEnd)); err != nil {
			wrong("name prefix: %w", err)
		}
	}
	if n.Life < time.Minute || n.Life > maxTokenLife {
		wrong("ttl %s; use one minute to one year, such as 1h or 720h", n.Life)
	}
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		if msgs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(n.Labels[key])...); len(msgs) > 0 {
			wrong("label %.63q=%.63q: %s", key, n.Labels[key], msgs[0])
		}
	}
	return errors.Join(errs...)
}

// JoinTokens lists every join token, without secrets. Expired tokens are listed for a month.
func (g *Guard) JoinTokens(ctx context.Context) ([]store.JoinToken, error) {
	return g.Store.JoinTokens(ctx)
}

// RevokeJoinToken revokes a join token. Devices that joined with it stay joined.
func (g *Guard) RevokeJoinToken(ctx context.Context, id string) error {
	if err := g.Store.RevokeJoinToken(ctx, id, g.Now()); err != nil {
		return fmt.Errorf("revoke join token %s: %w", id, err)
	}
	return nil
}
