package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/state"
)

// Charge returns the changes of the quotas that count a new object, or an error in Kubernetes'
// words if the object exceeds a quota. The caller has applied Complete, and commits the changes
// with the object. Only the single writer calls it, so two objects cannot use the same remaining
// amount.
func Charge(o state.Object, s state.Snapshot, now time.Time) (changes []state.Change, err error) {
	if q, ok := o.(*corev1.ResourceQuota); ok { // a new quota gets its usage when it is created
		q.Status, _ = state.QuotaStatus(s, q, now)
	}
	for q := range s.Quotas(o.GetNamespace()) {
		more := state.Charged(q, o, now)
		if q.Name == o.GetName() && state.KindOf(o) == state.ResourceQuotas {
			continue
		}
		if err == nil {
			err = missing(q, o)
		}
		if err == nil {
			err = exceeded(q, more)
		}
		if next := state.WithUsage(q, more); next != nil {
			changes = append(changes, state.Put(next, ""))
		}
	}
	return changes, err
}

// exceeded returns an error with the resources of which a quota has not enough left.
func exceeded(q *corev1.ResourceQuota, more corev1.ResourceList) error {
	var over []corev1.ResourceName
	for name, want := range more {
		sum, hard := q.Status.Used[name].DeepCopy(), q.Spec.Hard[name]
		sum.Add(want)
		if want.Sign() > 0 && sum.Cmp(hard) > 0 {
			over = append(over, name)
		}
	}
	if len(over) == 0 {
		return nil
	}
	slices.Sort(over)
	text := func(list corev1.ResourceList) string {
		var all []string
		for _, name := range over {
			amount := list[name]
			all = append(all, string(name)+"="+amount.String())
		}
		return strings.Join(all, ",")
	}
	return fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s", q.Name, text(more), text(q.Status.Used),
		text(q.Spec.Hard))
}

// explicit are the resources that every container must specify if a quota limits them.
var explicit = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU,
	corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory}

// missing returns an error with the containers of a pod that do not specify a resource that the
// quota limits.
func missing(q *corev1.ResourceQuota, o state.Object) error {
	pod, ok := o.(*corev1.Pod)
	if !ok || !state.InScopes(q, o) {
		return nil
	}
	var all []string
	for _, name := range slices.Sorted(slices.Values(explicit)) {
		if _, limited := q.Spec.Hard[name]; !limited {
			continue
		}
		var without []string
		eachContainer(&pod.Spec, func(c *corev1.Container) {
			list, plain := c.Resources.Requests,
				corev1.ResourceName(strings.TrimPrefix(string(name), corev1.DefaultResourceRequestsPrefix))
			if rest, isLimit := strings.CutPrefix(string(name), "limits."); isLimit {
				list, plain = c.Resources.Limits, corev1.ResourceName(rest)
			}
			if _, has := list[plain]; !has {
				without = append(without, c.Name)
			}
		})
		if len(without) > 0 {
			slices.Sort(without)
			all = append(all, fmt.Sprintf("%s for: %s", name, strings.Join(without, ",")))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("failed quota: %s: must specify %s", q.Name, strings.Join(all, "; "))
}

// quotaNames are the resources without a domain that a quota may limit.
var quotaNames = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsStorage,
	corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
	corev1.ResourcePods, corev1.ResourceQuotas, corev1.ResourceServices, corev1.ResourceReplicationControllers,
	corev1.ResourceSecrets,
	corev1.ResourcePersistentVolumeClaims, corev1.ResourceConfigMaps, corev1.ResourceServicesNodePorts,
	corev1.ResourceServicesLoadBalancers,
}

// ofPods reports whether a quota with scopes may limit a resource. Scopes select pods, so only the
// number of pods and their resources qualify. With the scope BestEffort, only the number does.
func ofPods(name corev1.ResourceName) bool {
	text := strings.TrimPrefix(strings.TrimPrefix(string(name), "limits."), corev1.DefaultResourceRequestsPrefix)
	return name == corev1.ResourcePods || slices.Contains([]string{"cpu", "memory", "ephemeral-storage"}, text)
}

func (l *list) quota(q *corev1.ResourceQuota) {
	for at, hard := range map[*field.Path]corev1.ResourceList{spec.Child("hard"): q.Spec.Hard,
		field.NewPath("status", "hard"): q.Status.Hard, field.NewPath("status", "used"): q.Status.Used} {
		for _, name := range slices.Sorted(maps.Keys(hard)) {
			l.quotaResource(name, hard[name], at.Key(string(name)))
		}
	}
	scopes := map[corev1.ResourceQuotaScope]bool{}
	at := spec.Child("scopes")
	for i, s := range q.Spec.Scopes {
		l.scope(q, s, at.Index(i))
		scopes[s] = true
	}
	if q.Spec.ScopeSelector != nil {
		for i, r := range q.Spec.ScopeSelector.MatchExpressions {
			at := spec.Child("scopeSelector", "matchExpressions").Index(i)
			l.scope(q, r.ScopeName, at.Child("scopeName"))
			l.scopeOperator(r, at)
			scopes[r.ScopeName] = true
		}
	}
	if scopes[corev1.ResourceQuotaScopeBestEffort] && scopes[corev1.ResourceQuotaScopeNotBestEffort] ||
		scopes[corev1.ResourceQuotaScopeTerminating] && scopes[corev1.ResourceQuotaScopeNotTerminating] {
		l.invalid(at, q.Spec.Scopes, "conflicting scopes")
	}
}

// quotaResource checks one resource of a quota and its amount.
func (l *list) quotaResource(name corev1.ResourceName, q resource.Quantity, p *field.Path) {
	l.each(p, name, validation.IsQualifiedName(string(name)))
	if !strings.Contains(string(name), "/") && !slices.Contains(quotaNames, name) &&
		!strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) &&
		!strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) {
		l.invalid(p, name, "must be a standard resource for quota")
	}
	whole := strings.HasPrefix(string(name), "count/") || slices.Contains(quotaNames, name) && !ofPods(name) &&
		name != corev1.ResourceRequestsStorage || name == corev1.ResourcePods
	l.quantity(p, q, whole)
}

