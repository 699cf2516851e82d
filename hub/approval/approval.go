// Package approval decides when a device's request to join ends: nobody has approved of
// it for a day, or its token has ended; or it was approved or denied an hour ago.
//
// Who approves is a person, through package kube or the page; package access makes the
// requests and gives an approved device its certificate. This room only forgets what
// is over. Its rules of time are those of Kubernetes' certificate cleaner, and stand in
// package state, for the page shows them too.
package approval

import (
	"fmt"
	"time"

	certv1 "k8s.io/api/certificates/v1"

	"flotilla.dev/hub/state"
)

// A Decider forgets requests that are over.
type Decider struct{}

// Touches says that a change of a request concerns that request.
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

// Decide ends the requests whose time has come.
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

// why says why a request ends; that of a device that has joined, or was denied, is no news.
func why(s state.Snapshot, r *certv1.CertificateSigningRequest) string {
	who := fmt.Sprintf("end request %s of node %s to join site %s", r.Name, r.Annotations[state.RequestNode],
		r.Annotations[state.RequestSite])
	switch state.DecisionOn(r) {
	case state.RequestPending:
		return fmt.Sprintf("%s: nobody approved of it until %s", who, state.RequestEnds(s, r).UTC().Format(time.RFC3339))
	case state.RequestApproved:
		return fmt.Sprintf("%s: it was approved, but the device has not come for its certificate within %s", who,
			state.RequestTold)
	}
	return ""
}
