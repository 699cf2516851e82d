package enrolment

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admission"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
)

type joinRequest = certv1.CertificateSigningRequest

// Await returns the decision on a device that needs approval. If the device has no request and may
// create one, Await creates it.
func (e Enrolments) Await(ctx context.Context, a access.Applicant) (v access.Verdict, err error) {
	s := e.Loop.Snapshot()
	r := requestOf(a, time.Time{})
	have := requestAt(s, r.Name)
	if have == nil || have.Annotations[state.RequestKey] != a.Key {
		have = denied(s, a)
	}
	if have == nil {
		if !a.Begin {
			return v, access.ErrNoRequest
		}
		begin := func(s state.Snapshot, now time.Time) ([]state.Change, error) { return startRequest(s, a, now) }
		if _, err := e.Loop.Do(ctx, begin); err != nil {
			return v, err
		}
		if s, v.Begun = e.Loop.Snapshot(), true; requestAt(s, r.Name) == nil {
			return v, fmt.Errorf("request %s has ended already", r.Name)
		}
		have = requestAt(s, r.Name)
	}
	v.Request, v.Waiting = have.Name, s.Len(state.JoinRequests)
	switch state.DecisionOn(have) {
	case state.RequestApproved, state.RequestIssued:
		v.Approved = true
	case state.RequestDenied:
		v.Denied = "an administrator denied it; delete the request to let the device ask again"
		if c := state.RequestCondition(have, certv1.CertificateDenied); c != nil && c.Message != "" &&
			c.Reason != "KubectlDeny" && c.Reason != "AdminPage" {
			v.Denied = bound.Text(c.Message, 500)
		}
	}
	return v, nil
}

// denied returns the denied request of a device's key. With the same token, other values from the
// device do not make it a different device.
func denied(s state.Snapshot, a access.Applicant) *joinRequest {
	for r := range state.Each[*joinRequest](s, state.JoinRequests, "") {
		if r.Annotations[state.RequestKey] == a.Key && r.Spec.Username == state.TokenUser(a.Token) &&
			state.DecisionOn(r) == state.RequestDenied {
			return r
		}
	}
	return nil
}

// startRequest returns the changes that create a device's request. A key has one request: if it
// requests something else, such as another name, the earlier request ends.
func startRequest(s state.Snapshot, a access.Applicant, now time.Time) (changes []state.Change, err error) {
	r := requestOf(a, now)
	with, all := 0, 0
	for have := range state.Each[*joinRequest](s, state.JoinRequests, "") {
		switch {
		case have.Name == r.Name && have.Annotations[state.RequestKey] == a.Key:
			return nil, nil
		case have.Name == r.Name:
			return nil, fmt.Errorf("%w: another key waits as %s; choose another name with --node-name", access.ErrRefused,
				r.Name)
		case have.Annotations[state.RequestKey] == a.Key:
			changes = append(changes, state.Remove(have, fmt.Sprintf("end request %s: its device asks for something else "+
				"now, as %s", have.Name, r.Name)))
			continue
		}
		all++
		if d := state.DecisionOn(have); have.Spec.Username == r.Spec.Username &&
			(d == state.RequestPending || d == state.RequestApproved) {
			with++
		}
	}
	switch {
	case with >= a.Left && a.Left <= 0:
		return nil, fmt.Errorf("%w: token %s is used up; make a new one on the hub with `flotilla-hub token create`",
			access.ErrRefused, a.Token)
	case with >= a.Left:
		return nil, fmt.Errorf("%w: as many devices wait for approval as token %s has uses left (%d); deny or delete the "+
			"request of one, or make a new token with `flotilla-hub token create`", access.ErrRefused, a.Token, a.Left)
	case all >= state.MaxRequests:
		return nil, access.ErrBusy
	}
	if _, errs := admission.Admit(r, nil, admission.Settings{}); len(errs) > 0 {
		return nil, fmt.Errorf("%w: %w", access.ErrInvalid, errs.ToAggregate())
	}
	who := fmt.Sprintf("machine %s, serial number %s, from %s", unknown(a.MachineID),
		unknown(r.Annotations[state.RequestSerial]), a.Source)
	return append(changes, state.Put(r, fmt.Sprintf("node %s (%s) asks to join site %s and waits for approval", a.Node,
		who, a.Site)).Event("WaitsForApproval")), nil
}

func unknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

// requestOf returns a device's request. Its name is a hash of all values from the device, so an
// administrator approves exactly the values that are shown.
func requestOf(a access.Applicant, now time.Time) *joinRequest {
	h := sha256.New()
	for _, part := range []string{a.Key, a.Node, a.Site, a.MachineID, a.Serial, a.Token} {
		fmt.Fprintf(h, "%d %s\n", len(part), part)
	}
	name := strings.TrimRight(a.Node[:min(len(a.Node), 200)], "-.") + "-" + hex.EncodeToString(h.Sum(nil)[:8])
	at := metav1.NewTime(now.UTC().Truncate(time.Second))
	r := &joinRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: at, Annotations: map[string]string{
			state.RequestNode: a.Node, state.RequestSite: a.Site, state.RequestKey: a.Key, state.RequestSource: a.Source,
			state.RequestUntil: a.Until.UTC().Format(time.RFC3339),
		}},
		Spec: certv1.CertificateSigningRequestSpec{
			Request: a.CSR, SignerName: state.SignerDevice, Usages: []certv1.KeyUsage{certv1.UsageClientAuth},
			Username: state.TokenUser(a.Token), Groups: []string{"join-tokens"},
		},
	}
	if a.MachineID != "" {
		r.Annotations[state.RequestMachine] = a.MachineID
	}
	if a.Serial != "" {
		r.Annotations[state.RequestSerial] = bound.Text(a.Serial, 3*64)
	}
	return r
}

func requestAt(s state.Snapshot, name string) *joinRequest {
	r, _ := s.Get(state.Key{Kind: state.JoinRequests, Name: name}).(*joinRequest)
	return r
}

// markIssued returns the changes that mark a request as issued, if it exists and is approved.
func markIssued(s state.Snapshot, en access.Enrolment) (changes []state.Change, err error) {
	if en.Request == "" {
		return nil, nil
	}
	r := requestAt(s, en.Request)
	if r == nil || r.Annotations[state.RequestKey] != en.Key ||
		state.DecisionOn(r) != state.RequestApproved && state.DecisionOn(r) != state.RequestIssued {
		return nil, fmt.Errorf("%w: request %s ended a moment ago", access.ErrRefused, en.Request)
	}
	r = r.DeepCopy()
	r.Status.Certificate = en.Certificate
	return []state.Change{state.Put(r, "")}, nil
}

// Withdraw ends the request that a key made with a token, when the device may no longer join.
func (e Enrolments) Withdraw(ctx context.Context, key, token, why string) error {
	find := func(s state.Snapshot) (found []state.Change) {
		for r := range state.Each[*joinRequest](s, state.JoinRequests, "") {
			d := state.DecisionOn(r)
			if r.Annotations[state.RequestKey] == key && r.Spec.Username == state.TokenUser(token) &&
				(d == state.RequestPending || d == state.RequestApproved) {
				found = append(found, state.Remove(r, fmt.Sprintf("end request %s: %s", r.Name, why)))
			}
		}
		return found
	}
	if len(find(e.Loop.Snapshot())) == 0 {
		return nil
	}
	_, err := e.Loop.Do(ctx, func(s state.Snapshot, _ time.Time) ([]state.Change, error) { return find(s), nil })
	return err
}
