package admission

import (
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const aJob = "metadata: {name: j, namespace: shop}\nspec:\n  template: {spec: {restartPolicy: Never, containers: [{name: c, image: 'kiosk:1'}]}}\n"

// The error names the invalid field, in Kubernetes' words.
func TestAJobIsRefusedByItsField(t *testing.T) {
	for lines, want := range map[string]string{
		"parallelism: -1":                                         "spec.parallelism: Invalid value: -1",
		"completionMode: Indexed":                                 "", // completions is 1 by default
		"{completionMode: Indexed, parallelism: 2}":               "spec.completions: Required value",
		"{completionMode: Indexed, completions: 100001}":          "spec.completions: Invalid value: 100001",
		"completionMode: Sorted":                                  "spec.completionMode: Unsupported value",
		"backoffLimitPerIndex: 1":                                 "requires indexed completion mode",
		"maxFailedIndexes: 1":                                     "spec.backoffLimitPerIndex: Required value",
		"selector: {matchLabels: {a: b}}":                         "`selector` not auto-generated",
		"{manualSelector: true}":                                  "spec.selector: Required value",
		"{manualSelector: true, selector: {matchLabels: {a: b}}}": "does not match template `labels`",
		"successPolicy: {rules: [{succeededCount: 1}]}":           "requires indexed completion mode",
		"{completionMode: Indexed, completions: 3, successPolicy: {rules: [{succeededIndexes: '0,3'}]}}":                                       "too large index: 3",
		"{completionMode: Indexed, completions: 9, successPolicy: {rules: [{succeededIndexes: '4,2-3'}]}}":                                     "increasing order",
		"{completionMode: Indexed, completions: 9, successPolicy: {rules: [{succeededIndexes: 'x'}]}}":                                         "completion indexes and ranges",
		"{completionMode: Indexed, completions: 9, successPolicy: {rules: [{succeededIndexes: '1-2', succeededCount: 3}]}}":                    "must be between 1 and 2",
		"podFailurePolicy: {rules: [{action: FailIndex, onExitCodes: {operator: In, values: [1]}}]}":                                           "requires the backoffLimitPerIndex",
		"podFailurePolicy: {rules: [{action: Ignore, onExitCodes: {operator: In, values: [0]}}]}":                                              "must not be 0 for the In operator",
		"podFailurePolicy: {rules: [{action: Ignore, onExitCodes: {operator: In, values: [3, 2]}}]}":                                           "must be ordered",
		"podFailurePolicy: {rules: [{action: Ignore, onExitCodes: {containerName: x, operator: In, values: [3]}}]}":                            "must be one of the container",
		"podFailurePolicy: {rules: [{action: Ignore}]}":                                                                                        "specifying one of OnExitCodes and OnPodConditions is required",
		"{podReplacementPolicy: TerminatingOrFailed, podFailurePolicy: {rules: [{action: Ignore, onExitCodes: {operator: In, values: [2]}}]}}": "must be Failed",
		"activeDeadlineSeconds: -1": "spec.activeDeadlineSeconds: Invalid value",
		"managedBy: me":             "spec.managedBy: Invalid value",
	} {
		j := parse[*batchv1.Job](t, aJob)
		more := parse[*batchv1.Job](t, "spec:\n"+indent(lines))
		more.Spec.Template = j.Spec.Template
		j.Spec = more.Spec
		_, errs := Admit(j, nil, normal)
		switch got := errs.ToAggregate(); {
		case want == "" && got != nil:
			t.Errorf("%s is refused: %v", lines, got)
		case want != "" && (got == nil || !strings.Contains(got.Error(), want)):
			t.Errorf("%s: %v, want %q", lines, got, want)
		}
	}
	j := parse[*batchv1.Job](t, strings.Replace(aJob, "Never", "Always", 1))
	if _, errs := Admit(j, nil, normal); !strings.Contains(errs.ToAggregate().Error(),
		"spec.template.spec.restartPolicy: Unsupported value") {
		t.Error(errs)
	}
	j = parse[*batchv1.Job](t, strings.Replace(aJob, "restartPolicy", "hostNetwork: true, restartPolicy", 1))
	if _, errs := Admit(j, nil, normal); errs.ToAggregate() == nil || !strings.Contains(errs.ToAggregate().Error(),
		"spec.template.spec.hostNetwork") {
		t.Error("the policy is not checked for a Job's template:", errs)
	}
}

// A new Job whose name cannot be a label of its pods is refused. An existing Job with such a name
// may change.
func TestANewJobsNameMustFitALabel(t *testing.T) {
	for _, c := range []struct {
		name, more, want string
	}{
		{strings.Repeat("j", 63), "", ""},
		{"daily.report", "", ""},
		{strings.Repeat("j", 64), "", "metadata.name: Invalid value: \"" + strings.Repeat("j", 64) + "\": must be no more than 63 characters"},
		{strings.Repeat("j", 64), "  manualSelector: true\n  selector: {matchLabels: {a: b}}\n", ""}, // with manualSelector the pods do not have the label
	} {
		job := func() *batchv1.Job {
			j := parse[*batchv1.Job](t, strings.Replace(aJob, "name: j,", "name: "+c.name+",", 1)+c.more)
			j.Spec.Template.Labels = map[string]string{"a": "b"}
			return j
		}
		j := job()
		_, errs := Admit(j, nil, normal)
		switch got := errs.ToAggregate(); {
		case c.want == "" && got != nil:
			t.Errorf("%s is refused: %v", c.name, got)
		case c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.name, got, c.want)
		}
		existing := job()
		Default(existing, normal)
		next := existing.DeepCopy()
		next.Spec.Suspend = new(true)
		if _, errs := Admit(next, existing, normal); len(errs) > 0 {
			t.Errorf("the existing job %s cannot be suspended: %v", c.name, errs.ToAggregate())
		}
	}
}

