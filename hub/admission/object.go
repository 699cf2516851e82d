package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// maxData limits the size of a config map or secret. Devices receive it in their desired state.
const maxData = corev1.MaxSecretSize

// meta checks the metadata: name, namespace, labels, annotations, owners, finalizers, managed
// fields.
func (l *list) meta(o state.Object) {
	kind := state.KindOf(o)
	l.all(apivalidation.ValidateObjectMetaAccessor(o, kind.Namespaced(), nameRule(kind), field.NewPath("metadata")))
	for i, f := range o.GetFinalizers() {
		l.finalizer(f, field.NewPath("metadata", "finalizers").Index(i))
	}
}

// finalizers checks the finalizers of a template.
func (l *list) finalizers(of []string, at *field.Path) {
	l.all(apivalidation.ValidateFinalizers(of, at))
	for i, f := range of {
		l.finalizer(f, at.Index(i))
	}
}

// finalizer checks that a finalizer is known to the hub or has a domain.
func (l *list) finalizer(f string, at *field.Path) {
	switch {
	case strings.Contains(f, "/"), f == string(corev1.FinalizerKubernetes), f == metav1.FinalizerOrphanDependents,
		f == metav1.FinalizerDeleteDependents:
	default:
		l.invalid(at, f, "name is neither a standard finalizer name nor is it fully qualified")
	}
}

