package kube

import (
	"time"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// onlyAsked is why nobody creates a request by hand: it would belong to no device.
const onlyAsked = "certificate signing requests are made by devices that join with a token: type what `flotilla-hub token create --require-approval` prints on the device; people get a certificate with `flotilla-hub kubeconfig`"

// decided is a request with the conditions that are sent, and nothing else of what is
// sent. When they came is the hub's word: by that they are forgotten.
func decided(live, sent *certv1.CertificateSigningRequest, now time.Time) state.Object {
	next := live.DeepCopy()
	next.Status.Conditions = nil
	for _, c := range sent.DeepCopy().Status.Conditions {
		c.LastUpdateTime, c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(time.Second)), metav1.NewTime(now.UTC().Truncate(time.Second))
		for _, have := range live.Status.Conditions {
			if have.Type == c.Type && have.Status == c.Status {
				c.LastUpdateTime, c.LastTransitionTime = have.LastUpdateTime, have.LastTransitionTime
			}
		}
		next.Status.Conditions = append(next.Status.Conditions, c)
	}
	next.ManagedFields = sent.ManagedFields
	return next
}
