package agent

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/shared/policy"
)

// A Policy is what the owner of a device lets the hub run on it. The hub cannot
// change it. Its zero value allows nothing that reaches out of a container, and DefaultPolicy only host
// ports.
type Policy struct{ policy.Document }

// DefaultPolicy is the policy of a device whose owner has written none.
func DefaultPolicy() Policy { return Policy{policy.Default()} }

// ParsePolicy reads a policy file.
func ParsePolicy(body []byte) (Policy, error) {
	d, err := policy.Parse(body)
	return Policy{d}, err
}

// Forbids returns the sentence why a pod may not run here; empty if it may. Of its ephemeral containers
// each is asked for alone: see forbidsEphemeral.
func (p Policy) Forbids(pod *corev1.Pod) string {
	spec := pod.Spec
	spec.EphemeralContainers = nil
	return p.forbids(&spec, "spec")
}

// forbids speaks of what stands below a field.
func (p Policy) forbids(spec *corev1.PodSpec, below string) string {
	var why []string
	allowable := false
	for _, r := range p.Judge(spec, field.NewPath("spec")) {
		s := r.Field.String() + ": " + r.Why
		if !strings.HasPrefix(s, below) {
			continue
		}
		if r.Allow != "" {
			allowable = true
			s += " (" + r.Allow + ")"
		}
		why = append(why, s)
	}
	if len(why) == 0 {
		return ""
	}
	if !allowable {
		return strings.Join(why, "; ")
	}
	return strings.Join(why, "; ") + "; this device's policy forbids it, and its owner can allow it in the file given with --policy"
}

func capability(name string) string { return policy.Capability(name) }

// imageOf is the name by which the engine is asked for an image. Where the policy
// says anything of images it is the whole one, because engines take a short name or
// an id for what the policy has not looked at.
func (p Policy) imageOf(image string) string {
	if p.JudgesImages() {
		if whole, err := policy.Canonical(image); err == nil {
			return whole
		}
	}
	return image
}
