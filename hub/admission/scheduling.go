package admission

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var taintEffects = []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule,
	corev1.TaintEffectNoExecute}

// Limits of a pod's placement rules and selectors, because the single writer evaluates them for
// each node and each pod. Kubernetes has no such limits, but its scheduler does not block other
// writes.
const (
	maxRequirements = 256
	maxScheduling   = 512
)

// requirements returns the number of requirements and values in a selector.
func requirements(s *metav1.LabelSelector) (n int) {
	if s == nil {
		return 0
	}
	for _, r := range s.MatchExpressions {
		n += max(len(r.Values), 1)
	}
	return n + len(s.MatchLabels)
}

// placementTerms returns the number of terms in a pod's placement rules.
func placementTerms(s *corev1.PodSpec) (n int) {
	n = len(s.NodeSelector) + len(s.Tolerations)
	for _, c := range s.TopologySpreadConstraints {
		n += 1 + requirements(c.LabelSelector) + len(c.MatchLabelKeys)
	}
	a := s.Affinity
	if a == nil {
		return n
	}
	node := func(t corev1.NodeSelectorTerm) {
		n++ // the term and its first matchField, which is the node's name
		for _, r := range t.MatchExpressions {
			n += max(len(r.Values), 1)
		}
		n += max(len(t.MatchFields)-1, 0)
	}
	pod := func(t corev1.PodAffinityTerm) {
		n += 1 + requirements(t.LabelSelector) + requirements(t.NamespaceSelector) + len(t.Namespaces) +
			len(t.MatchLabelKeys) + len(t.MismatchLabelKeys)
	}
	pods := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for _, t := range required {
			pod(t)
		}
		for _, t := range preferred {
			pod(t.PodAffinityTerm)
		}
	}
	if a := a.NodeAffinity; a != nil {
		if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for _, t := range r.NodeSelectorTerms {
				node(t)
			}
		}
		for _, t := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			node(t.Preference)
		}
	}
	if a := a.PodAffinity; a != nil {
		pods(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := a.PodAntiAffinity; a != nil {
		pods(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return n
}

// scheduling checks a pod's placement rules.
func (l *list) scheduling(s *corev1.PodSpec, p *field.Path) {
	if n := placementTerms(s); n > maxScheduling {
		l.forbidden(p, fmt.Sprintf("its nodeSelector, tolerations, topologySpreadConstraints and affinity have %d "+
			"terms, requirements and values, but at most %d are allowed: use a label that selects the same", n, maxScheduling))
		return
	}
	l.all(metavalidation.ValidateLabels(s.NodeSelector, p.Child("nodeSelector")))
	for i, t := range s.Tolerations {
		l.toleration(t, p.Child("tolerations").Index(i))
	}
	l.spread(s.TopologySpreadConstraints, p.Child("topologySpreadConstraints"))
	l.gates(s, p)
	if s.Affinity == nil {
		return
	}
	p = p.Child("affinity")
	if a := s.Affinity.NodeAffinity; a != nil {
		at := p.Child("nodeAffinity")
		if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			at := at.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
			if len(r.NodeSelectorTerms) == 0 {
				l.required(at, "must have at least one node selector term")
			}
			for i, t := range r.NodeSelectorTerms {
				l.nodeTerm(t, at.Index(i))
			}
		}
		for i, t := range a.PreferredDuringSchedulingIgnoredDuringExecution {
			at := at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
			l.weight(t.Weight, at)
			l.nodeTerm(t.Preference, at.Child("preference"))
		}
	}
	if a := s.Affinity.PodAffinity; a != nil {
		l.podTerms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			p.Child("podAffinity"))
	}
	if a := s.Affinity.PodAntiAffinity; a != nil {
		l.podTerms(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution,
			p.Child("podAntiAffinity"))
	}
}

// gates checks scheduling gates and readiness gates.
func (l *list) gates(s *corev1.PodSpec, p *field.Path) {
	seen := map[string]bool{}
	for i, g := range s.SchedulingGates {
		at := p.Child("schedulingGates").Index(i)
		l.all(metavalidation.ValidateLabelName(g.Name, at.Child("name")))
		if seen[g.Name] {
			l.duplicate(at, g.Name)
		}
		seen[g.Name] = true
	}
	if len(s.SchedulingGates) > 0 && s.NodeName != "" {
		l.forbidden(p.Child("nodeName"), "cannot be set until all schedulingGates have been cleared")
	}
	for i, g := range s.ReadinessGates {
		l.all(metavalidation.ValidateLabelName(string(g.ConditionType),
			p.Child("readinessGates").Index(i).Child("conditionType")))
	}
}

func (l *list) weight(w int32, p *field.Path) {
	if w < 1 || w > 100 {
		l.invalid(p.Child("weight"), w, "must be in the range 1-100")
	}
}

func (l *list) toleration(t corev1.Toleration, p *field.Path) {
	if t.Key != "" {
		l.all(metavalidation.ValidateLabelName(t.Key, p.Child("key")))
	} else if t.Operator != corev1.TolerationOpExists {
		l.invalid(p.Child("operator"), t.Operator,
			"operator must be Exists when `key` is empty, which means \"match all values and all keys\"")
	}
	if t.TolerationSeconds != nil && t.Effect != corev1.TaintEffectNoExecute {
		l.invalid(p.Child("effect"), t.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
	}
	switch t.Operator {
	case corev1.TolerationOpEqual, "":
		l.each(p.Child("operator"), t.Value, validation.IsValidLabelValue(t.Value))
	case corev1.TolerationOpExists:
		if t.Value != "" {
			l.invalid(p.Child("operator"), t.Value, "value must be empty when `operator` is 'Exists'")
		}
	default:
		l.errs = append(l.errs, field.NotSupported(p.Child("operator"), t.Operator,
			[]corev1.TolerationOperator{corev1.TolerationOpEqual, corev1.TolerationOpExists}))
	}
	if t.Effect != "" {
		oneOf(l, p.Child("effect"), t.Effect, taintEffects...)
	}
}

func (l *list) spread(constraints []corev1.TopologySpreadConstraint, p *field.Path) {
	seen := map[string]bool{}
	for i, c := range constraints {
		at := p.Index(i)
		l.atLeast(at.Child("maxSkew"), int64(c.MaxSkew), 1)
		if c.TopologyKey == "" {
			l.required(at.Child("topologyKey"), "can not be empty")
		}
		oneOf(l, at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, corev1.DoNotSchedule, corev1.ScheduleAnyway)
		key := "{" + c.TopologyKey + ", " + string(c.WhenUnsatisfiable) + "}"
		if seen[key] {
			l.duplicate(at.Child("{topologyKey, whenUnsatisfiable}"), key)
		}
		seen[key] = true
		l.selector(c.LabelSelector, at.Child("labelSelector"))
		l.labelKeys(c.LabelSelector, c.MatchLabelKeys, nil, at)
		if m := c.MinDomains; m != nil {
			l.atLeast(at.Child("minDomains"), int64(*m), 1)
			if c.WhenUnsatisfiable != corev1.DoNotSchedule {
				l.invalid(at.Child("minDomains"), *m, "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not "+
					string(c.WhenUnsatisfiable))
			}
		}
		if v := c.NodeAffinityPolicy; v != nil {
			oneOf(l, at.Child("nodeAffinityPolicy"), *v, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		}
		if v := c.NodeTaintsPolicy; v != nil {
			oneOf(l, at.Child("nodeTaintsPolicy"), *v, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore)
		}
	}
}

// labelKeys checks matchLabelKeys and mismatchLabelKeys. A key of matchLabelKeys may not be in the
// selector.
func (l *list) labelKeys(s *metav1.LabelSelector, match, mismatch []string, p *field.Path) {
	names := func(keys []string, p *field.Path) {
		if len(keys) > 0 && s == nil {
			l.forbidden(p, "must not be specified when labelSelector is not set")
			return
		}
		for i, key := range keys {
			l.all(metavalidation.ValidateLabelName(key, p.Index(i)))
		}
	}
	names(match, p.Child("matchLabelKeys"))
	names(mismatch, p.Child("mismatchLabelKeys"))
	for i, key := range match {
		at := p.Child("matchLabelKeys").Index(i)
		if s != nil && (s.MatchLabels[key] != "" ||
			slices.ContainsFunc(s.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool {
				return r.Key == key
			})) {
			l.invalid(at, key, "exists in both matchLabelKeys and labelSelector")
		}
		if slices.Contains(mismatch, key) {
			l.invalid(at, key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

func (l *list) nodeTerm(t corev1.NodeSelectorTerm, p *field.Path) {
	for i, r := range t.MatchExpressions {
		at := p.Child("matchExpressions").Index(i)
		switch r.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			if len(r.Values) == 0 {
				l.required(at.Child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
			}
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			if len(r.Values) > 0 {
				l.forbidden(at.Child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
			}
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			if len(r.Values) != 1 {
				l.required(at.Child("values"), "must be specified single value when `operator` is 'Lt' or 'Gt'")
			}
		default:
			l.invalid(at.Child("operator"), r.Operator, "not a valid selector operator")
		}
		l.all(metavalidation.ValidateLabelName(r.Key, at.Child("key")))
		for j, v := range r.Values {
			l.each(at.Child("values").Index(j), v, validation.IsValidLabelValue(v))
		}
	}
	for i, r := range t.MatchFields {
		at := p.Child("matchFields").Index(i)
		if r.Operator != corev1.NodeSelectorOpIn && r.Operator != corev1.NodeSelectorOpNotIn {
			l.invalid(at.Child("operator"), r.Operator, "not a valid selector operator")
		} else if len(r.Values) != 1 {
			l.required(at.Child("values"), "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		}
		if r.Key != metav1.ObjectNameField {
			l.invalid(at.Child("key"), r.Key, "not a valid field selector key")
		}
	}
}

func (l *list) podTerms(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, p *field.Path) {
	for i, t := range required {
		l.podTerm(t, p.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i))
	}
	for i, t := range preferred {
		at := p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i)
		l.weight(t.Weight, at)
		l.podTerm(t.PodAffinityTerm, at.Child("podAffinityTerm"))
	}
}

func (l *list) podTerm(t corev1.PodAffinityTerm, p *field.Path) {
	l.selector(t.LabelSelector, p.Child("labelSelector"))
	l.selector(t.NamespaceSelector, p.Child("namespaceSelector"))
	for _, name := range t.Namespaces {
		label(l, p.Child("namespace"), name)
	}
	if t.TopologyKey == "" {
		l.required(p.Child("topologyKey"), "can not be empty")
	}
	l.all(metavalidation.ValidateLabelName(t.TopologyKey, p.Child("topologyKey")))
	l.labelKeys(t.LabelSelector, t.MatchLabelKeys, t.MismatchLabelKeys, p)
}

func (l *list) selector(s *metav1.LabelSelector, p *field.Path) {
	if n := requirements(s); n > maxRequirements {
		l.forbidden(p, fmt.Sprintf(
			"it has %d requirements and values, but at most %d are allowed: use a label that selects the same", n,
			maxRequirements))
		return
	}
	l.all(metavalidation.ValidateLabelSelector(s, metavalidation.LabelSelectorValidationOptions{}, p))
}

// taints checks the taints of a node or of a board profile.
func (l *list) taints(taints []corev1.Taint, p *field.Path) {
	seen := map[string]bool{}
	for i, t := range taints {
		at := p.Index(i)
		l.all(metavalidation.ValidateLabelName(t.Key, at.Child("key")))
		l.each(at.Child("value"), t.Value, validation.IsValidLabelValue(t.Value))
		oneOf(l, at.Child("effect"), t.Effect, taintEffects...)
		if id := t.Key + ":" + string(t.Effect); seen[id] {
			err := field.Duplicate(at, t)
			err.Detail = "taints must be unique by key and effect pair"
			l.errs = append(l.errs, err)
		} else {
			seen[id] = true
		}
	}
}
