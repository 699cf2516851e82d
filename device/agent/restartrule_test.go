package agent

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine/enginetest"
)

// A container's rules have priority over its restart policy, which has priority over the pod's
// (KEP-5307).
func TestAContainersRestartPolicyAndRules(t *testing.T) {
	const always, never, onFailure = corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever,
		corev1.ContainerRestartPolicyOnFailure
	in := func(codes ...int32) corev1.ContainerRestartRule {
		return corev1.ContainerRestartRule{Action: corev1.ContainerRestartRuleActionRestart,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn,
				Values: codes}}
	}
	not := func(codes ...int32) corev1.ContainerRestartRule {
		r := in(codes...)
		r.ExitCodes.Operator = corev1.ContainerRestartRuleOnExitCodesOpNotIn
		return r
	}
	for _, c := range []struct {
		pod       corev1.RestartPolicy
		own       corev1.ContainerRestartPolicy
		rules     []corev1.ContainerRestartRule
		exit      int
		restarted bool
		asInit    bool
		phase     corev1.PodPhase // phase of the pod, whose only app or init container is this one
	}{
		{pod: corev1.RestartPolicyNever, own: always, exit: 0, restarted: true, phase: corev1.PodRunning},
		{pod: corev1.RestartPolicyNever, own: onFailure, exit: 0, phase: corev1.PodSucceeded},
		{pod: corev1.RestartPolicyNever, own: onFailure, exit: 1, restarted: true, phase: corev1.PodRunning},
		{pod: corev1.RestartPolicyAlways, own: never, exit: 0, phase: corev1.PodSucceeded},
		{pod: corev1.RestartPolicyAlways, own: never, exit: 3, phase: corev1.PodFailed},
		{pod: corev1.RestartPolicyAlways, own: never, rules: []corev1.ContainerRestartRule{in(42)}, exit: 42, restarted: true, phase: corev1.PodRunning},
		{pod: corev1.RestartPolicyAlways, own: never, rules: []corev1.ContainerRestartRule{in(42)}, exit: 43, phase: corev1.PodFailed},
		{pod: corev1.RestartPolicyNever, own: never, rules: []corev1.ContainerRestartRule{not(0, 1)}, exit: 2, restarted: true, phase: corev1.PodRunning},
		{pod: corev1.RestartPolicyNever, own: never, rules: []corev1.ContainerRestartRule{not(0, 1)}, exit: 1, phase: corev1.PodFailed},
		{pod: corev1.RestartPolicyNever, own: never, rules: []corev1.ContainerRestartRule{in(7), in(9)}, exit: 9, restarted: true, phase: corev1.PodRunning},
		{pod: corev1.RestartPolicyAlways, own: never, exit: 1, asInit: true, phase: corev1.PodFailed},
		{pod: corev1.RestartPolicyNever, own: onFailure, exit: 1, asInit: true, restarted: true, phase: corev1.PodPending},
		{pod: corev1.RestartPolicyNever, own: never, rules: []corev1.ContainerRestartRule{in(1)}, exit: 1, asInit: true, restarted: true, phase: corev1.PodPending},
		{pod: corev1.RestartPolicyNever, own: never, rules: []corev1.ContainerRestartRule{in(1)}, exit: 2, asInit: true, phase: corev1.PodFailed},
	} {
		t.Run(fmt.Sprintf("pod policy %s, container policy %s, %d rules, exit code %d, init %v", c.pod, c.own,
			len(c.rules), c.exit, c.asInit),
			func(t *testing.T) {
				bubble(t, func(t *testing.T, d *device) {
					p := makePod("job", fmt.Sprintf("exit %d", c.exit))
					p.Spec.RestartPolicy = c.pod
					its := &p.Spec.Containers[0]
					if c.asInit {
						p = makePod("job", "wait")
						p.Spec.RestartPolicy = c.pod
						p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: enginetest.ToolImage,
							Args: []string{"exit", fmt.Sprint(c.exit)}}}
						its = &p.Spec.InitContainers[0]
					}
					its.RestartPolicy, its.RestartPolicyRules = &c.own, c.rules
					d.desire(1, p)
					time.Sleep(time.Minute)
					st := d.wantPhase("job", c.phase, "")
					all := st.ContainerStatuses
					if c.asInit {
						all = st.InitContainerStatuses
					}
					if restarted := all[0].RestartCount > 0; restarted != c.restarted {
						t.Errorf("the container was restarted %d times", all[0].RestartCount)
					}
					// a restarted agent makes the same decision
					d.end()
					d.start()
					time.Sleep(time.Minute)
					d.wantPhase("job", c.phase, "")
				})
			})
	}
}
