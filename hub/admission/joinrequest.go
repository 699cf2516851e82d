package admission

import (
	"crypto/x509"
	"encoding/pem"
	"slices"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
)

// maxRequestBytes limits a device's certificate request. A request with an RSA key of 4096 bits has
// less than half of that.
const maxRequestBytes = 4 << 10

// joinRequest checks a device's request and its approval. It refuses invisible characters in text
// that is shown to users, also in a terminal.
func (l *list) joinRequest(r *certv1.CertificateSigningRequest) {
	spec := field.NewPath("spec")
	if r.Spec.SignerName != state.SignerDevice {
		l.invalid(spec.Child("signerName"), r.Spec.SignerName,
			"the hub signs certificates of devices only: "+state.SignerDevice)
	}
	if !slices.Equal(r.Spec.Usages, []certv1.KeyUsage{certv1.UsageClientAuth}) {
		l.invalid(spec.Child("usages"), r.Spec.Usages, "a device's certificate is for client auth only")
	}
	l.certificateRequest(r.Spec.Request, spec.Child("request"))
	at := field.NewPath("metadata", "annotations")
	for key, value := range r.Annotations {
		l.displayText(at.Key(key), value)
	}
	l.conditions(r.Status.Conditions, field.NewPath("status", "conditions"))
}

func (l *list) certificateRequest(text []byte, p *field.Path) {
	if len(text) > maxRequestBytes {
		l.errs = append(l.errs, field.TooLong(p, "", maxRequestBytes))
		return
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(block.Headers) > 0 || len(rest) > 0 {
		l.invalid(p, field.OmitValueType{}, "must be one PEM certificate request and nothing else")
		return
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		l.invalid(p, field.OmitValueType{}, "cannot be read: "+bound.Text(err.Error(), 200))
		return
	}
	// The hub ignores the subject, but kubectl shows it to the approver.
	if len(csr.Subject.Names) > 0 || len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses)+len(csr.URIs) > 0 {
		l.invalid(p, field.OmitValueType{}, "must be empty: the hub writes the subject of a certificate")
	}
}

// conditions allows at most one of Approved and Denied, at most once.
func (l *list) conditions(all []certv1.CertificateSigningRequestCondition, p *field.Path) {
	seen := map[certv1.RequestConditionType]bool{}
	for i, c := range all {
		at := p.Index(i)
		switch {
		case seen[c.Type]:
			l.duplicate(at.Child("type"), c.Type)
		case c.Type != certv1.CertificateApproved && c.Type != certv1.CertificateDenied:
			l.errs = append(l.errs, field.NotSupported(at.Child("type"), c.Type,
				[]certv1.RequestConditionType{certv1.CertificateApproved, certv1.CertificateDenied}))
		case c.Status != corev1.ConditionTrue:
			l.errs = append(l.errs, field.NotSupported(at.Child("status"), c.Status,
				[]corev1.ConditionStatus{corev1.ConditionTrue}))
		}
		if len(c.Reason) > 1024 || len(c.Message) > 4096 {
			l.errs = append(l.errs, field.TooLong(at.Child("message"), "", 4096))
		}
		l.displayText(at.Child("reason"), c.Reason)
		l.displayText(at.Child("message"), c.Message)
		seen[c.Type] = true
	}
	if seen[certv1.CertificateApproved] && seen[certv1.CertificateDenied] {
		l.invalid(p, certv1.CertificateDenied,
			"Approved and Denied conditions are mutually exclusive: delete the request to decide again")
	}
}

// decision refuses changes of the request and of its decision.
func (l *list) decision(r, old *certv1.CertificateSigningRequest) {
	l.same(r.Spec, old.Spec, field.NewPath("spec"))
	for _, c := range old.Status.Conditions {
		if state.RequestCondition(r, c.Type) == nil {
			l.forbidden(field.NewPath("status", "conditions"), "updates may not remove a condition of type "+string(c.Type))
		}
	}
}
