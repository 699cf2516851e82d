package join

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"flotilla.dev/shared/wire"
)

// Renew asks the hub for a new certificate for the same key: the one that has answered last,
// and where that does not, each other hub of its database in turn. It works with a
// certificate that has ended, for 90 days. Of o it uses Dial, LastKnown and
// StateDir: the renewed identity is kept there before it is returned. One that cannot be kept
// comes with the error: it is good as long as the program runs.
func Renew(ctx context.Context, id Identity, o Options) (Identity, error) {
	base, err := url.Parse(id.HubURL)
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w", id.Node, err)
	}
	all := []*url.URL{base}
	for _, h := range id.Hubs {
		if h != base.Host {
			all = append(all, &url.URL{Scheme: "https", Host: h})
		}
	}
	for _, at := range all {
		fresh, rerr := renewAt(ctx, id, at, o)
		if rerr == nil {
			if o.StateDir != "" {
				rerr = Save(o.StateDir, fresh)
			}
			return fresh, rerr
		}
		if err == nil || errors.As(rerr, new(*Dismissal)) || comeAgain(rerr) > 0 {
			err = rerr // of those that failed alike the first one is his own
		}
		if ctx.Err() != nil || !elsewhere(rerr) {
			break
		}
	}
	return Identity{}, err
}

// elsewhere tells whether another hub may have another answer: this one was not reached, or
// cannot reach the one that leads. A no is the fleet's.
func elsewhere(err error) bool {
	var no *refusal
	return !errors.As(err, new(*Dismissal)) && !errors.Is(err, ErrRefused) &&
		(!errors.As(err, &no) || no.code != http.StatusTooManyRequests)
}

// renewAt is Renew at one hub; nothing is kept.
func renewAt(ctx context.Context, id Identity, base *url.URL, o Options) (Identity, error) {
	t, err := id.TLS(o.LastKnown)
	if err != nil {
		return Identity{}, err
	}
	csr, err := request([]byte(id.Key))
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w; join again", id.Node, err)
	}
	c := client(o, t, later(o.LastKnown, id.HubTime))
	defer c.CloseIdleConnections()
	answer, err := ask(ctx, c, base.JoinPath(wire.PathRenew), wire.RenewRequest{CSR: string(csr)})
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w", id.Node, explain(err, base, time.Time{}))
	}
	// The hub's roots may have changed: this answer came over a link that those before vouch for.
	roots, err := rootsOf([]byte(answer.CA))
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: the hub's answer has no usable root: %w", id.Node, err)
	}
	fresh, err := identity(answer, base, []byte(id.Key), roots)
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w", id.Node, err)
	}
	if fresh.Node != id.Node {
		return Identity{}, fmt.Errorf("renew certificate of node %s: the hub answered with one for %s; see its log", id.Node,
			fresh.Node)
	}
	fresh.MachineID = id.MachineID
	return fresh, nil
}

// How long after a failure it is tried again: a device whose certificate has ended is
// cut off until it has another.
const (
	retryRenewal = time.Hour
	retryEnded   = 30 * time.Second
	lookAgain    = time.Minute // at the clock, which may be set at any time, by months
)

// clockUnknown tells whether a certificate has ended by a clock that nobody keeps: then it may be
// any time, and the certificate have ended or not.
func clockUnknown(now time.Time, leaf *x509.Certificate) bool {
	return now.After(leaf.NotAfter) && !kept()
}

// due is in how long a certificate is renewed: one that was renewed just now after a part of its
// life has passed, whatever the clock says; another one when that has passed by the clock, or at
// once where that is adrift.
func due(leaf *x509.Certificate, now time.Time, fraction float64, renewed bool) time.Duration {
	part := time.Duration(fraction * float64(leaf.NotAfter.Sub(leaf.NotBefore)))
	switch {
	case renewed:
		return part
	case !clockUnknown(now, leaf):
		return leaf.NotBefore.Add(part).Sub(now)
	}
	return rand.N(retryEnded)
}

// pauseAfter is in how long a renewal that has failed is tried again.
func pauseAfter(leaf *x509.Certificate, now time.Time, failures int) time.Duration {
	switch {
	case !now.After(leaf.NotAfter):
		return min(retryRenewal, max(leaf.NotAfter.Sub(now), retryEnded))
	case clockUnknown(now, leaf):
		return min(retryEnded<<min(failures, 10), retryRenewal)
	}
	return retryEnded
}

// Run renews the identity at half of the life of its certificate, ±10 %, so that a fleet that
// joined together does not renew together, and whenever somebody asks for it, and tells changed of
// each new one. It looks at the clock each minute: a board that was off for months begins with an
// old day, and has the right one later. A failure is logged and tried again in an hour or when the
// certificate ends, every half minute once it has, or when the hub says: it stops nothing. By a
// clock that is adrift it is renewed at the start, which is tried again ever later. One that cannot
// be kept is used, and another one asked for in an hour. It returns when ctx ends, or when the hub
// says that the device's enrolment has ended.
func Run(ctx context.Context, id Identity, o Options, changed func(Identity)) error {
	fraction := 0.45 + 0.1*rand.Float64()
	renewed, kept := false, true
	for {
		leaf, err := id.Leaf()
		if err != nil {
			return fmt.Errorf("read identity of node %s: %w; join again", id.Node, err)
		}
		now := Clock(later(o.LastKnown, id.HubTime))
		wait := due(leaf, now(), fraction, renewed)
		if !kept {
			wait = min(wait, retryRenewal)
		}
		first := wait
		if !renewed {
			first = min(wait, lookAgain)
		}
		next := time.NewTimer(first)
		for failures := 0; ; {
			asked := false
			select {
			case <-ctx.Done():
				return nil
			case <-next.C:
				if failures == 0 && !renewed && wait > lookAgain {
					if wait = due(leaf, now(), fraction, false); wait > 0 {
						next.Reset(min(wait, lookAgain))
						continue
					}
				}
			case <-o.Asked:
				asked = true
			}
			fresh, err := Renew(ctx, id, o)
			if fresh.Node != "" {
				id, renewed, kept = fresh, true, err == nil
				changed(id)
				if err != nil && o.Log != nil {
					o.Log.Warn("the renewed certificate is used, but not kept", "node", id.Node, "again", retryRenewal, "err", err)
				}
				break
			}
			if d := (*Dismissal)(nil); errors.As(err, &d) && o.Dismissed != nil {
				o.Dismissed(d.Dismissed)
				return nil
			}
			args := []any{"node", id.Node, "until", leaf.NotAfter, "err", err}
			if !asked { // one that was asked for is made again when it is asked for again
				wait = cmp.Or(comeAgain(err), pauseAfter(leaf, now(), failures))
				wait += time.Duration(rand.Int64N(int64(wait/10) + 1))
				next.Reset(wait)
				failures++
				args = append(args, "again", wait.Round(time.Second))
			}
			if ctx.Err() == nil && o.Log != nil {
				o.Log.Warn("the certificate is not renewed", args...)
			}
		}
	}
}