func (l *list) scope(q *corev1.ResourceQuota, s corev1.ResourceQuotaScope, p *field.Path) {
	switch s {
	case corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopeNotTerminating,
		corev1.ResourceQuotaScopeNotBestEffort, corev1.ResourceQuotaScopePriorityClass,
		corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
	default:
		l.invalid(p, s, "unsupported scope")
		return
	}
	for name := range q.Spec.Hard {
		if slices.Contains(quotaNames, name) &&
			(!ofPods(name) || s == corev1.ResourceQuotaScopeBestEffort && name != corev1.ResourcePods) {
			l.invalid(p, s, "unsupported scope applied to resource")
			return
		}
	}
}

func (l *list) scopeOperator(r corev1.ScopedResourceSelectorRequirement, p *field.Path) {
	if r.ScopeName != corev1.ResourceQuotaScopePriorityClass && r.Operator != corev1.ScopeSelectorOpExists {
		l.invalid(p.Child("operator"), r.Operator, "must be 'Exists' for any scope but PriorityClass")
		return
	}
	switch r.Operator {
	case corev1.ScopeSelectorOpIn, corev1.ScopeSelectorOpNotIn:
		if len(r.Values) == 0 {
			l.required(p.Child("values"), "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector")
		}
	case corev1.ScopeSelectorOpExists, corev1.ScopeSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			l.invalid(p.Child("values"), r.Values,
				"must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector")
		}
	default:
		l.invalid(p.Child("operator"), r.Operator, "not a valid selector operator")
	}
}

// quotaUnchanged refuses a change of the scopes.
func (l *list) quotaUnchanged(q, was *corev1.ResourceQuota) {
	of := func(q *corev1.ResourceQuota) []corev1.ResourceQuotaScope {
		return slices.Sorted(slices.Values(q.Spec.Scopes))
	}
	if !slices.Equal(of(q), of(was)) {
		l.invalid(spec.Child("scopes"), q.Spec.Scopes, "field is immutable")
	}
}

func defaultQuota(q *corev1.ResourceQuota) {
	roundUp(q.Spec.Hard)
	roundUp(q.Status.Hard)
	roundUp(q.Status.Used)
}
