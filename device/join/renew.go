package join

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"time"

	"flotilla.dev/shared/wire"
)

// Renew asks the hub for a new certificate for the same key. It works with a
// certificate that has ended, for 90 days. Of o it uses Dial, LastKnown and
// StateDir: the renewed identity is kept there before it is returned.
func Renew(ctx context.Context, id Identity, o Options) (Identity, error) {
	base, err := url.Parse(id.HubURL)
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w", id.Node, err)
	}
	t, err := id.TLS(o.LastKnown)
	if err != nil {
		return Identity{}, err
	}
	t.ServerName = base.Hostname()
	csr, err := request([]byte(id.Key))
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w; join again", id.Node, err)
	}
	c := client(o, t)
	defer c.CloseIdleConnections()
	answer, err := ask(ctx, c, base.JoinPath(wire.PathRenew), wire.RenewRequest{CSR: string(csr)})
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w", id.Node, explain(err, base, time.Time{}))
	}
	fresh, err := identity(answer, base, []byte(id.Key), []byte(id.CA))
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w", id.Node, err)
	}
	if fresh.Node != id.Node {
		return Identity{}, fmt.Errorf("renew certificate of node %s: the hub answered with one for %s; see its log", id.Node, fresh.Node)
	}
	fresh.MachineID = id.MachineID
	if o.StateDir != "" {
		if err := Save(o.StateDir, fresh); err != nil {
			return Identity{}, err
		}
	}
	return fresh, nil
}

const retryRenewal = time.Hour

// Run renews the identity at half of the life of its certificate, ±10 %, so
// that a fleet that joined together does not renew together, and tells changed
// of each new one. A failure is logged and tried again in an hour: it stops
// nothing. It returns when ctx ends.
func Run(ctx context.Context, id Identity, o Options, changed func(Identity)) error {
	fraction := 0.45 + 0.1*rand.Float64()
	for {
		leaf, err := id.Leaf()
		if err != nil {
			return fmt.Errorf("read identity of node %s: %w; join again", id.Node, err)
		}
		life := leaf.NotAfter.Sub(leaf.NotBefore)
		due := leaf.NotBefore.Add(time.Duration(fraction * float64(life)))
		now := Clock(later(o.LastKnown, id.HubTime))
		for wait := due.Sub(now()); ; wait = retryRenewal {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(wait):
			}
			fresh, err := Renew(ctx, id, o)
			if err == nil {
				id = fresh
				changed(id)
				break
			}
			if ctx.Err() == nil && o.Log != nil {
				o.Log.Warn("the certificate is not renewed, the next try is in an hour", "node", id.Node, "until", leaf.NotAfter, "err", err)
			}
		}
	}
}
