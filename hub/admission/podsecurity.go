package admission

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"

	"flotilla.dev/hub/state"
)

// The Pod Security Standards with Kubernetes' labels, checks and messages. A namespace with a label
// is checked strictly. A namespace without one is checked against Settings.PodSecurity; then
// baseline omits the checks for which the policy has rules, because plain workloads here use host
// ports and host paths below the policy's prefixes. The policy applies at every level.
var (
	standards = evaluator(podsecurity.DefaultChecks())
	unnamed   = evaluator(slices.DeleteFunc(podsecurity.DefaultChecks(), func(c podsecurity.Check) bool {
		return c.Level != api.LevelBaseline || slices.Contains([]podsecurity.CheckID{
			"privileged", "hostNamespaces", "hostPathVolumes", "hostPorts", "capabilities_baseline", "sysctls",
		}, c.ID)
	}))
)

func evaluator(checks []podsecurity.Check) podsecurity.Evaluator {
	e, err := podsecurity.NewEvaluator(checks, nil)
	if err != nil {
		panic(fmt.Sprintf("admission: pod security checks: %v", err)) // the checks are compiled in, so they cannot fail
	}
	return e
}

// PodSecurityLevels are all levels, the strictest last.
var PodSecurityLevels = []string{string(api.LevelPrivileged), string(api.LevelBaseline), string(api.LevelRestricted)}

// A level is a Pod Security level with its checks.
type level struct {
	api.LevelVersion
	checks podsecurity.Evaluator
}

// levels are the levels of a namespace, with defaults.
type levels struct{ enforce, audit, warn level }

func levelsOf(ns *corev1.Namespace, s Settings) (l levels, wrong field.ErrorList) {
	def := api.LevelBaseline
	if s.PodSecurity != "" {
		def = api.Level(s.PodSecurity)
	}
	open := api.LevelVersion{Level: api.LevelPrivileged, Version: api.LatestVersion()}
	p, wrong := api.PolicyToEvaluate(ns.Labels, api.Policy{
		Enforce: api.LevelVersion{Level: def, Version: api.LatestVersion()}, Audit: open, Warn: open,
	})
	l = levels{level{p.Enforce, standards}, level{p.Audit, standards}, level{p.Warn, standards}}
	if _, named := ns.Labels[api.EnforceLevelLabel]; !named {
		if l.enforce.Level == api.LevelBaseline {
			l.enforce.checks = unnamed
		}
		if _, named := ns.Labels[api.WarnLevelLabel]; !named {
			l.warn = l.enforce // warn about pods that would be refused
		}
	}
	return l, wrong
}

// check checks a pod against a level.
func (l level) check(meta *metav1.ObjectMeta, spec *corev1.PodSpec) podsecurity.AggregateCheckResult {
	return podsecurity.AggregateCheckResults(l.checks.EvaluatePod(l.LevelVersion, meta, spec))
}

// describe describes a pod's violations of a level after a verb, "" if there are none.
func (l level) describe(verb string, meta *metav1.ObjectMeta, spec *corev1.PodSpec) string {
	r := l.check(meta, spec)
	if r.Allowed {
		return ""
	}
	return fmt.Sprintf("%s PodSecurity %q: %s", verb, l.String(), r.ForbiddenDetail())
}

// A Verdict is the result of checking an object against a namespace's levels.
type Verdict struct {
	Refused string // why the object is refused; "": it is allowed
	Warning string // for the client
	Audit   string // for the audit
}

// AppendWarning appends the verdict's warning to warnings, if there is one.
func (v Verdict) AppendWarning(warnings []string) []string {
	if v.Warning == "" {
		return warnings
	}
	return append([]string{v.Warning}, warnings...)
}

// PodSecurity checks a pod, or the pods of a workload, against the levels of its namespace. A
// workload is never refused, only its pods. old is nil for a new object.
func PodSecurity(o, old state.Object, ns *corev1.Namespace, s Settings) (v Verdict) {
	spec, _ := podSpecOf(o)
	if spec == nil || ns == nil {
		return v
	}
	l, _ := levelsOf(ns, s)
	var meta *metav1.ObjectMeta
	if pod, is := o.(*corev1.Pod); is {
		if was, updated := old.(*corev1.Pod); updated && !changesImages(pod, was) {
			return v
		}
		meta = &pod.ObjectMeta
		v.Refused = l.enforce.describe("violates", meta, spec)
	} else {
		meta = &state.TemplateOf(o).ObjectMeta
	}
	v.Audit = l.audit.describe("would violate", meta, spec)
	if v.Refused == "" {
		v.Warning = l.warn.describe("would violate", meta, spec)
	}
	return v
}

