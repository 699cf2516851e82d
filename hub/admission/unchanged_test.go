package admission

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
)

// An unchanged pod spec may violate newer rules. It does not block other changes of its object,
// such as labels, finalizers and replicas.
func TestAnUnchangedPodSpecDoesNotBlockChanges(t *testing.T) {
	refused := map[string]func(*corev1.PodSpec){
		"an invalid hostname": func(s *corev1.PodSpec) { s.Hostname = "task.north-0" },
		"too many tolerations": func(s *corev1.PodSpec) {
			for i := range 2 * maxScheduling {
				s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: "k" + strings.Repeat("x", i%50),
					Operator: corev1.TolerationOpExists})
			}
		},
		"an unknown pull policy":          func(s *corev1.PodSpec) { s.Containers[0].ImagePullPolicy = "Sometimes" },
		"a variable with an invalid name": func(s *corev1.PodSpec) { s.Containers[0].Env = []corev1.EnvVar{{Name: "a=b"}} },
	}
	for _, kind := range state.Kinds() {
		if r := kind.Row(); samples[kind] == "" || r.Pod == nil && r.Template == nil {
			continue
		}
		o := sample(t, kind)
		if state.PodSpecOf(o) == nil {
			continue
		}
		for name, spoil := range refused {
			t.Run(string(kind)+": "+name, func(t *testing.T) {
				was := o.DeepCopyObject().(state.Object)
				Default(was, normal)
				was.SetFinalizers([]string{"example.org/finalizer"})
				was.SetResourceVersion("7")
				spoil(state.PodSpecOf(was))
				if errs := Validate(was.DeepCopyObject().(state.Object), normal); len(errs) == 0 {
					t.Skip("the kind allows this pod spec")
				}
				is := was.DeepCopyObject().(state.Object)
				is.SetFinalizers(nil)
				is.SetLabels(map[string]string{"app": "kiosk", "seen": "yes"})
				if _, errs := Admit(is, was, normal); len(errs) > 0 {
					t.Errorf("finalizers and labels cannot change: %v", errs.ToAggregate())
				}
				state.PodSpecOf(is).Containers[0].Image = "other:2"
				if _, errs := Admit(is, was, normal); len(errs) == 0 {
					t.Error("a changed pod spec is not validated")
				}
			})
		}
	}
}

// A rule about another field that depends on the pod spec still applies.
func TestRulesThatDependOnAnUnchangedPodSpecApply(t *testing.T) {
	was := parse[*batchv1.Job](t, aJob)
	Default(was, normal)
	was.Spec.Template.Spec.Hostname = "task.north-0"
	is := was.DeepCopy()
	is.Spec.Parallelism = new(int32(-1))
	if _, errs := Admit(is, was, normal); errs.ToAggregate() == nil || !strings.Contains(errs.ToAggregate().Error(),
		"spec.parallelism") {
		t.Error(errs.ToAggregate())
	}
}

// A new failure policy that conflicts with the unchanged pod spec is refused, because a CronJob
// with both could create no Job.
func TestANewRuleMustFitAnUnchangedPodSpec(t *testing.T) {
	was := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "@daily"}}
	was.Name, was.Namespace, was.ResourceVersion = "c", "shop", "7"
	was.Spec.JobTemplate.Spec = parse[*batchv1.Job](t, strings.Replace(aJob, "Never", "OnFailure", 1)).Spec
	Default(was, normal)
	for name, add := range map[string]func(*batchv1.JobSpec){
		"podFailurePolicy": func(s *batchv1.JobSpec) {
			s.PodReplacementPolicy = new(batchv1.Failed)
			s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionIgnore,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn,
					Values: []int32{3}},
			}}}
		},
		"backoffLimitPerIndex": func(s *batchv1.JobSpec) {
			s.CompletionMode, s.Completions, s.BackoffLimitPerIndex = new(batchv1.IndexedCompletion), new(int32(2)),
				new(int32(1))
		},
	} {
		is := was.DeepCopy()
		add(&is.Spec.JobTemplate.Spec)
		_, errs := Admit(is, was, normal)
		if got := errs.ToAggregate(); got == nil || !strings.Contains(got.Error(), "spec.jobTemplate.spec."+name) ||
			!strings.Contains(got.Error(), `"Never"`) {
			t.Errorf("%s with restartPolicy OnFailure: %v, want an error that names Never", name, got)
		}
		is.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		if _, errs := Admit(is, was, normal); len(errs) > 0 {
			t.Errorf("%s with restartPolicy Never: %v", name, errs.ToAggregate())
		}
	}
}
