// Package approval decides when a device's request to join ends: a day after its creation without a
// decision, with its token, or an hour after an approval or denial.
//
// An administrator approves through package kube or the page. Package access creates the requests
// and issues the certificates. This package only removes ended requests. The times are those of
// Kubernetes' certificate cleaner. They are in package state, because the page shows them too.
package approval

import (
	"fmt"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"flotilla.dev/hub/state"
)

// A Decider removes ended requests.
type Decider struct{}

// Touches returns the request of a change.
func (Decider) Touches(c state.Applied) []state.Subject {
	if c.Key.Kind != state.JoinRequests {
		return nil
	}
	return []state.Subject{{Key: c.Key}}
}

// Subjects returns all requests.
func (Decider) Subjects(s state.Snapshot) (all []state.Subject) {
	for r := range s.All(state.JoinRequests, "") {
		all = append(all, state.About(state.KeyOf(r)))
	}
	return all
}

// Decide removes the requests whose time has passed.
func (Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	for _, q := range subjects {
		r, ok := s.Get(q.Key).(*certv1.CertificateSigningRequest)
		if !ok {
			plan.Wake(q.Key, time.Time{})
			continue
		}
		if ends := state.RequestEnds(s, r); ends.After(now) {
			plan.Wake(q.Key, ends)
			continue
		}
		plan.Wake(q.Key, time.Time{})
		plan.Do(state.Remove(r, why(s, r)))
	}
	return plan
}

// why returns why a request ends. It is "" for a device that has joined or was denied, because that
// was reported already.
func why(s state.Snapshot, r *certv1.CertificateSigningRequest) string {
	who := fmt.Sprintf("end request %s of node %s to join site %s", r.Name, r.Annotations[state.RequestNode],
		r.Annotations[state.RequestSite])
	switch state.DecisionOn(r) {
	case state.RequestPending:
		return fmt.Sprintf("%s: not approved until %s", who, state.RequestEnds(s, r).UTC().Format(time.RFC3339))
	case state.RequestApproved:
		return fmt.Sprintf("%s: approved, but the device did not fetch its certificate within %s", who,
			state.RequestTold)
	}
	return ""
}
