package state

import (
	"strconv"
	"strings"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// The fields that objects can be selected by, as Kubernetes has them.
var (
	nodeFields = map[string]func(Object) string{
		"spec.unschedulable": of(func(n *corev1.Node) string { return strconv.FormatBool(n.Spec.Unschedulable) }),
	}
	namespaceFields = map[string]func(Object) string{
		"status.phase": of(func(n *corev1.Namespace) string { return string(n.Status.Phase) }),
	}
	secretFields = map[string]func(Object) string{
		"type": of(func(s *corev1.Secret) string { return string(s.Type) }),
	}
	podFields = map[string]func(Object) string{
		"spec.nodeName":            of(func(p *corev1.Pod) string { return p.Spec.NodeName }),
		"spec.restartPolicy":       of(func(p *corev1.Pod) string { return string(p.Spec.RestartPolicy) }),
		"spec.schedulerName":       of(func(p *corev1.Pod) string { return p.Spec.SchedulerName }),
		"spec.serviceAccountName":  of(func(p *corev1.Pod) string { return p.Spec.ServiceAccountName }),
		"spec.hostNetwork":         of(func(p *corev1.Pod) string { return strconv.FormatBool(p.Spec.HostNetwork) }),
		"status.phase":             of(func(p *corev1.Pod) string { return string(p.Status.Phase) }),
		"status.podIP":             of(func(p *corev1.Pod) string { return p.Status.PodIP }),
		"status.podIPs":            of(podIPs),
		"status.nominatedNodeName": of(func(p *corev1.Pod) string { return p.Status.NominatedNodeName }),
	}
	requestFields = map[string]func(Object) string{
		"spec.signerName": of(func(r *certv1.CertificateSigningRequest) string { return r.Spec.SignerName }),
	}
	serviceFields = map[string]func(Object) string{
		"spec.clusterIP": of(func(s *corev1.Service) string { return s.Spec.ClusterIP }),
		"spec.type":      of(func(s *corev1.Service) string { return string(s.Spec.Type) }),
	}
	eventFields = map[string]func(Object) string{
		"reason":                         of(func(e *corev1.Event) string { return e.Reason }),
		"type":                           of(func(e *corev1.Event) string { return e.Type }),
		"source":                         of(sourceOf),
		"reportingComponent":             of(func(e *corev1.Event) string { return e.ReportingController }),
		"involvedObject.kind":            of(func(e *corev1.Event) string { return e.InvolvedObject.Kind }),
		"involvedObject.namespace":       of(func(e *corev1.Event) string { return e.InvolvedObject.Namespace }),
		"involvedObject.name":            of(func(e *corev1.Event) string { return e.InvolvedObject.Name }),
		"involvedObject.uid":             of(func(e *corev1.Event) string { return string(e.InvolvedObject.UID) }),
		"involvedObject.apiVersion":      of(func(e *corev1.Event) string { return e.InvolvedObject.APIVersion }),
		"involvedObject.resourceVersion": of(func(e *corev1.Event) string { return e.InvolvedObject.ResourceVersion }),
		"involvedObject.fieldPath":       of(func(e *corev1.Event) string { return e.InvolvedObject.FieldPath }),
	}
)

// podIPs are a pod's addresses, as the downward API writes them.
func podIPs(p *corev1.Pod) string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return strings.Join(all, ",")
}

// sourceOf is who an event is from, in its older or its newer field.
func sourceOf(e *corev1.Event) string {
	if e.Source.Component != "" {
		return e.Source.Component
	}
	return e.ReportingController
}
