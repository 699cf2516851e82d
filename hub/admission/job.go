package admission

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"flotilla.dev/hub/state"
)

func defaultJob(s *batchv1.JobSpec) {
	if s.Completions == nil && s.Parallelism == nil {
		set(&s.Completions, 1)
	}
	set(&s.Parallelism, 1)
	limit := int32(6)
	if s.BackoffLimitPerIndex != nil {
		limit = math.MaxInt32
	}
	set(&s.BackoffLimit, limit)
	set(&s.CompletionMode, batchv1.NonIndexedCompletion)
	set(&s.Suspend, false)
	set(&s.ManualSelector, false)
	replace := batchv1.TerminatingOrFailed
	if s.PodFailurePolicy != nil {
		replace = batchv1.Failed
		for i := range s.PodFailurePolicy.Rules {
			for j := range s.PodFailurePolicy.Rules[i].OnPodConditions {
				fill(&s.PodFailurePolicy.Rules[i].OnPodConditions[j].Status, corev1.ConditionTrue)
			}
		}
	}
	set(&s.PodReplacementPolicy, replace)
	DefaultPodTemplate(&s.Template)
}

func defaultCronJob(s *batchv1.CronJobSpec) {
	fill(&s.ConcurrencyPolicy, batchv1.AllowConcurrent)
	set(&s.Suspend, false)
	set(&s.SuccessfulJobsHistoryLimit, 3)
	set(&s.FailedJobsHistoryLimit, 1)
	defaultJob(&s.JobTemplate.Spec)
}

// cronJobName keeps names short enough for the suffix of the Jobs' names.
func cronJobName(name string, prefix bool) []string {
	wrong := apivalidation.NameIsDNSSubdomain(name, prefix)
	if len(name) > 52 {
		wrong = append(wrong, "must be no more than 52 characters")
	}
	return wrong
}

// jobName checks that a Job's name can be the value of its pods' label. With manualSelector they
// have no such label.
func (l *list) jobName(j *batchv1.Job) {
	if most := validation.LabelValueMaxLength; len(j.Name) > most && !is(j.Spec.ManualSelector) {
		l.invalid(field.NewPath("metadata", "name"), j.Name, fmt.Sprintf(
			"must be no more than %d characters: it is a label of its pods", most))
	}
}

// Kubernetes' limits of Indexed Jobs and of a Job's policies.
const (
	maxIndexed      = 100_000
	maxIndexBytes   = 64 << 10 // bytes of a list of indexes
	maxRules        = 20
	mostCodes       = 255
	mostSuccessRule = 20
)

func (l *list) job(s *batchv1.JobSpec, p *field.Path, fresh bool) {
	if fresh && s.Selector != nil && !is(s.ManualSelector) {
		l.invalid(p.Child("selector"), s.Selector, "`selector` not auto-generated")
	}
	if is(s.ManualSelector) {
		l.manualSelector(s, p)
	}
	l.count(s.Parallelism, p.Child("parallelism"))
	l.count(s.Completions, p.Child("completions"))
	l.count(s.BackoffLimit, p.Child("backoffLimit"))
	l.count(s.TTLSecondsAfterFinished, p.Child("ttlSecondsAfterFinished"))
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 0 || *d > math.MaxInt32) {
		l.invalid(p.Child("activeDeadlineSeconds"), *d, validation.InclusiveRangeError(0, math.MaxInt32))
	}
	oneOf(l, p.Child("completionMode"), ptr.Deref(s.CompletionMode, ""), batchv1.NonIndexedCompletion,
		batchv1.IndexedCompletion)
	oneOf(l, p.Child("podReplacementPolicy"), ptr.Deref(s.PodReplacementPolicy, ""), batchv1.TerminatingOrFailed,
		batchv1.Failed)
	if s.PodFailurePolicy != nil && ptr.Deref(s.PodReplacementPolicy, "") != batchv1.Failed {
		l.invalid(p.Child("podReplacementPolicy"), ptr.Deref(s.PodReplacementPolicy, ""),
			"must be Failed when a podFailurePolicy is set")
	}
	if m := s.ManagedBy; m != nil {
		l.all(validation.IsDomainPrefixedPath(p.Child("managedBy"), *m))
	}
	l.indexed(s, p)
	l.failurePolicy(s, p.Child("podFailurePolicy"))
	l.successPolicy(s, p.Child("successPolicy"))

	p = p.Child("template")
	l.all(metavalidation.ValidateLabels(s.Template.Labels, p.Child("metadata", "labels")))
	l.all(apivalidation.ValidateAnnotations(s.Template.Annotations, p.Child("metadata", "annotations")))
	l.podSpec(&s.Template.Spec, p.Child("spec"), ofTemplate)
	if r := s.Template.Spec.RestartPolicy; r != corev1.RestartPolicyOnFailure && r != corev1.RestartPolicyNever {
		l.errs = append(l.errs, field.NotSupported(p.Child("spec", "restartPolicy"), r,
			[]corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}))
	}
}

