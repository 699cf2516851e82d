package state

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The node must not give away resources that a pod still uses. An infeasible request does not count.
func TestAResizingPodCountsItsLargestResources(t *testing.T) {
	cpu := func(v string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(v)}
	}
	for _, c := range []struct {
		name, want, granted, has string
		pending                  string
		counts                   string
	}{
		{"not resized", "2", "2", "2", "", "2"},
		{"growing, not granted", "3", "2", "2", "", "3"},
		{"growing, deferred", "3", "2", "2", corev1.PodReasonDeferred, "3"},
		{"growing, infeasible", "3", "2", "2", corev1.PodReasonInfeasible, "2"},
		{"growing, granted", "3", "3", "2", "", "3"},
		{"shrinking, not granted", "1", "2", "2", "", "2"},
		{"shrinking, granted", "1", "1", "2", "", "2"},
		{"shrunk", "1", "1", "1", "", "1"},
		{"an old agent reports no resources", "1", "", "", "", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &corev1.Pod{Spec: corev1.PodSpec{
				NodeName: "pi", Containers: []corev1.Container{{
					Name: "a", Resources: corev1.ResourceRequirements{Requests: cpu(c.want)},
				}},
			}}
			st := corev1.ContainerStatus{Name: "a"}
			if c.granted != "" {
				st.AllocatedResources, st.Resources = cpu(c.granted), &corev1.ResourceRequirements{Requests: cpu(c.has)}
			}
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{st}}
			if c.pending != "" {
				p.Status.Conditions = []corev1.PodCondition{{
					Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: c.pending,
				}}
			}
			p.Name, p.Namespace = "p", "default"
			before := p.DeepCopy()
			before.Spec.Containers[0].Resources.Requests = cpu("500m")
			before.Status.ContainerStatuses = nil
			s, _ := Apply(Empty("hub", p.CreationTimestamp.Time), []Change{Put(before, "")})
			s, _ = Apply(s, []Change{Put(p, "")})
			u := s.Usage("pi")
			if got := u.Requests.Cpu().String(); got != c.counts {
				t.Errorf("the node's usage is %s, want %s", got, c.counts)
			}
			done := p.DeepCopy()
			done.Status.ContainerStatuses[0].AllocatedResources, done.Status.ContainerStatuses[0].Resources = cpu(c.want),
				&corev1.ResourceRequirements{Requests: cpu(c.want)}
			s, _ = Apply(s, []Change{Put(done, "")})
			u = s.Usage("pi")
			if got := u.Requests.Cpu().String(); got != c.want {
				t.Errorf("after the resize the node's usage is %s, want %s", got, c.want)
			}
		})
	}
}
