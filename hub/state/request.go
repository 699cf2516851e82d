package state

import (
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// SignerDevice is the signer of the certificates of devices. A device whose token, or
// whose hub, wants an administrator's word waits as a CertificateSigningRequest of it.
const SignerDevice = "flotilla.dev/device"

// What a device that waits says of itself, what its token says of it, and where it asks
// from: annotations of its request.
const (
	RequestNode    = "flotilla.dev/node"
	RequestSite    = "flotilla.dev/site"
	RequestMachine = "flotilla.dev/machine-id"
	RequestSerial  = "flotilla.dev/serial"
	RequestSource  = "flotilla.dev/source"
	RequestKey     = "flotilla.dev/key"         // sha256 of its public key, hex
	RequestUntil   = "flotilla.dev/waits-until" // when its token ends, RFC 3339
)

// How long requests are kept, as by Kubernetes: one that nobody has decided on, and one
// that somebody has.
const (
	RequestWaits = 24 * time.Hour
	RequestTold  = time.Hour
)

// MaxRequests bounds the requests of all devices, decided ones too.
const MaxRequests = 1000

// A Decision is what has become of a device's request to join.
type Decision string

// The decisions.
const (
	RequestPending  Decision = "Pending"
	RequestApproved Decision = "Approved" // and the device has not come for its certificate yet
	RequestDenied   Decision = "Denied"
	RequestIssued   Decision = "Issued"
)

// DecisionOn returns what has become of a request. Whoever denies one wins.
func DecisionOn(r *certv1.CertificateSigningRequest) Decision {
	switch {
	case RequestCondition(r, certv1.CertificateDenied) != nil, RequestCondition(r, certv1.CertificateFailed) != nil:
		return RequestDenied
	case RequestCondition(r, certv1.CertificateApproved) == nil:
		return RequestPending
	case len(r.Status.Certificate) > 0:
		return RequestIssued
	}
	return RequestApproved
}

// RequestCondition returns a request's condition of the type, nil if it has none that holds.
func RequestCondition(
	r *certv1.CertificateSigningRequest, t certv1.RequestConditionType,
) *certv1.CertificateSigningRequestCondition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == t && c.Status != corev1.ConditionFalse {
			return c
		}
	}
	return nil
}

// RequestEnds returns when a request is forgotten: one that waits with the day, or with
// its token; one that is decided an hour after that, in which its device could hear of it.
func RequestEnds(s Snapshot, r *certv1.CertificateSigningRequest) time.Time {
	ends, is := r.CreationTimestamp.Add(RequestWaits), DecisionOn(r)
	if is == RequestPending {
		if token, err := time.Parse(time.RFC3339, r.Annotations[RequestUntil]); err == nil && token.Before(ends) {
			return token
		}
		return ends
	}
	var decided time.Time
	for _, c := range r.Status.Conditions {
		if c.LastTransitionTime.After(decided) {
			decided = c.LastTransitionTime.Time
		}
	}
	if decided.After(ends) { // by no clock of ours
		decided = ends
	}
	if listening := s.Listening(); is != RequestIssued && listening.After(decided) {
		decided = listening
	}
	return decided.Add(RequestTold)
}

// TokenUser is how a join token stands in a request as the one who asks.
func TokenUser(id string) string { return "join-token:" + id }