// changesImages reports whether an update of a pod needs a check: it has a new image or a new
// ephemeral container.
func changesImages(pod, was *corev1.Pod) bool {
	images := func(a, b corev1.Container) bool { return a.Image == b.Image }
	return len(pod.Spec.EphemeralContainers) != len(was.Spec.EphemeralContainers) ||
		!slices.EqualFunc(pod.Spec.Containers, was.Spec.Containers, images) ||
		!slices.EqualFunc(pod.Spec.InitContainers, was.Spec.InitContainers, images)
}

// MayCreate returns why a workload's pod may not be created, for the event FailedCreate; "" if it
// may. Settings and labels may have changed since the workload was admitted. The finalizers of its
// template are checked only here.
func MayCreate(pod *corev1.Pod, ns *corev1.Namespace, s Settings) string {
	if why := PodSecurity(pod, nil, ns, s).Refused; why != "" {
		return why
	}
	var l list
	l.finalizers(pod.Finalizers, field.NewPath("metadata", "finalizers"))
	for _, r := range s.Policy.Judge(&pod.Spec, field.NewPath("spec")) {
		l.forbidden(r.Field, refusal(r))
	}
	if len(l.errs) == 0 {
		return ""
	}
	return l.errs.ToAggregate().Error()
}

// podSecurityLabels checks the labels of a namespace. Unchanged invalid labels may stay.
func (l *list) podSecurityLabels(ns *corev1.Namespace, old state.Object) {
	_, errs := levelsOf(ns, Settings{})
	if was, ok := old.(*corev1.Namespace); ok {
		_, before := levelsOf(was, Settings{})
		if equality.Semantic.DeepEqual(errs, before) {
			return
		}
	}
	l.all(errs)
}

// LevelWarnings warns about existing pods that violate the new level of their namespace. The pods
// stay.
func LevelWarnings(ns, old *corev1.Namespace, pods func(func(*corev1.Pod) bool), s Settings) (warnings []string) {
	const most = 3000 // the number of pods to check, as in Kubernetes
	now, was := enforcedBy(ns, s), enforcedBy(old, s)
	if now == was || now.Level == api.LevelPrivileged ||
		now.Version == was.Version && now.checks != standards && api.CompareLevels(now.Level, was.Level) < 1 ||
		now.Version == was.Version && api.CompareLevels(now.Level, was.Level) < 0 {
		return nil
	}
	type group struct {
		first string
		count int
	}
	groups, total, looked := map[string]*group{}, 0, map[types.UID]string{}
	for pod := range pods {
		if total++; total > most || state.Terminated(pod) {
			continue
		}
		owner := types.UID("")
		if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
			owner = ref.UID
		}
		why, seen := looked[owner]
		if !seen || owner == "" {
			r := now.check(&pod.ObjectMeta, &pod.Spec)
			why = r.ForbiddenReason()
			looked[owner] = why
		}
		if why == "" {
			continue
		}
		g := groups[why]
		if g == nil {
			g = &group{first: pod.Name}
			groups[why] = g
		}
		g.first, g.count = min(g.first, pod.Name), g.count+1
	}
	if total > most {
		warnings = append(warnings, fmt.Sprintf(
			"new PodSecurity enforce level only checked against the first %d of %d existing pods", most, total))
	}
	if len(groups) == 0 {
		return warnings
	}
	warnings = append(warnings,
		fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q", ns.Name, now.String()))
	var lines []string
	for why, g := range groups {
		switch g.count {
		case 1:
			lines = append(lines, g.first+": "+why)
		case 2:
			lines = append(lines, g.first+" (and 1 other pod): "+why)
		default:
			lines = append(lines, fmt.Sprintf("%s (and %d other pods): %s", g.first, g.count-1, why))
		}
	}
	slices.SortFunc(lines, strings.Compare)
	return append(warnings, lines...)
}

// LoweredLevel says how a namespace's new labels allow more than the hub's default; "" if they do
// not. Only administrators may set such labels, since the allowed pods can take over their devices.
// old is nil for a new namespace.
func LoweredLevel(ns, old *corev1.Namespace, s Settings) string {
	least := enforcedBy(&corev1.Namespace{}, s)
	was := least
	if old != nil {
		was = enforcedBy(old, s)
	}
	now := enforcedBy(ns, s)
	if !now.weaker(least) || !now.weaker(was) {
		return ""
	}
	return fmt.Sprintf(
		"PodSecurity %q is less strict than this hub's default %q, which only an administrator may choose",
		now.String(), least.String())
}

// weaker reports whether a level forbids less than another. An older version of a level has fewer
// checks.
func (l level) weaker(than level) bool {
	c := api.CompareLevels(l.Level, than.Level)
	return c < 0 || c == 0 && l.Level != api.LevelPrivileged && l.Version.Older(than.Version)
}

func enforcedBy(ns *corev1.Namespace, s Settings) level {
	l, _ := levelsOf(ns, s)
	return l.enforce
}
