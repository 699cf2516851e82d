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

// Renew requests a new certificate for the same key: first from the hub that answered last, then
// from the other hubs of its database. An expired certificate works for 90 days. It uses only Dial,
// LastKnown and StateDir of o, and stores the new identity in StateDir. If that fails, it returns
// the identity with the error; the identity is valid while the program runs.
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
		if err == nil || errors.As(rerr, new(*Dismissal)) || retryAfter(rerr) > 0 {
			err = rerr // if all hubs fail in the same way, return the first error
		}
		if ctx.Err() != nil || !elsewhere(rerr) {
			break
		}
	}
	return Identity{}, err
}

// elsewhere reports whether another hub may answer differently, because this one was not reached or
// cannot reach the leader. A refusal is final.
func elsewhere(err error) bool {
	var no *refusal
	return !errors.As(err, new(*Dismissal)) && !errors.Is(err, ErrRefused) &&
		(!errors.As(err, &no) || no.code != http.StatusTooManyRequests)
}

// renewAt renews at one hub, and stores nothing.
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
	// The hub's roots may have changed. The earlier roots secured this response.
	roots, err := rootsOf([]byte(answer.CA))
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: the hub's answer has no usable root: %w", id.Node, err)
	}
	fresh, err := identity(answer, base, []byte(id.Key), roots)
	if err != nil {
		return Identity{}, fmt.Errorf("renew certificate of node %s: %w", id.Node, err)
	}
	if fresh.Node != id.Node {
		return Identity{}, fmt.Errorf("renew certificate of node %s: the hub's answer is for node %s; see the hub's log",
			id.Node, fresh.Node)
	}
	fresh.MachineID = id.MachineID
	return fresh, nil
}

// Pauses after a failure. A device with an expired certificate is offline until it has a new one.
const (
	retryRenewal = time.Hour
	retryEnded   = 30 * time.Second
	lookAgain    = time.Minute // interval of checks, because the clock may be set by months at any time
)

// clockUnknown reports whether a certificate has expired by a clock that no time service adjusts.
// The certificate may still be valid.
func clockUnknown(now time.Time, leaf *x509.Certificate) bool {
	return now.After(leaf.NotAfter) && !clockAdjusted()
}

// due returns the time until a certificate's renewal, after the given fraction of its life. Right
// after a renewal the life counts from now. Otherwise it counts by the clock; if the clock is
// unknown, the renewal is due at once.
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

// pauseAfter returns the pause after a number of failed renewals.
func pauseAfter(leaf *x509.Certificate, now time.Time, failures int) time.Duration {
	switch {
	case !now.After(leaf.NotAfter):
		return min(retryRenewal, max(leaf.NotAfter.Sub(now), retryEnded))
	case clockUnknown(now, leaf):
		return min(retryEnded<<min(failures, 10), retryRenewal)
	}
	return retryEnded
}

// Run renews the identity at half of its certificate's life, and on request, and calls changed for
// each new identity. The time varies by ±10 % so that a fleet does not renew at the same time. Run
// checks the clock each minute, because a board that was off for months starts with an old date.
//
// A failed renewal is repeated after an hour, at the expiry, every half minute after the expiry, or
// when the hub says. With an unknown clock, Run renews at the start, with growing pauses after
// failures. An identity that cannot be stored is used, and renewed again after an hour. Run returns
// when ctx or the enrolment ends.
func Run(ctx context.Context, id Identity, o Options, changed func(Identity)) error {
	fraction := 0.45 + 0.1*rand.Float64()
	renewed, stored := false, true
	for {
		leaf, err := id.Leaf()
		if err != nil {
			return fmt.Errorf("read identity of node %s: %w; join again", id.Node, err)
		}
		now := Clock(later(o.LastKnown, id.HubTime))
		wait := due(leaf, now(), fraction, renewed)
		if !stored {
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
				id, renewed, stored = fresh, true, err == nil
				changed(id)
				if err != nil && o.Log != nil {
					o.Log.Warn("cannot store the renewed certificate; using it until the agent stops", "node", id.Node,
						"again", retryRenewal, "err", err)
				}
				break
			}
			if d := (*Dismissal)(nil); errors.As(err, &d) && o.Dismissed != nil {
				o.Dismissed(d.Dismissed)
				return nil
			}
			args := []any{"node", id.Node, "until", leaf.NotAfter, "err", err}
			if !asked { // a requested renewal is repeated only on request
				wait = cmp.Or(retryAfter(err), pauseAfter(leaf, now(), failures))
				wait += time.Duration(rand.Int64N(int64(wait/10) + 1))
				next.Reset(wait)
				failures++
				args = append(args, "again", wait.Round(time.Second))
			}
			if ctx.Err() == nil && o.Log != nil {
				o.Log.Warn("cannot renew the certificate", args...)
			}
		}
	}
}