func TestAJobsTemplateIsImmutable(t *testing.T) {
	old := parse[*batchv1.Job](t, aJob)
	if _, errs := Admit(old, nil, normal); errs.ToAggregate() != nil {
		t.Fatal(errs)
	}
	change := func(f func(*batchv1.Job)) error {
		next := old.DeepCopy()
		f(next)
		_, errs := Admit(next, old, normal)
		return errs.ToAggregate()
	}
	withRequests := func(j *batchv1.Job) {
		j.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	}
	for name, f := range map[string]func(*batchv1.Job){
		"parallelism": func(j *batchv1.Job) { *j.Spec.Parallelism = 3 },
		"suspend":     func(j *batchv1.Job) { *j.Spec.Suspend = true },
		"deadline":    func(j *batchv1.Job) { j.Spec.ActiveDeadlineSeconds = new(int64(5)) },
	} {
		if err := change(f); err != nil {
			t.Errorf("the %s of a Job cannot change: %v", name, err)
		}
	}
	for name, f := range map[string]func(*batchv1.Job){
		"image":       func(j *batchv1.Job) { j.Spec.Template.Spec.Containers[0].Image = "other:1" },
		"completions": func(j *batchv1.Job) { *j.Spec.Completions = 3 },
		"placement":   func(j *batchv1.Job) { j.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} },
		"resources":   withRequests,
	} {
		if err := change(f); err == nil || !strings.Contains(err.Error(), "immutable") {
			t.Errorf("a change of a running Job's %s: %v, want immutable", name, err)
		}
	}
	*old.Spec.Suspend = true
	if err := change(func(j *batchv1.Job) { j.Spec.Template.Spec.NodeSelector = map[string]string{"a": "b"} }); err != nil {
		t.Error("the node selector of a suspended Job cannot change:", err)
	}
	if err := change(withRequests); err != nil {
		t.Error("the resources of a suspended Job cannot change:", err)
	}
	if err := change(func(j *batchv1.Job) {
		withRequests(j)
		j.Spec.Template.Spec.Containers[0].Image = "other:1"
	}); err == nil {
		t.Error("the image of a suspended Job may change")
	}
	began := metav1.Now() // the Job is suspended, but its pods are not deleted yet
	old.Status.StartTime = &began
	if err := change(withRequests); err == nil {
		t.Error("the resources of a suspended Job with running pods may change")
	}
}

func TestACronJobIsRefusedByItsField(t *testing.T) {
	for lines, want := range map[string]string{
		"schedule: '* * * * *'":                              "",
		"schedule: '@hourly'":                                "",
		"schedule: ''":                                       "spec.schedule: Required value",
		"schedule: '* * * *'":                                "spec.schedule: Invalid value",
		"schedule: '61 * * * *'":                             "spec.schedule: Invalid value",
		"schedule: 'TZ=UTC * * * * *'":                       "use timeZone field instead",
		"{schedule: '@daily', timeZone: Europe/Oslo}":        "",
		"{schedule: '@daily', timeZone: Local}":              "explicit time zone",
		"{schedule: '@daily', timeZone: ''}":                 "non-empty string",
		"{schedule: '@daily', timeZone: ../etc/passwd}":      "spec.timeZone: Invalid value",
		"{schedule: '@daily', concurrencyPolicy: Sometimes}": "spec.concurrencyPolicy: Unsupported value",
		"{schedule: '@daily', startingDeadlineSeconds: -1}":  "spec.startingDeadlineSeconds: Invalid value",
		"{schedule: '@daily', failedJobsHistoryLimit: -1}":   "spec.failedJobsHistoryLimit: Invalid value",
	} {
		c := parse[*batchv1.CronJob](t, "metadata: {name: c, namespace: shop}\nspec:\n"+indent(lines))
		c.Spec.JobTemplate.Spec = parse[*batchv1.Job](t, aJob).Spec
		_, errs := Admit(c, nil, normal)
		switch got := errs.ToAggregate(); {
		case want == "" && got != nil:
			t.Errorf("%s is refused: %v", lines, got)
		case want != "" && (got == nil || !strings.Contains(got.Error(), want)):
			t.Errorf("%s: %v, want %q", lines, got, want)
		}
	}
	c := parse[*batchv1.CronJob](t, "metadata: {name: "+strings.Repeat("c",
		53)+", namespace: shop}\nspec: {schedule: '@daily'}\n")
	c.Spec.JobTemplate.Spec = parse[*batchv1.Job](t, aJob).Spec
	if _, errs := Admit(c, nil, normal); errs.ToAggregate() == nil || !strings.Contains(errs.ToAggregate().Error(),
		"52 characters") {
		t.Error(errs)
	}
	c.Name, c.Spec.JobTemplate.Spec.Template.Spec.HostNetwork = "c", true
	if _, errs := Admit(c, nil, normal); errs.ToAggregate() == nil || !strings.Contains(errs.ToAggregate().Error(),
		"spec.jobTemplate.spec.template.spec.hostNetwork") {
		t.Error("the policy is not checked for a CronJob's template:", errs)
	}
}
