package access

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// Join lets a device in that shows a good token, and answers with its
// certificate. Of a wrong token nothing is told but that it is wrong; why a
// right one does not help is told to whoever has its secret.
func (g *Guard) Join(ctx context.Context, r wire.JoinRequest, source string) (wire.JoinAnswer, error) {
	token, node, answer, err := g.join(ctx, r, source)
	var w *waiting
	if errors.As(err, &w) && !w.begun {
		return answer, err // it comes again and again, and has been noted
	}
	a := store.Audit{Who: token, Via: "join token", Source: source, Verb: "create", Resource: "enrolments", Name: node,
		Code: http.StatusCreated}
	if err != nil {
		a.Code, a.Message = status(err), err.Error()
		level := slog.LevelWarn
		said := "a device was not let in"
		switch a.Code {
		case http.StatusTooManyRequests:
			level = slog.LevelDebug
		case http.StatusAccepted:
			level, said = slog.LevelInfo, "a device waits for approval"
		}
		g.Log.Log(ctx, level, said, "node", node, "source", source, "token", token, "err", err)
	} else {
		g.Log.Info("a device joined", "node", node, "site", answer.Site, "source", source, "token", token)
	}
	g.Record(ctx, a)
	return answer, err
}

func (g *Guard) join(ctx context.Context, r wire.JoinRequest,
	source string) (tokenID, node string, answer wire.JoinAnswer, err error) {
	now := g.Now()
	given, err := wire.ParseJoinToken(r.Token)
	if err != nil {
		if _, err := g.failures.try(now, tries("join", source)...); err != nil {
			return "", "", answer, err
		}
		return "", "", answer, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	t, err := g.checkToken(ctx, given, source, now)
	if err != nil {
		if errors.Is(err, ErrForbidden) { // it is the right secret, and lets nobody in any more
			g.withdraw(ctx, r, given.ID, err)
		}
		return clip(given.ID), clip(r.Node), answer, err
	}
	request, err := pki.ParseRequest([]byte(r.CSR))
	if err != nil {
		return t.ID, clip(r.Node), answer, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if node, err = nodeName(t, r); err != nil {
		return t.ID, clip(r.Node), answer, err
	}

	leave, err := g.turn(ctx)
	if err != nil {
		return t.ID, node, answer, err
	}
	defer leave()
	if t, err = g.Store.JoinToken(ctx, t.ID); err != nil { // somebody may have used it since
		return given.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	if d := g.Fleet.Dismissed(request.KeyHash()); d != nil { // or a token that it used once would be good for ever
		return t.ID, node, answer, fmt.Errorf("%w: the enrolment of this key ended at %s: %s; join with a new key",
			ErrForbidden, d.Time.Format(time.RFC3339), d.Reason)
	}
	if err := mayTake(g.Fleet, t, r, node, request.KeyHash()); err != nil {
		g.withdraw(ctx, r, t.ID, err)
		return t.ID, node, answer, err
	}
	approved, err := g.approval(ctx, t, Applicant{
		Node: node, Key: request.KeyHash(), MachineID: r.MachineID, Serial: r.Serial, Site: t.Site, Token: t.ID,
		Source: source,
		CSR:    []byte(r.CSR), Left: t.Uses - t.Used, Until: t.Expires, Waiting: r.Waiting,
	})
	if err != nil {
		return t.ID, node, answer, err
	}
	certificate, err := g.Authority.SignDevice(request, node)
	if err != nil {
		return t.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	// First the use, then the enrolment: what happens in between, the same key asks
	// again and needs no other.
	err = g.Store.TakeUse(ctx, store.Use{
		Node: node, Key: request.KeyHash(), Machine: r.MachineID, Site: t.Site, Labels: t.Labels, Token: t.ID, At: now,
		Expires: certificate.NotAfter,
	})
	switch {
	case errors.Is(err, store.ErrUsedUp):
		g.withdraw(ctx, r, t.ID, usedUp(t))
		return t.ID, node, answer, usedUp(t)
	case err != nil:
		return t.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	e := Enrolment{Node: node, Key: request.KeyHash(), MachineID: r.MachineID, Site: t.Site, Labels: t.Labels,
		Token: t.ID, At: now, Expires: certificate.NotAfter, Request: approved, Certificate: certificate.ChainPEM}
	if err := g.Fleet.Enrol(ctx, e); err != nil {
		if errors.Is(err, ErrRefused) {
			return t.ID, node, answer, fmt.Errorf("%w: %w", ErrConflict, err)
		}
		return t.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return t.ID, node, g.answer(node, t.Site, certificate, now), nil
}

func usedUp(t store.JoinToken) error {
	return fmt.Errorf(
		"%w: token %s is used up (it was good for %d); make a new one on the hub with `flotilla-hub token create`",
		ErrForbidden, t.ID, t.Uses)
}

// checkToken finds the token of a secret, in the same time whether it exists or not. A
// right secret is never refused because of wrong ones, of the same address or for the
// same token: it has 130 random bits, which nobody guesses however often they
// try, and to look at one costs the hub no more than to refuse it. What wrong ones are
// limited in is what they leave behind, in the audit and the log.
func (g *Guard) checkToken(ctx context.Context, given wire.JoinToken, source string,
	now time.Time) (store.JoinToken, error) {
	t, err := g.Store.JoinToken(ctx, given.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.JoinToken{}, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	want := t.Hash
	if want == nil {
		want = make([]byte, len(hash("")))
	}
	fits, known := same(hash(given.Secret), want), err == nil
	keys := tries("join", source)
	if known { // an id that nobody has cannot be guessed at
		keys = append(keys, allowance{"join token " + given.ID, maxStrikes})
	}
	switch {
	case !fits || !known:
		if _, err := g.failures.try(now, keys...); err != nil {
			return store.JoinToken{}, err
		}
		return store.JoinToken{}, fmt.Errorf(
			"%w: the join token is wrong; copy all of what `flotilla-hub token create` printed", ErrUnauthenticated)
	case !same([]byte(given.Pin), []byte(g.Authority.Pin())):
		return store.JoinToken{}, fmt.Errorf("%w: token %s was made before this hub had its present certificate "+
			"authority; make a new one with `flotilla-hub token create`", ErrForbidden, t.ID)
	case !t.Revoked.IsZero():
		return store.JoinToken{}, fmt.Errorf(
			"%w: token %s was revoked at %s; make a new one with `flotilla-hub token create`", ErrForbidden, t.ID,
			t.Revoked.Format(time.RFC3339))
	case !now.Before(t.Expires):
		return store.JoinToken{}, fmt.Errorf("%w: token %s ended at %s; make a new one with `flotilla-hub token create`",
			ErrForbidden, t.ID, t.Expires.Format(time.RFC3339))
	}
	return t, nil
}

// nodeName is the token's, else what the device's owner asks for, else the host name.
func nodeName(t store.JoinToken, r wire.JoinRequest) (string, error) {
	if t.Node != "" {
		if r.Node != "" && r.Node != t.Node {
			return "", fmt.Errorf(
				"%w: token %s is for node %s, not for %.63s; leave --node-name out or use a token without a node", ErrConflict,
				t.ID, t.Node, r.Node)
		}
		return t.Node, nil
	}
	name := r.Node
	if name == "" {
		name = strings.ToLower(strings.TrimSuffix(r.Hostname, "."))
	}
	if err := wire.ValidNode(name); err != nil {
		return "", fmt.Errorf("%w: %w; choose one with --node-name", ErrInvalid, err)
	}
	return name, nil
}

// mayTake tells whether a key may speak for a node that has been enrolled before:
// with a token for this very node (its hardware was replaced, or installed anew), or
// because it does already. Anything else would let the holder of any token take any
// node over; a machine id is no secret.
func mayTake(fleet Fleet, t store.JoinToken, r wire.JoinRequest, node, key string) error {
	before, ok := fleet.Enrolment(node)
	if !ok || t.Node == node || before.Key == key && before.Site == t.Site {
		return nil
	}
	if r.Node == "" && t.Node == "" { // as of many boards whose images are copies
		return fmt.Errorf("%w: another device with the host name %s has joined before: add a name of its own for this "+
			"one, such as --node-name %s; if it is the same device, installed anew: "+
			"`flotilla-hub token create --site %s --node %s`",
			ErrConflict, node, suggested(node, r.MachineID), before.Site, node)
	}
	return fmt.Errorf("%w: node %s exists and is another machine, or this one before it was installed anew; to be "+
		"it, join with a token from `flotilla-hub token create --site %s --node %s`; or choose another name with --node-name",
		ErrConflict, node, before.Site, node)
}

// suggested is a name that no other device of the same host name is likely to have.
func suggested(node, machineID string) string {
	if name := node + "-" + machineID[:min(len(machineID), 4)]; wire.ValidNode(name) == nil {
		return name
	}
	return node + "-2"
}

func (g *Guard) answer(node, site string, c pki.Certificate, now time.Time) wire.JoinAnswer {
	a := wire.JoinAnswer{
		Node: node, Site: site, Hub: g.Hub, External: g.External, Prefix: g.Prefix, Certificate: string(c.ChainPEM),
		CA:                   string(g.Authority.RootPEM()),
		LeaseIntervalSeconds: int32(g.LeaseInterval / time.Second), Time: now.UTC(), FirmwareKey: g.FirmwareKey,
	}
	if len(g.MQTT) > 0 {
		a.MQTT = g.MQTT[0]
	}
	if len(g.MQTT) > 1 {
		a.Brokers = g.MQTT
	}
	if len(g.Hubs) > 1 {
		a.Hubs = g.Hubs
	}
	return a
}

// A dismissal is a refusal that says how the enrolment has ended.
type dismissal struct {
	told wire.Dismissed
	error
}

func (d *dismissal) Unwrap() error { return d.error }

// Renew gives a device a new certificate for the key that it has. shown is the
// chain of its connection, which may have ended up to 90 days ago.
func (g *Guard) Renew(ctx context.Context, r wire.RenewRequest, shown []*x509.Certificate) (wire.JoinAnswer, error) {
	var none wire.JoinAnswer
	h, err := g.Authority.VerifyForRenewal(shown)
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if err := g.May(h); err != nil {
		if told := g.Fleet.Dismissed(pki.KeyHash(h.Leaf)); told != nil {
			return none, &dismissal{*told, err}
		}
		return none, err
	}
	if !g.renewals.take(h.Name) {
		return none, &busy{fmt.Sprintf("node %s renews its certificate more often than once in %s; try again after that",
			h.Name, renewEvery), renewEvery}
	}
	request, err := pki.ParseRequest([]byte(r.CSR))
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if request.KeyHash() != pki.KeyHash(h.Leaf) {
		return none, fmt.Errorf("%w: a renewal is signed by the key that the node has; to change the key, join again",
			ErrInvalid)
	}
	certificate, err := g.Authority.SignDevice(request, h.Name)
	if err != nil {
		return none, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	e, _ := g.Fleet.Enrolment(h.Name)
	if err := g.Fleet.Renewed(ctx, h.Name, request.KeyHash(), certificate.NotAfter); err != nil {
		return none, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	g.Log.Info("a device renewed its certificate", "node", h.Name, "until",
		certificate.NotAfter.UTC().Format(time.DateOnly))
	return g.answer(h.Name, e.Site, certificate, g.Now()), nil
}
