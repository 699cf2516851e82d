package admission

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (l *list) runtimeClass(c *nodev1.RuntimeClass) {
	if c.Handler == "" {
		l.required(field.NewPath("handler"), "")
	} else if errs := validation.IsDNS1123Label(c.Handler); errs != nil {
		l.invalid(field.NewPath("handler"), c.Handler, strings.Join(errs, "; "))
	}
	if c.Overhead != nil {
		for name := range c.Overhead.PodFixed {
			at := field.NewPath("overhead", "podFixed").Key(string(name))
			if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
				l.forbidden(at, "is not supported: a runtime takes cpu, memory or ephemeral-storage")
				continue
			}
			l.resource(name, c.Overhead.PodFixed, at)
		}
	}
	if s := c.Scheduling; s != nil {
		at := field.NewPath("scheduling")
		l.all(metavalidation.ValidateLabels(s.NodeSelector, at.Child("nodeSelector")))
		for i, t := range s.Tolerations {
			l.toleration(t, at.Child("tolerations").Index(i))
		}
	}
}
