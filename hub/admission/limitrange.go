package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	componentresource "k8s.io/component-helpers/resource"

	"flotilla.dev/hub/state"
)

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// applyLimitRanges applies the limit ranges of the namespace to a new pod's containers. It returns
// the pod's violations.
func applyLimitRanges(pod *corev1.Pod, s state.Snapshot) error {
	for r := range state.Each[*corev1.LimitRange](s, state.LimitRanges, pod.Namespace) {
		applyRangeDefaults(pod, r)
	}
	return checkPodRange(pod, s)
}

// checkPodRange returns a pod's violations of its namespace's limit ranges.
func checkPodRange(pod *corev1.Pod, s state.Snapshot) error {
	var all []error
	for r := range state.Each[*corev1.LimitRange](s, state.LimitRanges, pod.Namespace) {
		for i := range r.Spec.Limits {
			switch limit := &r.Spec.Limits[i]; limit.Type {
			case corev1.LimitTypeContainer:
				for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
					for j := range list {
						all = append(all, rangeViolations(limit, list[j].Resources.Requests, list[j].Resources.Limits)...)
					}
				}
			case corev1.LimitTypePod:
				// As in Kubernetes, the overhead of a runtime does not count.
				own := componentresource.PodResourcesOptions{ExcludeOverhead: true}
				all = append(all, rangeViolations(limit, componentresource.PodRequests(pod, own),
					componentresource.PodLimits(pod, own))...)
			}
		}
		if len(all) > 0 {
			return joinErrors(all)
		}
	}
	return nil
}

// joinErrors joins errors as Kubernetes does, without duplicates.
func joinErrors(all []error) error {
	var words []string
	for _, err := range all {
		if !slices.Contains(words, err.Error()) {
			words = append(words, err.Error())
		}
	}
	if len(words) == 1 {
		return all[0]
	}
	return errors.New("[" + strings.Join(words, ", ") + "]")
}

// applyRangeDefaults gives containers the defaults of a limit range. An annotation records them.
func applyRangeDefaults(pod *corev1.Pod, r *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for _, limit := range r.Spec.Limits {
		if limit.Type == corev1.LimitTypeContainer {
			maps.Copy(requests, limit.DefaultRequest)
			maps.Copy(limits, limit.Default)
		}
	}
	var notes []string
	fill := func(list *corev1.ResourceList, with corev1.ResourceList, what string) {
		var set []string
		for _, name := range slices.Sorted(maps.Keys(with)) {
			if _, has := (*list)[name]; has {
				continue
			}
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = with[name].DeepCopy()
			set = append(set, string(name))
		}
		if len(set) > 0 {
			notes = append(notes, strings.Join(set, ", ")+what)
		}
	}
	for what, list := range map[string][]corev1.Container{"container": pod.Spec.Containers,
		"init container": pod.Spec.InitContainers} {
		for i := range list {
			c := &list[i]
			fill(&c.Resources.Limits, limits, " limit for "+what+" "+c.Name)
			fill(&c.Resources.Requests, requests, " request for "+what+" "+c.Name)
		}
	}
	if len(notes) == 0 {
		return
	}
	slices.Sort(notes)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[limitRangerAnnotation] = "LimitRanger plugin set: " + strings.Join(notes, "; ")
}

