package access

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/wire"
)

// Join enrols a device with a valid token and returns its certificate. After a wrong token the
// response has no details. Only a device with the right secret receives the reason of a refusal.
func (g *Guard) Join(ctx context.Context, r wire.JoinRequest, source string) (wire.JoinAnswer, error) {
	token, node, answer, err := g.join(ctx, r, source)
	var w *waiting
	if errors.As(err, &w) && !w.begun {
		return answer, err // the audit has the waiting device already; it only polls
	}
	a := store.Audit{Who: token, Via: "join token", Source: source, Verb: "create", Resource: "enrolments", Name: node,
		Code: http.StatusCreated}
	if err != nil {
		a.Code, a.Message = status(err), err.Error()
		level := slog.LevelWarn
		message := "a device was refused"
		switch a.Code {
		case http.StatusTooManyRequests:
			level = slog.LevelDebug
		case http.StatusAccepted:
			level, message = slog.LevelInfo, "a device waits for approval"
		}
		g.Log.Log(ctx, level, message, "node", node, "source", source, "token", token, "err", err)
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
		if errors.Is(err, ErrForbidden) { // the secret is right, but the token is used up or has expired
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

	leave, err := g.joinSlot(ctx)
	if err != nil {
		return t.ID, node, answer, err
	}
	defer leave()
	if t, err = g.Store.JoinToken(ctx, t.ID); err != nil { // another device may have used the token in the meantime
		return given.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	if d := g.Fleet.Dismissed(request.KeyHash()); d != nil { // otherwise a used token would stay valid for this key
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
	// The use is stored before the enrolment. If the enrolment fails, the device retries with its
	// key, which does not use the token twice.
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
		"%w: token %s is used up (%d uses); create one on the hub with `flotilla-hub token create`",
		ErrForbidden, t.ID, t.Uses)
}

// checkToken returns the token of a secret. It takes equally long whether the token exists or not.
// Wrong secrets never lock out the right one: 130 bits cannot be guessed, and checking a secret is
// as cheap as refusing it. Only the audit and log records of wrong secrets are limited.
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
	if known { // an unknown id is no guess of a secret
		keys = append(keys, allowance{"join token " + given.ID, maxAttempts})
	}
	switch {
	case !fits || !known:
		if _, err := g.failures.try(now, keys...); err != nil {
			return store.JoinToken{}, err
		}
		return store.JoinToken{}, fmt.Errorf(
			"%w: the join token is wrong; copy the whole output of `flotilla-hub token create`", ErrUnauthenticated)
	case !same([]byte(given.Pin), []byte(g.Authority.Pin())):
		return store.JoinToken{}, fmt.Errorf("%w: token %s was created before this hub had its current certificate "+
			"authority; create a new one with `flotilla-hub token create`", ErrForbidden, t.ID)
	case !t.Revoked.IsZero():
		return store.JoinToken{}, fmt.Errorf(
			"%w: token %s was revoked at %s; create a new one with `flotilla-hub token create`", ErrForbidden, t.ID,
			t.Revoked.Format(time.RFC3339))
	case !now.Before(t.Expires):
		return store.JoinToken{}, fmt.Errorf("%w: token %s expired at %s; create a new one with `flotilla-hub token create`",
			ErrForbidden, t.ID, t.Expires.Format(time.RFC3339))
	}
	return t, nil
}

// mayTake reports whether a key may take over an enrolled node: it is the node's key already, or
// the token is for this node (replaced or reinstalled hardware). Otherwise any device with any
// token could take over any node, because a machine id is not secret.
func mayTake(fleet Fleet, t store.JoinToken, r wire.JoinRequest, node, key string) error {
	before, ok := fleet.Enrolment(node)
	if !ok || t.Node == node || before.Key == key && before.Site == t.Site {
		return nil
	}
	board := "another device"
	if before.MachineID != "" {
		board = "the device with the machine ID " + before.MachineID
	}
	board += " of site " + before.Site
	if r.Node == "" && t.Node == "" { // for example boards with copies of one image
		return fmt.Errorf("%w: %s has joined as node %s; choose another name for this "+
			"device, such as --node-name %s; if it is that device, reinstalled, create a token with "+
			"`flotilla-hub token create --site %s --node %s`",
			ErrConflict, board, node, suggested(node, r.MachineID), before.Site, node)
	}
	return fmt.Errorf("%w: node %s belongs to %s, or to this one before it was reinstalled; to take "+
		"it over, join with a token of `flotilla-hub token create --site %s --node %s`; or choose another name with --node-name",
		ErrConflict, node, board, before.Site, node)
}

// suggested is a node name that another device with this host name is unlikely to get.
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

// A dismissal is a refusal that contains the dismissal notice.
type dismissal struct {
	notice wire.Dismissed
	error
}

func (d *dismissal) Unwrap() error { return d.error }

// Renew issues a new certificate for a device's current key. shown is the certificate chain of its
// connection, which may have expired up to 90 days ago.
func (g *Guard) Renew(ctx context.Context, r wire.RenewRequest, shown []*x509.Certificate) (wire.JoinAnswer, error) {
	var none wire.JoinAnswer
	h, err := g.Authority.VerifyForRenewal(shown)
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if err := g.May(h); err != nil {
		if dismissed := g.Fleet.Dismissed(pki.KeyHash(h.Leaf)); dismissed != nil {
			return none, &dismissal{*dismissed, err}
		}
		return none, err
	}
	if !g.renewals.take(h.Name) {
		return none, &busy{fmt.Sprintf("node %s renews its certificate too often; try again in %s",
			h.Name, renewEvery), renewEvery}
	}
	request, err := pki.ParseRequest([]byte(r.CSR))
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if request.KeyHash() != pki.KeyHash(h.Leaf) {
		return none, fmt.Errorf("%w: the request has another key than the node; to change the key, join again",
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
