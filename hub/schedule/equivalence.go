package schedule

import (
	"encoding/json"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	schedcorev1 "k8s.io/component-helpers/scheduling/corev1"
)

// equivalenceKey returns the same key for pods that every node treats alike. The key has every
// field of a pod that a filter or score reads. It is computed for every pending pod at each change
// of a node, so it allocates only the key.
func equivalenceKey(pod *corev1.Pod) string {
	b := make(words, 0, 1024)
	b.say(pod.Namespace)
	b.pairs(pod.Labels)
	b.pairs(pod.Spec.NodeSelector)
	b.number(int64(len(pod.Spec.Tolerations)))
	for i := range pod.Spec.Tolerations {
		t := &pod.Spec.Tolerations[i]
		b.say(t.Key)
		b.say(string(t.Operator))
		b.say(t.Value)
		b.say(string(t.Effect))
	}
	b.number(int64(schedcorev1.PodPriority(pod)))
	never := pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever
	b.say(strconv.FormatBool(never))
	for _, list := range [2][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		b.number(int64(len(list)))
		for i := range list {
			c := &list[i]
			b.say(c.Image)
			b.list(c.Resources.Requests)
			b.number(int64(len(c.Ports)))
			for j := range c.Ports {
				b.say(c.Ports[j].HostIP)
				b.say(string(c.Ports[j].Protocol))
				b.number(int64(c.Ports[j].HostPort))
			}
			policy := corev1.ContainerRestartPolicy("")
			if c.RestartPolicy != nil {
				policy = *c.RestartPolicy
			}
			b.say(string(policy))
		}
	}
	b.list(pod.Spec.Overhead)
	if pod.Spec.Resources != nil {
		b.list(pod.Spec.Resources.Requests)
	}
	if pod.Spec.Affinity != nil || len(pod.Spec.TopologySpreadConstraints) > 0 {
		raw, _ := json.Marshal([]any{pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints})
		b = append(b, raw...)
	}
	return string(b)
}

// words encodes lists so that different lists have different encodings.
type words []byte

func (b *words) number(n int64) { *b = append(strconv.AppendInt(*b, n, 10), ';') }

func (b *words) say(w string) {
	*b = append(strconv.AppendInt(*b, int64(len(w)), 10), ':')
	*b = append(*b, w...)
}

func (b *words) pairs(m map[string]string) {
	keys := make([]string, 0, 16)
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	b.number(int64(len(keys)))
	for _, k := range keys {
		b.say(k)
		b.say(m[k])
	}
}

func (b *words) list(m corev1.ResourceList) {
	names := make([]corev1.ResourceName, 0, 8)
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	b.number(int64(len(names)))
	for _, name := range names {
		b.say(string(name))
		q, number := m[name], make([]byte, 0, 32)
		amount, suffix := q.CanonicalizeBytes(number)
		*b = append(append(append(*b, amount...), suffix...), ';')
	}
}
