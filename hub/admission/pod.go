package admission

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// A specOwner is the kind of object that contains a pod spec. Some rules apply to only one kind.
type specOwner int

const (
	ofPod      specOwner = iota
	ofTemplate           // of a workload whose pods always restart
)

// podSpec checks the form of a pod spec. Other functions check whether devices implement it and
// whether the policy allows it.
func (l *list) podSpec(s *corev1.PodSpec, p *field.Path, of specOwner) {
	volumes := l.volumes(s.Volumes, p.Child("volumes"))
	l.containers(s, volumes, p, of)

	oneOf(l, p.Child("restartPolicy"), s.RestartPolicy, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure,
		corev1.RestartPolicyNever)
	oneOf(l, p.Child("dnsPolicy"), s.DNSPolicy, corev1.DNSClusterFirstWithHostNet, corev1.DNSClusterFirst,
		corev1.DNSDefault, corev1.DNSNone)
	if s.TerminationGracePeriodSeconds == nil {
		l.required(p.Child("terminationGracePeriodSeconds"), "")
	} else {
		l.atLeast(p.Child("terminationGracePeriodSeconds"), *s.TerminationGracePeriodSeconds, 0)
	}
	if v := s.ActiveDeadlineSeconds; v != nil && (*v < 1 || *v > math.MaxInt32) {
		l.invalid(p.Child("activeDeadlineSeconds"), *v, validation.InclusiveRangeError(1, math.MaxInt32))
	}
	if s.NodeName != "" {
		subdomain(l, p.Child("nodeName"), s.NodeName)
	}
	if s.Hostname != "" {
		label(l, p.Child("hostname"), s.Hostname)
	}
	if s.Subdomain != "" {
		label(l, p.Child("subdomain"), s.Subdomain)
	}
	if s.RuntimeClassName != nil {
		subdomain(l, p.Child("runtimeClassName"), *s.RuntimeClassName)
	}
	for name := range s.Overhead {
		l.overhead(name, s.Overhead, p.Child("overhead").Key(string(name)))
	}
	if s.ServiceAccountName != "" {
		subdomain(l, p.Child("serviceAccountName"), s.ServiceAccountName)
	}
	if s.OS != nil && s.OS.Name != corev1.Linux {
		l.errs = append(l.errs, field.NotSupported(p.Child("os", "name"), s.OS.Name, []corev1.OSName{corev1.Linux}))
	}
	for i, h := range s.HostAliases {
		at := p.Child("hostAliases").Index(i)
		l.all(validation.IsValidIPForLegacyField(at.Child("ip"), h.IP, true, nil))
		for j, name := range h.Hostnames {
			subdomain(l, at.Child("hostnames").Index(j), name)
		}
	}
	if is(s.ShareProcessNamespace) && s.HostPID {
		l.invalid(p.Child("shareProcessNamespace"), true, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	if is(s.ShareProcessNamespace) && s.HostNetwork {
		l.forbidden(p.Child("shareProcessNamespace"), "is not supported together with hostNetwork: a pod on the "+
			"device's network has no sandbox that the processes could belong to")
	}
	l.dns(s, p.Child("dnsConfig"))
	l.podSecurity(s.SecurityContext, p.Child("securityContext"))
	l.priority(s, p)
	l.scheduling(s, p)
}

func (l *list) dns(s *corev1.PodSpec, p *field.Path) {
	c := s.DNSConfig
	switch none := s.DNSPolicy == corev1.DNSNone; {
	case none && c == nil:
		l.required(p, "must provide `dnsConfig` when `dnsPolicy` is None")
	case none && len(c.Nameservers) == 0:
		l.required(p.Child("nameservers"), "must provide at least one DNS nameserver when `dnsPolicy` is None")
	}
	if c == nil {
		return
	}
	if len(c.Nameservers) > 3 {
		l.invalid(p.Child("nameservers"), c.Nameservers, "must not have more than 3 nameservers")
	}
	for i, ip := range c.Nameservers {
		l.all(validation.IsValidIPForLegacyField(p.Child("nameservers").Index(i), ip, true, nil))
	}
	for i, o := range c.Options {
		switch at := p.Child("options").Index(i); {
		case o.Name == "":
			l.required(at.Child("name"), "")
		case strings.ContainsFunc(o.Name, unicode.IsSpace):
			l.invalid(at.Child("name"), o.Name, "must not contain spaces")
		case o.Value != nil && strings.ContainsFunc(*o.Value, unicode.IsSpace):
			l.invalid(at.Child("value"), *o.Value, "must not contain spaces")
		}
	}
	if len(c.Searches) > 32 {
		l.invalid(p.Child("searches"), c.Searches, "must not have more than 32 search paths")
	}
	for i, search := range c.Searches {
		if search != "." {
			search = strings.TrimSuffix(search, ".")
			l.each(p.Child("searches").Index(i), search, validation.IsDNS1123SubdomainWithUnderscore(search))
		}
	}
}

func (l *list) podSecurity(c *corev1.PodSecurityContext, p *field.Path) {
	if c == nil {
		return
	}
	l.ids(c.RunAsUser, c.RunAsGroup, p)
	l.appArmor(c.AppArmorProfile, p.Child("appArmorProfile"))
	for i, id := range c.SupplementalGroups {
		l.each(p.Child("supplementalGroups").Index(i), id, validation.IsValidGroupID(id))
	}
	if c.FSGroup != nil {
		l.each(p.Child("fsGroup"), *c.FSGroup, validation.IsValidGroupID(*c.FSGroup))
	}
	if v := c.FSGroupChangePolicy; v != nil {
		oneOf(l, p.Child("fsGroupChangePolicy"), *v, corev1.FSGroupChangeOnRootMismatch, corev1.FSGroupChangeAlways)
	}
}

func (l *list) ids(user, group *int64, p *field.Path) {
	if user != nil {
		l.each(p.Child("runAsUser"), *user, validation.IsValidUserID(*user))
	}
	if group != nil {
		l.each(p.Child("runAsGroup"), *group, validation.IsValidGroupID(*group))
	}
}

// appArmor checks the form of a profile's name. The policy says which profiles are allowed, and
// whether a profile is required.
func (l *list) appArmor(a *corev1.AppArmorProfile, p *field.Path) {
	if a == nil || a.LocalhostProfile == nil {
		return
	}
	switch name, at := *a.LocalhostProfile, p.Child("localhostProfile"); {
	case a.Type != corev1.AppArmorProfileTypeLocalhost:
		l.invalid(at, name, "can only be set when AppArmor type is Localhost")
	case strings.TrimSpace(name) != name:
		l.invalid(at, name, "must not be padded with whitespace")
	case len(name) > 4095:
		l.errs = append(l.errs, field.TooLong(at, "", 4095))
	}
}

// priority checks the form of a pod's priority. Complete checks whether the class exists.
func (l *list) priority(s *corev1.PodSpec, p *field.Path) {
	class := state.SystemClass(s.PriorityClassName)
	switch {
	case class != nil && s.Priority != nil && *s.Priority != class.Value:
		l.forbidden(p.Child("priority"), fmt.Sprintf(
			"the integer value of priority (%d) must not be provided in pod spec; priority class %s means %d",
			*s.Priority, s.PriorityClassName, class.Value))
	case class == nil && s.Priority != nil && *s.Priority > state.HighestUserPriority:
		l.invalid(p.Child("priority"), *s.Priority, fmt.Sprintf(
			"must be less than or equal to %d: higher values belong to the system classes", state.HighestUserPriority))
	}
	if s.PriorityClassName != "" {
		subdomain(l, p.Child("priorityClassName"), s.PriorityClassName)
	}
	if s.PreemptionPolicy != nil {
		oneOf(l, p.Child("preemptionPolicy"), *s.PreemptionPolicy, corev1.PreemptLowerPriority, corev1.PreemptNever)
	}
}

// env checks environment variables and their sources.
func (l *list) env(vars []corev1.EnvVar, p *field.Path) {
	for i, v := range vars {
		at := p.Index(i)
		if v.Name == "" {
			l.required(at.Child("name"), "")
		} else {
			l.each(at.Child("name"), v.Name, validation.IsRelaxedEnvVarName(v.Name))
		}
		from, fp := v.ValueFrom, at.Child("valueFrom")
		if from == nil {
			continue
		}
		if v.Value != "" {
			l.invalid(fp, "", "may not be specified when `value` is not empty")
		}
		n := 0
		if from.FieldRef != nil {
			n++
			l.fieldRef(from.FieldRef, fp.Child("fieldRef"), envFields)
		}
		if from.ResourceFieldRef != nil {
			n++
			l.resourceRef(from.ResourceFieldRef, fp.Child("resourceFieldRef"), false)
		}
		if k := from.ConfigMapKeyRef; k != nil {
			n++
			l.keyRef(k.Name, k.Key, fp.Child("configMapKeyRef"))
		}
		if k := from.SecretKeyRef; k != nil {
			n++
			l.keyRef(k.Name, k.Key, fp.Child("secretKeyRef"))
		}
		switch {
		case n == 0 && from.FileKeyRef == nil:
			l.invalid(fp, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`")
		case n > 1:
			l.invalid(fp, "", "may not have more than one field specified at a time")
		}
	}
}

func (l *list) envFrom(sources []corev1.EnvFromSource, p *field.Path) {
	for i, s := range sources {
		at := p.Index(i)
		if s.Prefix != "" {
			l.each(at.Child("prefix"), s.Prefix, validation.IsRelaxedEnvVarName(s.Prefix))
		}
		switch {
		case s.ConfigMapRef == nil && s.SecretRef == nil:
			l.invalid(at, "", "must specify one of: `configMapRef` or `secretRef`")
		case s.ConfigMapRef != nil && s.SecretRef != nil:
			l.invalid(at, "", "may not have more than one field specified at a time")
		case s.ConfigMapRef != nil:
			subdomain(l, at.Child("configMapRef", "name"), s.ConfigMapRef.Name)
		default:
			subdomain(l, at.Child("secretRef", "name"), s.SecretRef.Name)
		}
	}
}

func (l *list) keyRef(name, key string, p *field.Path) {
	subdomain(l, p.Child("name"), name)
	if key == "" {
		l.required(p.Child("key"), "")
	} else {
		l.each(p.Child("key"), key, validation.IsConfigMapKey(key))
	}
}

// The fields of a pod that the downward API offers in variables and in files.
var (
	envFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
		"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"}
	fileFields = []string{"metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations",
		"metadata.uid"}
	resourceFields = []string{"limits.cpu", "limits.ephemeral-storage", "limits.memory",
		"requests.cpu", "requests.ephemeral-storage", "requests.memory"}
	oneLabel = regexp.MustCompile(`^metadata\.(labels|annotations)\['(.*)'\]$`)
)

func (l *list) fieldRef(f *corev1.ObjectFieldSelector, p *field.Path, known []string) {
	switch m := oneLabel.FindStringSubmatch(f.FieldPath); {
	case f.APIVersion != "v1":
		l.errs = append(l.errs, field.NotSupported(p.Child("apiVersion"), f.APIVersion, []string{"v1"}))
	case m != nil:
		key := m[2]
		if m[1] == "annotations" {
			key = strings.ToLower(key)
		}
		l.all(metavalidation.ValidateLabelName(key, p.Child("fieldPath")))
	default:
		oneOf(l, p.Child("fieldPath"), f.FieldPath, known...)
	}
}

func (l *list) resourceRef(f *corev1.ResourceFieldSelector, p *field.Path, ofFile bool) {
	if ofFile && f.ContainerName == "" {
		l.required(p.Child("containerName"), "")
	}
	oneOf(l, p.Child("resource"), f.Resource, resourceFields...)
	if f.Divisor.Sign() < 0 {
		l.invalid(p.Child("divisor"), f.Divisor.String(), "must be greater than or equal to 0")
	}
}
