package state

import (
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// SignerDevice is the signer of device certificates. A device that needs an administrator's
// approval has a CertificateSigningRequest with this signer.
const SignerDevice = "flotilla.dev/device"

// Annotations of a device's request: values from the device, values from its token, and the address
// of the device.
const (
	RequestNode    = "flotilla.dev/node"
	RequestSite    = "flotilla.dev/site"
	RequestMachine = "flotilla.dev/machine-id"
	RequestSerial  = "flotilla.dev/serial"
	RequestSource  = "flotilla.dev/source"
	RequestKey     = "flotilla.dev/key"         // sha256 of its public key, hex
	RequestUntil   = "flotilla.dev/waits-until" // when its token expires, RFC 3339
)

// How long undecided and decided requests are stored, as in Kubernetes.
const (
	RequestWaits = 24 * time.Hour
	RequestTold  = time.Hour
)

// MaxRequests limits the requests of all devices, including decided ones.
const MaxRequests = 1000

// A Decision is the state of a device's request to join.
type Decision string

// The decisions.
const (
	RequestPending  Decision = "Pending"
	RequestApproved Decision = "Approved" // the device has not fetched its certificate yet
	RequestDenied   Decision = "Denied"
	RequestIssued   Decision = "Issued"
)

// DecisionOn returns the decision on a request. A denial overrides an approval.
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

// RequestCondition returns a request's condition of the type if it is true, nil otherwise.
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

// RequestEnds returns when a request is removed. An undecided request ends after a day or when its
// token expires. A decided request ends an hour after the decision; until then its device can fetch
// the result.
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
	if decided.After(ends) { // the client's clock is not trusted
		decided = ends
	}
	if listening := s.Listening(); is != RequestIssued && listening.After(decided) {
		decided = listening
	}
	return decided.Add(RequestTold)
}

// TokenUser is the user name of a join token in a request.
func TokenUser(id string) string { return "join-token:" + id }