func (l *list) namespace(n *corev1.Namespace) {
	for i, f := range n.Spec.Finalizers {
		l.finalizer(string(f), field.NewPath("spec", "finalizers").Index(i))
	}
	phase := field.NewPath("status", "phase")
	switch {
	case n.DeletionTimestamp == nil && n.Status.Phase != corev1.NamespaceActive:
		l.invalid(phase, n.Status.Phase, "may only be 'Active' if `deletionTimestamp` is empty")
	case n.DeletionTimestamp != nil && n.Status.Phase != corev1.NamespaceTerminating:
		l.invalid(phase, n.Status.Phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")
	}
}

func nameRule(k state.Kind) apivalidation.ValidateNameFunc {
	if name := rules[k].name; name != nil {
		return name
	}
	return apivalidation.NameIsDNSSubdomain
}

// siteName checks a site's name as a value of the zone label, which allows upper case and
// underscores. The name must also fit into a URL path.
func siteName(name string, prefix bool) (wrong []string) {
	if !prefix && (name == "." || name == "..") {
		wrong = append(wrong, fmt.Sprintf("may not be '%s'", name))
	}
	for _, c := range []string{"/", "%"} {
		if strings.Contains(name, c) {
			wrong = append(wrong, fmt.Sprintf("may not contain '%s'", c))
		}
	}
	if len(name) > validation.DNS1123SubdomainMaxLength {
		wrong = append(wrong, validation.MaxLenError(validation.DNS1123SubdomainMaxLength))
	}
	return wrong
}

func (l *list) configMap(c *corev1.ConfigMap) {
	size := 0
	for _, key := range sortedKeys(c.Data) {
		at := field.NewPath("data").Key(key)
		l.each(at, key, validation.IsConfigMapKey(key))
		if _, twice := c.BinaryData[key]; twice {
			l.invalid(at, key, "duplicate of key present in binaryData")
		}
		size += len(c.Data[key])
	}
	for _, key := range sortedKeys(c.BinaryData) {
		l.each(field.NewPath("binaryData").Key(key), key, validation.IsConfigMapKey(key))
		size += len(c.BinaryData[key])
	}
	if size > maxData {
		l.errs = append(l.errs, field.TooLong(field.NewPath("data"), "", maxData))
	}
}

// secret checks a secret. Its errors never contain a value of the secret.
func (l *list) secret(s *corev1.Secret) {
	data := field.NewPath("data")
	size := 0
	for _, key := range sortedKeys(s.Data) {
		l.each(data.Key(key), key, validation.IsConfigMapKey(key))
		size += len(s.Data[key])
	}
	if size > maxData {
		l.errs = append(l.errs, field.TooLong(data, "", maxData))
	}
	need := func(key string) bool {
		_, ok := s.Data[key]
		if !ok {
			l.required(data.Key(key), "")
		}
		return ok
	}
	object := func(key string) {
		if need(key) && json.Unmarshal(s.Data[key], &map[string]any{}) != nil {
			l.invalid(data.Key(key), "<secret contents redacted>", "must be a JSON object")
		}
	}
	switch s.Type {
	case corev1.SecretTypeDockercfg:
		object(corev1.DockerConfigKey)
	case corev1.SecretTypeDockerConfigJson:
		object(corev1.DockerConfigJsonKey)
	case corev1.SecretTypeBasicAuth:
		if _, ok := s.Data[corev1.BasicAuthUsernameKey]; !ok {
			need(corev1.BasicAuthPasswordKey) // one of the two keys is enough
		}
	case corev1.SecretTypeSSHAuth:
		if len(s.Data[corev1.SSHAuthPrivateKey]) == 0 {
			l.required(data.Key(corev1.SSHAuthPrivateKey), "")
		}
	case corev1.SecretTypeTLS:
		need(corev1.TLSCertKey)
		need(corev1.TLSPrivateKeyKey)
	case corev1.SecretTypeServiceAccountToken:
		l.forbidden(field.NewPath("type"), "is not supported: the hub has no service accounts")
	}
}

// event checks that an event is in the namespace of its object.
func (l *list) event(e *corev1.Event) {
	about := e.InvolvedObject.Namespace
	if about == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem ||
		about != "" && about != e.Namespace {
		l.invalid(field.NewPath("involvedObject", "namespace"), about, "does not match event.namespace")
	}
}

func (l *list) lease(s *coordv1.LeaseSpec, p *field.Path) {
	if v := s.LeaseDurationSeconds; v != nil && *v <= 0 {
		l.invalid(p.Child("leaseDurationSeconds"), *v, "must be greater than 0")
	}
	if v := s.LeaseTransitions; v != nil {
		l.atLeast(p.Child("leaseTransitions"), int64(*v), 0)
	}
}

func (l *list) budget(s *policyv1.PodDisruptionBudgetSpec, p *field.Path) {
	if s.MinAvailable != nil && s.MaxUnavailable != nil {
		l.invalid(p, "", "minAvailable and maxUnavailable cannot be both set")
	}
	l.intOrPercent(p.Child("minAvailable"), s.MinAvailable, true)
	l.intOrPercent(p.Child("maxUnavailable"), s.MaxUnavailable, true)
	l.selector(s.Selector, p.Child("selector"))
	if v := s.UnhealthyPodEvictionPolicy; v != nil {
		oneOf(l, p.Child("unhealthyPodEvictionPolicy"), *v, policyv1.AlwaysAllow, policyv1.IfHealthyBudget)
	}
}

func (l *list) revision(r *appsv1.ControllerRevision) {
	l.atLeast(field.NewPath("revision"), r.Revision, 0)
	if r.Data.Object != nil {
		return // the hub created the object, so Data is not decoded
	}
	if json.Unmarshal(r.Data.Raw, &map[string]any{}) != nil || string(r.Data.Raw) == "null" {
		l.required(field.NewPath("data"), "data must be a valid JSON object")
	}
}

// revisionUnchanged compares the decoded data, because clients that read and write the data change
// its formatting.
func (l *list) revisionUnchanged(r, old *appsv1.ControllerRevision) {
	now, was := decodeJSON(r.Data.Raw), decodeJSON(old.Data.Raw)
	if now == nil || !equality.Semantic.DeepEqual(now, was) {
		l.same(r.Data, old.Data, field.NewPath("data"))
	}
}

// decodeJSON decodes JSON and keeps numbers as written; nil if the JSON is empty.
func decodeJSON(raw []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return nil
	}
	return v
}