// rangeViolations returns, in Kubernetes' words, the requests and limits that are outside of a
// range.
func rangeViolations(limit *corev1.LimitRangeItem, requests, limits corev1.ResourceList) (all []error) {
	say := func(form string, values ...any) { all = append(all, fmt.Errorf(form, values...)) }
	for _, name := range slices.Sorted(maps.Keys(limit.Min)) {
		least := limit.Min[name]
		request, asks := requests[name]
		most, limited := limits[name]
		switch {
		case !asks:
			say("minimum %s usage per %s is %s.  No request is specified", name, limit.Type, least.String())
		case request.Cmp(least) < 0:
			say("minimum %s usage per %s is %s, but request is %s", name, limit.Type, least.String(), request.String())
		case limited && most.Cmp(least) < 0:
			say("minimum %s usage per %s is %s, but limit is %s", name, limit.Type, least.String(), most.String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limit.Max)) {
		upTo := limit.Max[name]
		request, asks := requests[name]
		most, limited := limits[name]
		switch {
		case !limited:
			say("maximum %s usage per %s is %s.  No limit is specified", name, limit.Type, upTo.String())
		case most.Cmp(upTo) > 0:
			say("maximum %s usage per %s is %s, but limit is %s", name, limit.Type, upTo.String(), most.String())
		case asks && request.Cmp(upTo) > 0:
			say("maximum %s usage per %s is %s, but request is %s", name, limit.Type, upTo.String(), request.String())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(limit.MaxLimitRequestRatio)) {
		upTo := limit.MaxLimitRequestRatio[name]
		request, most := requests[name], limits[name]
		switch {
		case request.IsZero():
			say("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", name, limit.Type,
				upTo.String())
		case most.IsZero():
			say("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", name, limit.Type,
				upTo.String())
		case most.AsApproximateFloat64()/request.AsApproximateFloat64() > upTo.AsApproximateFloat64():
			say("%s max limit to request ratio per %s is %s, but provided ratio is %f", name, limit.Type, upTo.String(),
				most.AsApproximateFloat64()/request.AsApproximateFloat64())
		}
	}
	return all
}

// checkClaimRange checks the size of a claim.
func checkClaimRange(c *corev1.PersistentVolumeClaim, s state.Snapshot) error {
	var all []error
	for r := range state.Each[*corev1.LimitRange](s, state.LimitRanges, c.Namespace) {
		for i := range r.Spec.Limits {
			if limit := r.Spec.Limits[i]; limit.Type == corev1.LimitTypePersistentVolumeClaim {
				least := corev1.LimitRangeItem{Type: limit.Type, Min: limit.Min}
				all = append(all, rangeViolations(&least, c.Spec.Resources.Requests, nil)...)
				for _, name := range slices.Sorted(maps.Keys(limit.Max)) {
					upTo := limit.Max[name]
					switch request, asks := c.Spec.Resources.Requests[name]; {
					case !asks:
						all = append(all, fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", name, limit.Type,
							upTo.String()))
					case request.Cmp(upTo) > 0:
						all = append(all, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", name, limit.Type, upTo.String(),
							request.String()))
					}
				}
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	return joinErrors(all)
}

// defaultRange derives missing values: the default limit from the maximum, the default request from
// the default limit or the minimum.
func defaultRange(r *corev1.LimitRange) {
	for i := range r.Spec.Limits {
		limit := &r.Spec.Limits[i]
		for _, list := range []corev1.ResourceList{limit.Max, limit.Min, limit.Default, limit.DefaultRequest,
			limit.MaxLimitRequestRatio} {
			roundUp(list)
		}
		if limit.Type != corev1.LimitTypeContainer {
			continue
		}
		follow := func(to *corev1.ResourceList, from corev1.ResourceList) {
			for name, q := range from {
				if _, has := (*to)[name]; !has {
					if *to == nil {
						*to = corev1.ResourceList{}
					}
					(*to)[name] = q.DeepCopy()
				}
			}
		}
		follow(&limit.Default, limit.Max)
		follow(&limit.DefaultRequest, limit.Default)
		follow(&limit.DefaultRequest, limit.Min)
	}
}

func (l *list) limitRange(r *corev1.LimitRange) {
	types := map[corev1.LimitType]bool{}
	for i := range r.Spec.Limits {
		limit, at := &r.Spec.Limits[i], spec.Child("limits").Index(i)
		oneOf(l, at.Child("type"), limit.Type, corev1.LimitTypeContainer, corev1.LimitTypePersistentVolumeClaim,
			corev1.LimitTypePod)
		if types[limit.Type] {
			l.duplicate(at.Child("type"), limit.Type)
		}
		types[limit.Type] = true
		l.rangeItem(limit, at)
	}
}

func (l *list) rangeItem(limit *corev1.LimitRangeItem, at *field.Path) {
	known := map[corev1.ResourceName]bool{}
	for what, list := range map[string]corev1.ResourceList{"max": limit.Max, "min": limit.Min, "default": limit.Default,
		"defaultRequest":       limit.DefaultRequest,
		"maxLimitRequestRatio": limit.MaxLimitRequestRatio} {
		for name, q := range list {
			p := at.Child(what).Key(string(name))
			known[name] = true
			l.each(p, name, validation.IsQualifiedName(string(name)))
			if !strings.Contains(string(name), "/") && !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
				oneOf(l, p, name, corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
					corev1.ResourceStorage)
			}
			l.quantity(p, q, false)
		}
	}
	if limit.Type == corev1.LimitTypePod {
		for what, list := range map[string]corev1.ResourceList{"default": limit.Default,
			"defaultRequest": limit.DefaultRequest} {
			if len(list) > 0 {
				l.forbidden(at.Child(what), "may not be specified when `type` is 'Pod'")
			}
		}
	}
	_, least := limit.Min[corev1.ResourceStorage]
	_, most := limit.Max[corev1.ResourceStorage]
	if limit.Type == corev1.LimitTypePersistentVolumeClaim && !least && !most {
		l.required(at.Child("limits"), "either minimum or maximum storage value is required, but neither was provided")
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		l.rangeOf(limit, name, at)
	}
}

// rangeOf checks that the values of a limit range for one resource are consistent.
func (l *list) rangeOf(limit *corev1.LimitRangeItem, name corev1.ResourceName, at *field.Path) {
	above := func(what string, low, high corev1.ResourceList, form string) {
		a, ok := low[name]
		b, also := high[name]
		if ok && also && a.Cmp(b) > 0 {
			l.invalid(at.Child(what).Key(string(name)), a.String(), fmt.Sprintf(form, a.String(), b.String()))
		}
	}
	above("min", limit.Min, limit.Max, "min value %s is greater than max value %s")
	above("defaultRequest", limit.Min, limit.DefaultRequest, "min value %s is greater than default request value %s")
	above("defaultRequest", limit.DefaultRequest, limit.Max, "default request value %s is greater than max value %s")
	above("defaultRequest", limit.DefaultRequest, limit.Default,
		"default request value %s is greater than default limit value %s")
	above("default", limit.Min, limit.Default, "min value %s is greater than default value %s")
	above("default", limit.Default, limit.Max, "default value %s is greater than max value %s")
	ratio, ok := limit.MaxLimitRequestRatio[name]
	if !ok {
		return
	}
	p := at.Child("maxLimitRequestRatio").Key(string(name))
	if ratio.Cmp(resource.MustParse("1")) < 0 {
		l.invalid(p, ratio.String(), fmt.Sprintf("ratio %s is less than 1", ratio.String()))
	}
	least, low := limit.Min[name]
	most, high := limit.Max[name]
	if low && high && least.Sign() > 0 {
		if widest := most.AsApproximateFloat64() / least.AsApproximateFloat64(); ratio.AsApproximateFloat64() > widest {
			l.invalid(p, ratio.String(), fmt.Sprintf("ratio %s is greater than max/min = %f", ratio.String(), widest))
		}
	}
}
