package admission

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// named is a certificate request whose subject is "pi" and a character that changes the text
// direction.
const named = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlITE1ISUNBUUF3RURFT01Bd0dBMVVFQXd3RmNHbmlnSzR3V1RBVEJnY3Foa2pPUFFJQkJnZ3Foa2pPUFFNQgpCd05DQUFRSWNlV1EwWmV0eTk5emFsVFo2S0xQSUMxY05zK3dNelBmTnZFMUJDYmtDTUNWSGtzbG1ZekFKRUE1CnFmNEJJN3dXQ1N6NmVLVDdFTytFbEhjb2tpRlRvQUF3Q2dZSUtvWkl6ajBFQXdJRFNRQXdSZ0loQU5OU3FTL3gKYmVpNTFxT1RhVTVPdDVoS3ZEK1MwSUpiY01lZjc1MGRVYmlYQWlFQXVFSGpvU3BMdkVSMnYvSVBBSjZqZFFuUwprZkRJOW9ENU0rN2Z0Nk5CS3hZPQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K"

func TestJoinRequests(t *testing.T) {
	condition := func(kind certv1.RequestConditionType,
		status corev1.ConditionStatus) certv1.CertificateSigningRequestCondition {
		return certv1.CertificateSigningRequestCondition{Type: kind, Status: status}
	}
	approved, denied := condition(certv1.CertificateApproved, corev1.ConditionTrue), condition(certv1.CertificateDenied,
		corev1.ConditionTrue)
	type request = certv1.CertificateSigningRequest
	for _, tt := range []struct {
		name   string
		change func(r *request)
		want   string
	}{
		{"a request may be denied", func(r *request) { r.Status.Conditions[0].Type = certv1.CertificateDenied }, ""},
		{"the hub is the only signer", func(r *request) { r.Spec.SignerName = certv1.KubeAPIServerClientSignerName }, "spec.signerName: Invalid value"},
		{"a device's certificate is not for a server", func(r *request) { r.Spec.Usages = append(r.Spec.Usages, certv1.UsageServerAuth) }, "spec.usages: Invalid value"},
		{"the subject must be empty", func(r *request) { r.Spec.Request, _ = base64.StdEncoding.DecodeString(named) }, "spec.request: Invalid value: must be empty"},
		{"invalid data is refused", func(r *request) { r.Spec.Request = []byte("x") }, "spec.request: Invalid value: must be one PEM"},
		{"no data may follow the PEM block", func(r *request) { r.Spec.Request = append(slices.Clone(r.Spec.Request), "\x1b[2J"...) }, "spec.request: Invalid value: must be one PEM"},
		{"the size of a request is limited", func(r *request) { r.Spec.Request = []byte(strings.Repeat("x", 5000)) }, "spec.request: Too long"},
		{"a serial number has no invisible characters", func(r *request) { r.Annotations[state.RequestSerial] = "1\u202e2" }, "metadata.annotations[flotilla.dev/serial]: Invalid value"},
		{"a request cannot be both approved and denied", func(r *request) { r.Status.Conditions = append(r.Status.Conditions, denied) }, "status.conditions: Invalid value"},
		{"a decision cannot be repeated", func(r *request) { r.Status.Conditions = append(r.Status.Conditions, approved) }, "status.conditions[1].type: Duplicate value"},
		{"the status of an approval must be True", func(r *request) {
			r.Status.Conditions[0] = condition(certv1.CertificateApproved, corev1.ConditionFalse)
		}, "status.conditions[0].status: Unsupported value"},
		{"only the hub sets other conditions", func(r *request) { r.Status.Conditions[0].Type = certv1.CertificateFailed }, "status.conditions[0].type: Unsupported value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := sample(t, state.JoinRequests).(*request)
			tt.change(r)
			_, errs := Admit(r, nil, normal)
			expect(t, errs, tt.want)
		})
	}
	for _, tt := range []struct {
		name   string
		change func(r *request)
		want   string
	}{
		{"a decision cannot be removed", func(r *request) { r.Status.Conditions = nil }, "status.conditions: Forbidden"},
		{"the request is immutable", func(r *request) { r.Spec.Username = "join-token:other" }, "spec: Invalid value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old := sample(t, state.JoinRequests).(*request)
			r := old.DeepCopy()
			tt.change(r)
			_, errs := Admit(r, old, normal)
			expect(t, errs, tt.want)
		})
	}
}
