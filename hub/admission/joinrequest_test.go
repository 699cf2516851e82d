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

// named is a certificate request whose subject is pi with a character that changes the text
// direction.
const named = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlITE1ISUNBUUF3RURFT01Bd0dBMVVFQXd3RmNHbmlnSzR3V1RBVEJnY3Foa2pPUFFJQkJnZ3Foa2pPUFFNQgpCd05DQUFRSWNlV1EwWmV0eTk5emFsVFo2S0xQSUMxY05zK3dNelBmTnZFMUJDYmtDTUNWSGtzbG1ZekFKRUE1CnFmNEJJN3dXQ1N6NmVLVDdFTytFbEhjb2tpRlRvQUF3Q2dZSUtvWkl6ajBFQXdJRFNRQXdSZ0loQU5OU3FTL3gKYmVpNTFxT1RhVTVPdDVoS3ZEK1MwSUpiY01lZjc1MGRVYmlYQWlFQXVFSGpvU3BMdkVSMnYvSVBBSjZqZFFuUwprZkRJOW9ENU0rN2Z0Nk5CS3hZPQotLS0tLUVORCBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0K"

func TestJoinRequests(t *testing.T) {
	condition := func(kind certv1.RequestConditionType, status corev1.ConditionStatus) certv1.CertificateSigningRequestCondition {
		return certv1.CertificateSigningRequestCondition{Type: kind, Status: status}
	}
	approved, denied := condition(certv1.CertificateApproved, corev1.ConditionTrue), condition(certv1.CertificateDenied, corev1.ConditionTrue)
	type request = certv1.CertificateSigningRequest
	for _, tt := range []struct {
		name   string
		change func(r *request)
		want   string
	}{
		{"a denial is a decision too", func(r *request) { r.Status.Conditions[0].Type = certv1.CertificateDenied }, ""},
		{"another signer is not the hub", func(r *request) { r.Spec.SignerName = certv1.KubeAPIServerClientSignerName }, "spec.signerName: Invalid value"},
		{"a device's certificate is not for a server", func(r *request) { r.Spec.Usages = append(r.Spec.Usages, certv1.UsageServerAuth) }, "spec.usages: Invalid value"},
		{"a subject would be read as a name", func(r *request) { r.Spec.Request, _ = base64.StdEncoding.DecodeString(named) }, "spec.request: Invalid value: must be empty"},
		{"invalid data is refused", func(r *request) { r.Spec.Request = []byte("x") }, "spec.request: Invalid value: must be one PEM"},
		{"nothing may follow the request", func(r *request) { r.Spec.Request = append(slices.Clone(r.Spec.Request), "\x1b[2J"...) }, "spec.request: Invalid value: must be one PEM"},
		{"a request is small", func(r *request) { r.Spec.Request = []byte(strings.Repeat("x", 5000)) }, "spec.request: Too long"},
		{"a serial number shows as it is", func(r *request) { r.Annotations[state.RequestSerial] = "1\u202e2" }, "metadata.annotations[flotilla.dev/serial]: Invalid value"},
		{"both decisions are none", func(r *request) { r.Status.Conditions = append(r.Status.Conditions, denied) }, "status.conditions: Invalid value"},
		{"a decision stands once", func(r *request) { r.Status.Conditions = append(r.Status.Conditions, approved) }, "status.conditions[1].type: Duplicate value"},
		{"an approval that is not is none", func(r *request) {
			r.Status.Conditions[0] = condition(certv1.CertificateApproved, corev1.ConditionFalse)
		}, "status.conditions[0].status: Unsupported value"},
		{"other conditions are not people's", func(r *request) { r.Status.Conditions[0].Type = certv1.CertificateFailed }, "status.conditions[0].type: Unsupported value"},
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
		{"a decision cannot be taken back", func(r *request) { r.Status.Conditions = nil }, "status.conditions: Forbidden"},
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