// neverRestarts refuses a pod failure policy if the containers restart in place, because such
// failures are not counted. The error names the policy's field, since the pod spec may be
// unchanged.
func (l *list) neverRestarts(s *batchv1.JobSpec, p *field.Path) {
	if r := s.Template.Spec.RestartPolicy; r == corev1.RestartPolicyOnFailure {
		l.forbidden(p, fmt.Sprintf(
			"only \"Never\" is supported as the template's restartPolicy when it is specified, not %q", r))
	}
}

// manualSelector checks a selector that a user has written.
func (l *list) manualSelector(s *batchv1.JobSpec, p *field.Path) {
	if s.Selector == nil || len(s.Selector.MatchLabels)+len(s.Selector.MatchExpressions) == 0 {
		l.required(p.Child("selector"), "")
		return
	}
	l.selector(s.Selector, p.Child("selector"))
	if selector, err := metav1.LabelSelectorAsSelector(s.Selector); err == nil &&
		!selector.Matches(labels.Set(s.Template.Labels)) {
		l.invalid(p.Child("template", "metadata", "labels"), s.Template.Labels, "`selector` does not match template `labels`")
	}
}

func (l *list) indexed(s *batchv1.JobSpec, p *field.Path) {
	indexed := ptr.Deref(s.CompletionMode, "") == batchv1.IndexedCompletion
	switch {
	case indexed && s.Completions == nil:
		l.required(p.Child("completions"), "when completion mode is Indexed")
	case indexed && *s.Completions > maxIndexed:
		l.invalid(p.Child("completions"), *s.Completions, fmt.Sprintf(
			"must be less than or equal to %d when completion mode is Indexed", maxIndexed))
	case indexed && ptr.Deref(s.Parallelism, 0) > maxIndexed:
		l.invalid(p.Child("parallelism"), ptr.Deref(s.Parallelism, 0), fmt.Sprintf(
			"must be less than or equal to %d when completion mode is Indexed", maxIndexed))
	}
	l.count(s.BackoffLimitPerIndex, p.Child("backoffLimitPerIndex"))
	l.count(s.MaxFailedIndexes, p.Child("maxFailedIndexes"))
	if s.BackoffLimitPerIndex != nil {
		l.neverRestarts(s, p.Child("backoffLimitPerIndex"))
	}
	if s.BackoffLimitPerIndex != nil && !indexed {
		l.invalid(p.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode")
	}
	if m := s.MaxFailedIndexes; m != nil {
		if s.BackoffLimitPerIndex == nil {
			l.required(p.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified")
		}
		if s.Completions != nil && *m > *s.Completions {
			l.invalid(p.Child("maxFailedIndexes"), *m, "must be less than or equal to completions")
		}
	}
}

func (l *list) failurePolicy(s *batchv1.JobSpec, p *field.Path) {
	if s.PodFailurePolicy == nil {
		return
	}
	l.neverRestarts(s, p)
	p = p.Child("rules")
	if len(s.PodFailurePolicy.Rules) > maxRules {
		l.errs = append(l.errs, field.TooMany(p, len(s.PodFailurePolicy.Rules), maxRules))
		return
	}
	for i, rule := range s.PodFailurePolicy.Rules {
		at := p.Index(i)
		oneOf(l, at.Child("action"), rule.Action, batchv1.PodFailurePolicyActionCount,
			batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore)
		if rule.Action == batchv1.PodFailurePolicyActionFailIndex && s.BackoffLimitPerIndex == nil {
			l.invalid(at.Child("action"), rule.Action, "requires the backoffLimitPerIndex to be set")
		}
		switch on := rule.OnExitCodes; {
		case on == nil && len(rule.OnPodConditions) == 0:
			l.invalid(at, field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required")
		case on != nil && len(rule.OnPodConditions) > 0:
			l.invalid(at, field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported")
		case on != nil:
			l.exitCodes(s, on, at.Child("onExitCodes"))
		default:
			if len(rule.OnPodConditions) > maxRules {
				l.errs = append(l.errs, field.TooMany(at.Child("onPodConditions"), len(rule.OnPodConditions), maxRules))
			}
			for j, c := range rule.OnPodConditions {
				l.each(at.Child("onPodConditions").Index(j).Child("type"), c.Type, validation.IsQualifiedName(string(c.Type)))
				oneOf(l, at.Child("onPodConditions").Index(j).Child("status"), c.Status, corev1.ConditionTrue,
					corev1.ConditionFalse, corev1.ConditionUnknown)
			}
		}
	}
}

func (l *list) exitCodes(s *batchv1.JobSpec, on *batchv1.PodFailurePolicyOnExitCodesRequirement, p *field.Path) {
	oneOf(l, p.Child("operator"), on.Operator, batchv1.PodFailurePolicyOnExitCodesOpIn,
		batchv1.PodFailurePolicyOnExitCodesOpNotIn)
	if on.ContainerName != nil {
		known := false
		eachContainer(&s.Template.Spec, func(c *corev1.Container) { known = known || c.Name == *on.ContainerName })
		if !known {
			l.invalid(p.Child("containerName"), *on.ContainerName,
				"must be one of the container or initContainer names in the pod template")
		}
	}
	switch {
	case len(on.Values) == 0:
		l.invalid(p.Child("values"), on.Values, "at least one value is required")
	case len(on.Values) > mostCodes:
		l.errs = append(l.errs, field.TooMany(p.Child("values"), len(on.Values), mostCodes))
	}
	for i, v := range on.Values {
		switch {
		case v == 0 && on.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn:
			l.invalid(p.Child("values").Index(i), v, "must not be 0 for the In operator")
		case i > 0 && v == on.Values[i-1]:
			l.duplicate(p.Child("values").Index(i), v)
		case i > 0 && v < on.Values[i-1]:
			l.invalid(p.Child("values"), on.Values, "must be ordered")
			return
		}
	}
}

var indexList = regexp.MustCompile(`^[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*$`)

func (l *list) successPolicy(s *batchv1.JobSpec, p *field.Path) {
	if s.SuccessPolicy == nil {
		return
	}
	if ptr.Deref(s.CompletionMode, "") != batchv1.IndexedCompletion {
		l.invalid(p, field.OmitValueType{}, "requires indexed completion mode")
		return
	}
	p = p.Child("rules")
	switch n := len(s.SuccessPolicy.Rules); {
	case n == 0:
		l.required(p, "must be specified when successPolicy is")
	case n > mostSuccessRule:
		l.errs = append(l.errs, field.TooMany(p, n, mostSuccessRule))
		return
	}
	for i, rule := range s.SuccessPolicy.Rules {
		at := p.Index(i)
		if rule.SucceededCount == nil && rule.SucceededIndexes == nil {
			l.required(at, "at least one of succeededCount or succeededIndexes must be specified")
		}
		most := int32(math.MaxInt32)
		if s.Completions != nil {
			most = *s.Completions
		}
		if rule.SucceededIndexes != nil {
			most = l.indexes(*rule.SucceededIndexes, most, at.Child("succeededIndexes"))
		}
		if n := rule.SucceededCount; n != nil && (*n < 1 || *n > most) {
			l.invalid(at.Child("succeededCount"), *n, fmt.Sprintf("must be between 1 and %d, the number of indexes that "+
				"count", most))
		}
	}
}

// indexes checks a list such as 1,3-5, and returns how many it contains.
func (l *list) indexes(text string, completions int32, p *field.Path) (n int32) {
	if len(text) > maxIndexBytes {
		l.errs = append(l.errs, field.TooLong(p, "", maxIndexBytes))
		return 0
	}
	if !indexList.MatchString(text) {
		l.invalid(p, text, "must be completion indexes and ranges of them, such as 1,3-5")
		return 0
	}
	last := -1
	for part := range strings.SplitSeq(text, ",") {
		from, to, span := strings.Cut(part, "-")
		a, _ := strconv.Atoi(from)
		b := a
		if span {
			b, _ = strconv.Atoi(to)
		}
		switch {
		case a <= last || b < a:
			l.invalid(p, text, "must be in increasing order, without overlaps")
			return 0
		case b >= int(completions):
			l.invalid(p, text, "too large index: "+strconv.Itoa(b))
			return 0
		}
		last = b
		n += int32(b - a + 1)
	}
	return n
}

// jobUnchanged allows changes of a Job's parallelism, deadlines and cleanup. While the Job is
// suspended and none of its pods runs, their placement and resources may change too (KEP-5440).
func (l *list) jobUnchanged(o, old *batchv1.Job) {
	now, was := &o.Spec, &old.Spec
	l.selectorUnchanged(now.Selector, was.Selector)
	l.same(now.CompletionMode, was.CompletionMode, spec.Child("completionMode"))
	l.same(now.PodFailurePolicy, was.PodFailurePolicy, spec.Child("podFailurePolicy"))
	l.same(now.SuccessPolicy, was.SuccessPolicy, spec.Child("successPolicy"))
	l.same(now.BackoffLimitPerIndex, was.BackoffLimitPerIndex, spec.Child("backoffLimitPerIndex"))
	l.same(now.ManagedBy, was.ManagedBy, spec.Child("managedBy"))
	elastic := ptr.Deref(was.CompletionMode, "") == batchv1.IndexedCompletion &&
		equality.Semantic.DeepEqual(now.Completions, now.Parallelism)
	if !elastic {
		l.same(now.Completions, was.Completions, spec.Child("completions"))
	}
	template := now.Template.DeepCopy()
	if is(was.Suspend) && old.Status.StartTime == nil {
		t, b := &template.Spec, &was.Template.Spec
		template.Labels, template.Annotations = was.Template.Labels, was.Template.Annotations
		t.NodeSelector, t.Tolerations, t.SchedulingGates = b.NodeSelector, b.Tolerations, b.SchedulingGates
		t.Affinity = withNodeAffinityOf(t.Affinity, b.Affinity)
		withResourcesOf(t.Containers, b.Containers)
		withResourcesOf(t.InitContainers, b.InitContainers)
	}
	l.same(*template, was.Template, spec.Child("template"))
}

// withResourcesOf copies the resources from containers of the same names.
func withResourcesOf(list, was []corev1.Container) {
	if len(list) != len(was) {
		return
	}
	for i := range list {
		if list[i].Name == was[i].Name {
			list[i].Resources = was[i].Resources
		}
	}
}

func (l *list) cronJob(s *batchv1.CronJobSpec, old state.Object) {
	switch was, _ := old.(*batchv1.CronJob); {
	case s.Schedule == "":
		l.required(spec.Child("schedule"), "")
	case strings.Contains(s.Schedule, "TZ") && (was == nil || was.Spec.Schedule != s.Schedule):
		l.invalid(spec.Child("schedule"), s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	default:
		only := batchv1.CronJobSpec{Schedule: s.Schedule}
		if _, err := state.Schedule(&only); err != nil {
			l.invalid(spec.Child("schedule"), s.Schedule, err.Error())
		}
	}
	if z := s.TimeZone; z != nil {
		switch _, err := time.LoadLocation(*z); {
		case *z == "":
			l.invalid(spec.Child("timeZone"), *z, "timeZone must be nil or non-empty string")
		case strings.EqualFold(*z, "Local"):
			l.invalid(spec.Child("timeZone"), *z,
				"timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
		case err != nil:
			l.invalid(spec.Child("timeZone"), *z, err.Error())
		}
	}
	if d := s.StartingDeadlineSeconds; d != nil {
		l.atLeast(spec.Child("startingDeadlineSeconds"), *d, 0)
		if *d > math.MaxInt32 {
			l.invalid(spec.Child("startingDeadlineSeconds"), *d, validation.InclusiveRangeError(0, math.MaxInt32))
		}
	}
	oneOf(l, spec.Child("concurrencyPolicy"), s.ConcurrencyPolicy, batchv1.AllowConcurrent, batchv1.ForbidConcurrent,
		batchv1.ReplaceConcurrent)
	l.count(s.SuccessfulJobsHistoryLimit, spec.Child("successfulJobsHistoryLimit"))
	l.count(s.FailedJobsHistoryLimit, spec.Child("failedJobsHistoryLimit"))
	at := spec.Child("jobTemplate", "spec")
	if is(s.JobTemplate.Spec.ManualSelector) {
		l.errs = append(l.errs, field.NotSupported(at.Child("manualSelector"), true, []string{"false"}))
		return
	}
	l.all(metavalidation.ValidateLabels(s.JobTemplate.Labels, spec.Child("jobTemplate", "metadata", "labels")))
	l.all(apivalidation.ValidateAnnotations(s.JobTemplate.Annotations,
		spec.Child("jobTemplate", "metadata", "annotations")))
	l.job(&s.JobTemplate.Spec, at, true)
}
