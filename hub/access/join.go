package access

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
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
	a := store.Audit{Who: token, Via: "join token", Source: source, Verb: "create", Resource: "enrolments", Name: node, Code: http.StatusCreated}
	if err != nil {
		a.Code, a.Message = status(err), err.Error()
		g.Log.Warn("a device was not let in", "node", node, "source", source, "token", token, "err", err)
	} else {
		g.Log.Info("a device joined", "node", node, "site", answer.Site, "source", source, "token", token)
	}
	if a.Code != http.StatusTooManyRequests { // a flood must not become a flood of writes
		g.Record(ctx, a)
	}
	return answer, err
}

func (g *Guard) join(ctx context.Context, r wire.JoinRequest, source string) (tokenID, node string, answer wire.JoinAnswer, err error) {
	now := time.Now()
	given, err := wire.ParseJoinToken(r.Token)
	if err != nil {
		g.failures.strike(now, "join "+network(source))
		return "", "", answer, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	t, err := g.checkToken(ctx, given, source, now)
	if err != nil {
		return clip(given.ID), clip(r.Node), answer, err
	}
	request, err := pki.ParseRequest([]byte(r.CSR))
	if err != nil {
		return t.ID, clip(r.Node), answer, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if node, err = nodeName(t, r); err != nil {
		return t.ID, clip(r.Node), answer, err
	}

	g.joining.Lock()
	defer g.joining.Unlock()
	if t, err = g.Store.JoinToken(ctx, t.ID); err != nil { // somebody may have used it since
		return given.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	before, err := g.Store.Enrolment(ctx, node)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return t.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	again := before.Key == request.KeyHash() && before.Token == t.ID // its answer got lost
	if t.Used >= t.Uses && !again {
		return t.ID, node, answer, usedUp(t)
	}
	if err := mayTake(before, t, r.MachineID, request.KeyHash()); err != nil {
		return t.ID, node, answer, err
	}
	e := Enrolment{Node: node, MachineID: r.MachineID, Site: t.Site, Labels: t.Labels, Token: t.ID, Replaces: before.Node != "" && before.Key != request.KeyHash(), At: now}
	if err := g.Enroller.Enroll(ctx, e); err != nil {
		if errors.Is(err, ErrRefused) {
			return t.ID, node, answer, fmt.Errorf("%w: %w", ErrConflict, err)
		}
		return t.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	certificate, err := g.Authority.SignDevice(request, node)
	if err != nil {
		return t.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	err = g.Store.Enrol(ctx, store.Enrolment{
		Node: node, Key: request.KeyHash(), Machine: r.MachineID, Site: t.Site, Labels: t.Labels, Token: t.ID, Enrolled: now, Expires: certificate.NotAfter,
	})
	switch {
	case errors.Is(err, store.ErrUsedUp):
		return t.ID, node, answer, usedUp(t)
	case err != nil:
		return t.ID, node, answer, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	g.failures.forgive("join " + network(source))
	return t.ID, node, g.answer(node, t.Site, certificate, now), nil
}

func usedUp(t store.JoinToken) error {
	return fmt.Errorf("%w: token %s is used up (it was good for %d); make a new one on the hub with `flotilla-hub token create`", ErrForbidden, t.ID, t.Uses)
}

// checkToken finds the token of a secret, in the same time whether it exists or not.
func (g *Guard) checkToken(ctx context.Context, given wire.JoinToken, source string, now time.Time) (store.JoinToken, error) {
	keys := []string{"join " + network(source), "join token " + given.ID}
	if err := g.failures.locked(now, keys...); err != nil {
		return store.JoinToken{}, err
	}
	t, err := g.Store.JoinToken(ctx, given.ID)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.JoinToken{}, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	want := t.Hash
	if want == nil {
		want = make([]byte, len(hash("")))
	}
	fits, known := same(hash(given.Secret), want), err == nil
	if !known {
		keys = keys[:1] // an id that nobody has cannot be guessed at
	}
	switch {
	case !fits || !known:
		g.failures.strike(now, keys...)
		return store.JoinToken{}, fmt.Errorf("%w: the join token is wrong; copy all of what `flotilla-hub token create` printed", ErrUnauthenticated)
	case !same([]byte(given.Pin), []byte(g.Authority.Pin())):
		return store.JoinToken{}, fmt.Errorf("%w: token %s was made before this hub had its present certificate authority; make a new one with `flotilla-hub token create`", ErrForbidden, t.ID)
	case !t.Revoked.IsZero():
		return store.JoinToken{}, fmt.Errorf("%w: token %s was revoked at %s; make a new one with `flotilla-hub token create`", ErrForbidden, t.ID, t.Revoked.Format(time.RFC3339))
	case !now.Before(t.Expires):
		return store.JoinToken{}, fmt.Errorf("%w: token %s ended at %s; make a new one with `flotilla-hub token create`", ErrForbidden, t.ID, t.Expires.Format(time.RFC3339))
	}
	return t, nil
}

// nodeName is the token's, else what the device's owner asks for, else the host name.
func nodeName(t store.JoinToken, r wire.JoinRequest) (string, error) {
	if t.Node != "" {
		if r.Node != "" && r.Node != t.Node {
			return "", fmt.Errorf("%w: token %s is for node %s, not for %.63s; leave --node-name out or use a token without a node", ErrConflict, t.ID, t.Node, r.Node)
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

// mayTake tells whether a device may speak for a node that has been enrolled
// before: with the same key; with a token for this very node (the hardware was
// replaced); or, on the same site, from the same machine (it was installed
// anew). Anything else would let the holder of any token take any node over.
func mayTake(before store.Enrolment, t store.JoinToken, machine, key string) error {
	switch {
	case before.Node == "", before.Key == key && before.Site == t.Site, t.Node == before.Node:
		return nil
	case machine != "" && machine == before.Machine && before.Site == t.Site:
		return nil
	}
	return fmt.Errorf("%w: node %s exists and is another machine; choose another name with --node-name, or to replace its hardware join with a token from `flotilla-hub token create --site %s --node %s`",
		ErrConflict, before.Node, before.Site, before.Node)
}

func (g *Guard) answer(node, site string, c pki.Certificate, now time.Time) wire.JoinAnswer {
	return wire.JoinAnswer{
		Node: node, Site: site, Hub: g.Hub, MQTT: g.MQTT, Certificate: string(c.ChainPEM), CA: string(g.Authority.RootPEM()),
		LeaseIntervalSeconds: int32(g.LeaseInterval / time.Second), Time: now.UTC(),
	}
}

// Renew gives a device a new certificate for the key that it has. shown is the
// chain of its connection, which may have ended up to 90 days ago.
func (g *Guard) Renew(ctx context.Context, r wire.RenewRequest, shown []*x509.Certificate) (wire.JoinAnswer, error) {
	var none wire.JoinAnswer
	h, err := g.Authority.VerifyForRenewal(shown)
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrUnauthenticated, err)
	}
	if err := g.May(ctx, h); err != nil {
		return none, err
	}
	request, err := pki.ParseRequest([]byte(r.CSR))
	if err != nil {
		return none, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if request.KeyHash() != pki.KeyHash(h.Leaf) {
		return none, fmt.Errorf("%w: a renewal is signed by the key that the node has; to change the key, join again", ErrInvalid)
	}
	certificate, err := g.Authority.SignDevice(request, h.Name)
	if err != nil {
		return none, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	e, err := g.Store.Enrolment(ctx, h.Name)
	if err == nil {
		err = g.Store.RenewEnrolment(ctx, h.Name, request.KeyHash(), certificate.NotAfter)
	}
	if err != nil {
		return none, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	g.Log.Info("a device renewed its certificate", "node", h.Name, "until", certificate.NotAfter.UTC().Format(time.DateOnly))
	return g.answer(h.Name, e.Site, certificate, time.Now()), nil
}
