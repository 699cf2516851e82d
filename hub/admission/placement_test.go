package admission

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

// The placement rules of a pod are limited, because the single writer evaluates them for each node
// and pod. Three megabytes of affinities would take ten seconds with two hundred nodes.
func TestPlacementRulesAreLimited(t *testing.T) {
	selector := func(n int) *metav1.LabelSelector {
		s := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"},
			MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "e", Operator: metav1.LabelSelectorOpExists}}}
		if n > 2 {
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: "v",
				Operator: metav1.LabelSelectorOpIn, Values: numbered(n - 2)})
		}
		return s
	}
	node := func(n int) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "v",
			Operator: corev1.NodeSelectorOpIn, Values: numbered(n - 1)}}}
	}
	near := func(n int) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{TopologyKey: "zone", LabelSelector: selector(200), NamespaceSelector: selector(200),
			Namespaces: numbered(n - 401)}
	}
	for name, set := range map[string]func(s *corev1.PodSpec, n int){
		"nodeSelector": func(s *corev1.PodSpec, n int) {
			s.NodeSelector = map[string]string{}
			for _, k := range numbered(n) {
				s.NodeSelector[k] = "x"
			}
		},
		"tolerations": func(s *corev1.PodSpec, n int) {
			s.Tolerations = nil
			for _, k := range numbered(n) {
				s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists})
			}
		},
		"spread": func(s *corev1.PodSpec, n int) {
			for _, k := range numbered(n / 256) {
				s.TopologySpreadConstraints = append(s.TopologySpreadConstraints, corev1.TopologySpreadConstraint{MaxSkew: 1,
					TopologyKey: k, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector(255)})
			}
			if n%256 > 0 {
				s.NodeSelector = map[string]string{"a": "b"}
			}
		},
		"required nodes": func(s *corev1.PodSpec, n int) {
			s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{node(n / 2), node(n - n/2)}}}}
		},
		"preferred nodes": func(s *corev1.PodSpec, n int) {
			s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1, Preference: node(n)}}}}
		},
		"required affinity": func(s *corev1.PodSpec, n int) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{near(n)}}}
		},
		"preferred affinity": func(s *corev1.PodSpec, n int) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: near(n)}}}}
		},
		"required anti-affinity": func(s *corev1.PodSpec, n int) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{near(n)}}}
		},
		"preferred anti-affinity": func(s *corev1.PodSpec, n int) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 1, PodAffinityTerm: near(n)}}}}
		},
	} {
		for n, refused := range map[int]bool{maxScheduling: false, maxScheduling + 1: true} {
			d := sample(t, state.Deployments).(*appsv1.Deployment)
			d.Spec.Template.Spec.Tolerations, d.Spec.Template.Spec.NodeSelector, d.Spec.Template.Spec.Affinity = nil, nil, nil
			set(&d.Spec.Template.Spec, n)
			got := messages(Validate(d, normal))
			if has := slices.ContainsFunc(got, func(m string) bool {
				return strings.Contains(m,
					"are allowed")
			}); has != refused || !refused && len(got) > 0 {
				t.Errorf("%s with %d terms: errors %.300q, want refused: %t", name, n, got, refused)
			}
		}
	}
	for n, refused := range map[int]bool{maxRequirements: false, maxRequirements + 1: true} {
		b := sample(t, state.PodDisruptionBudgets).(*policyv1.PodDisruptionBudget)
		b.Spec.Selector = selector(n)
		if got := messages(Validate(b, normal)); (len(got) > 0) != refused {
			t.Errorf("a selector with %d requirements: errors %.300q, want refused: %t", n, got, refused)
		}
	}
}

func numbered(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint("x", i))
	}
	return out
}
