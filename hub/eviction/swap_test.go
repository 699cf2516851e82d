package eviction_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
)

// The taints not-ready and unreachable replace each other as in Kubernetes' taint manager.
func TestNotReadyAndUnreachableReplaceEachOther(t *testing.T) {
	const (
		never = time.Duration(-1)
		now   = time.Duration(0)
		sick  = corev1.TaintNodeNotReady
		dark  = corev1.TaintNodeUnreachable
	)
	forever := func(keys ...string) (out []corev1.Toleration) {
		for _, key := range keys {
			out = append(out, tolerate(key))
		}
		return out
	}
	for _, tt := range []struct {
		name        string
		keys        []string // keys of the taints in order, each for 100 s; the last one stays
		bound       time.Duration
		tolerations []corev1.Toleration
		want        time.Duration // time of the eviction since the first taint
	}{
		{"tolerated for 300 s and 300 s: 300 s after the first taint", []string{sick, dark}, 0, []corev1.Toleration{tolerate(sick, 300), tolerate(dark, 300)}, 300 * time.Second},
		{"180 s, then 30 s: the running deadline is not shortened", []string{sick, dark}, 0, []corev1.Toleration{tolerate(sick, 180), tolerate(dark, 30)}, 180 * time.Second},
		{"180 s, then 0 s: the running deadline is not shortened", []string{sick, dark}, 0, []corev1.Toleration{tolerate(sick, 180), tolerate(dark, 0)}, 180 * time.Second},
		{"180 s, then 900 s: the running deadline is not restarted", []string{sick, dark}, 0, []corev1.Toleration{tolerate(sick, 180), tolerate(dark, 900)}, 180 * time.Second},
		{"180 s, then for ever: the deadline ends", []string{sick, dark}, 0, append(forever(dark), tolerate(sick, 180)), never},
		{"unreachable for 180 s, then not-ready for ever: the deadline ends", []string{dark, sick}, 0, append(forever(sick), tolerate(dark, 180)), never},
		{"180 s, for ever, then 180 s again: from the third taint", []string{sick, dark, sick}, 0, append(forever(dark), tolerate(sick, 180)), 380 * time.Second},
		{"for ever, then 180 s: from the second taint", []string{sick, dark}, 0, append(forever(sick), tolerate(dark, 180)), 280 * time.Second},
		{"180 s, then not tolerated: at the replacement", []string{sick, dark}, 0, []corev1.Toleration{tolerate(sick, 180)}, now},
		{"for ever, then not tolerated: at the replacement", []string{sick, dark}, 0, forever(sick), now},
		{"many replacements, 300 s: from the first taint", []string{sick, dark, sick, dark, sick, dark, sick, dark, sick, dark, sick, dark}, 0, []corev1.Toleration{tolerate(sick, 9000), tolerate(dark, 9000)}, 9000 * time.Second},
		{"many replacements, one tolerated for ever: from the last taint", []string{dark, sick, dark, sick, dark, sick, dark, sick, dark, sick, dark, sick}, 0, append(forever(dark), tolerate(sick, 180)), 1280 * time.Second},
		{"for a pod bound under the second taint the first does not count", []string{sick, dark}, 150 * time.Second, []corev1.Toleration{tolerate(sick, 180), tolerate(dark, 30)}, 180 * time.Second},
		{"a user's taint has its own deadline", []string{sick, "mine"}, 0, []corev1.Toleration{tolerate(sick, 180), tolerate("mine", 30)}, 130 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := &corev1.Node{}
			outage := &state.Outage{Since: metav1.NewMicroTime(noon)}
			for i, key := range tt.keys {
				from := time.Duration(i) * 100 * time.Second
				if i == len(tt.keys)-1 || tt.keys[i+1] == "mine" {
					n.Spec.Taints = append(n.Spec.Taints, taint(key, corev1.TaintEffectNoExecute, from))
				} else {
					outage.TaintPeriods = append(outage.TaintPeriods,
						state.TaintPeriod{Key: key, From: metav1.NewTime(noon.Add(from)),
							To: metav1.NewTime(noon.Add(from + 100*time.Second))})
				}
				state.SetOutage(n, outage) // in its stored form
				outage = state.OutageOf(n)
			}
			p := pod("pi-1", tt.tolerations...)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(noon.Add(tt.bound))}}
			got := eviction.LeaveBy(n, p)
			if got.Must != (tt.want != never) || got.Must && max(got.At.Sub(noon), 0) != tt.want {
				t.Errorf("%+v, %s after the first taint; want %s", got, got.At.Sub(noon), tt.want)
			}
		})
	}
}
