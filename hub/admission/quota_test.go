package admission

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

func quotaOf(hard corev1.ResourceList, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q", Namespace: "default"},
		Spec: corev1.ResourceQuotaSpec{Hard: hard, Scopes: scopes}}
}

// Pods are created until a quota refuses one. After each of them the usage in the status equals the
// objects.
func TestAQuotaIsNeverExceeded(t *testing.T) {
	const asks = "resources: {requests: {cpu: 100m, example.org/gpu: 1}, limits: {cpu: 200m, example.org/gpu: 1}}"
	const nothing = "stdin: false"
	for _, tt := range []struct {
		name    string
		quota   *corev1.ResourceQuota
		spec    string
		most    int
		refused string
	}{
		{"pods", quotaOf(amounts("pods", "2")), nothing, 2, "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"},
		{"a quota of count/pods", quotaOf(amounts("count/pods", "1")), nothing, 1, "exceeded quota: q, requested: count/pods=1, used: count/pods=1, limited: count/pods=1"},
		{"two exceeded resources are both named", quotaOf(amounts("cpu", "250m", "limits.cpu", "500m")), asks, 2,
			"exceeded quota: q, requested: cpu=100m,limits.cpu=200m, used: cpu=200m,limits.cpu=400m, limited: cpu=250m,limits.cpu=500m"},
		{"extended resources", quotaOf(amounts("requests.example.org/gpu", "1")), asks, 1,
			"exceeded quota: q, requested: requests.example.org/gpu=1, used: requests.example.org/gpu=1, limited: requests.example.org/gpu=1"},
		{"a quota of cpu limits requires limits", quotaOf(amounts("limits.cpu", "1", "requests.memory", "1Gi")), nothing, 0,
			"failed quota: q: must specify limits.cpu for: web; requests.memory for: web"},
		{"a scope that excludes the pod", quotaOf(amounts("pods", "0"), corev1.ResourceQuotaScopeBestEffort), asks, 5, ""},
		{"scopes that include the pod", quotaOf(amounts("pods", "1"), corev1.ResourceQuotaScopeBestEffort, corev1.ResourceQuotaScopeNotTerminating), nothing, 1,
			"exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"},
		{"a quota of other kinds", quotaOf(amounts("configmaps", "0", "services", "0")), nothing, 5, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, now := having(), time.Unix(0, 0)
			if _, err := Charge(tt.quota, s, now); err != nil {
				t.Fatal(err)
			}
			s, _ = state.Apply(s, []state.Change{state.Put(tt.quota, "")})
			created := 0
			for ; created < 5; created++ {
				p := aContainer(t, tt.spec)
				p.Name, p.Namespace = string(rune('a'+created)), "default"
				Default(p, normal)
				changes, err := Charge(p, s, now)
				if err != nil {
					if err.Error() != tt.refused {
						t.Errorf("refused with %q, want %q", err, tt.refused)
					}
					break
				}
				s, _ = state.Apply(s, append(changes, state.Put(p, "")))
				q := s.Get(state.KeyOf(tt.quota)).(*corev1.ResourceQuota)
				want, _ := state.QuotaStatus(s, q, now)
				for name, used := range want.Used {
					if have := q.Status.Used[name]; have.Cmp(used) != 0 {
						t.Errorf("the usage of %s is %s, but the status says %s", name, used.String(), have.String())
					}
				}
			}
			if created != tt.most {
				t.Errorf("%d pods are created, want %d", created, tt.most)
			}
		})
	}
}

func TestALimitRange(t *testing.T) {
	container := func(change func(*corev1.LimitRangeItem)) *corev1.LimitRange {
		r := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer}}}}
		change(&r.Spec.Limits[0])
		defaultRange(r)
		return r
	}
	const asks = "resources: {requests: {cpu: 100m}, limits: {cpu: 400m}}"
	for _, tt := range []struct {
		name    string
		r       *corev1.LimitRange
		spec    string
		request string
		limit   string
		refused string
	}{
		{"the maximum is the default limit", container(func(i *corev1.LimitRangeItem) { i.Max = amounts("cpu", "300m") }), "stdin: false", "300m", "300m", ""},
		{"defaults", container(func(i *corev1.LimitRangeItem) {
			i.Default, i.DefaultRequest = amounts("cpu", "2"), amounts("cpu", "50m")
		}), "stdin: false", "50m", "2", ""},
		{"explicit values stay", container(func(i *corev1.LimitRangeItem) {
			i.Default, i.DefaultRequest = amounts("cpu", "2"), amounts("cpu", "50m")
		}), asks, "100m", "400m", ""},
		{"a limit above the maximum", container(func(i *corev1.LimitRangeItem) { i.Max = amounts("cpu", "300m") }), asks, "", "", "maximum cpu usage per Container is 300m, but limit is 400m"},
		{"a request below the minimum", container(func(i *corev1.LimitRangeItem) { i.Min = amounts("cpu", "200m") }), asks, "", "", "minimum cpu usage per Container is 200m, but request is 100m"},
		{"a ratio of limit to request above the maximum", container(func(i *corev1.LimitRangeItem) { i.MaxLimitRequestRatio = amounts("cpu", "2") }), asks, "", "", "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000"},
		{"a maximum for the whole pod", container(func(i *corev1.LimitRangeItem) { i.Type, i.Max = corev1.LimitTypePod, amounts("memory", "1Gi") }), asks, "", "", "maximum memory usage per Pod is 1Gi.  No limit is specified"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			expect(t, Validate(tt.r, normal), "")
			p := aContainer(t, tt.spec)
			p.Namespace = "default"
			Default(p, normal)
			err := Complete(p, having(tt.r))
			if tt.refused != "" {
				if err == nil || err.Error() != tt.refused {
					t.Fatalf("refused with %v, want %s", err, tt.refused)
				}
				return
			}
			res := p.Spec.Containers[0].Resources
			if err != nil || res.Requests.Cpu().String() != tt.request || res.Limits.Cpu().String() != tt.limit {
				t.Errorf("%v: the container has the request %s and the limit %s", err, res.Requests.Cpu(), res.Limits.Cpu())
			}
		})
	}
}

// A limit range of pods applies to the sum of their containers. The overhead does not count: the
// runtime class sets it, and a user cannot reduce it.
func TestALimitRangeOfPodsIsForTheirContainers(t *testing.T) {
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Handler: "kata",
		Overhead: &nodev1.Overhead{PodFixed: amounts("memory", "120Mi")}}
	for _, c := range []struct {
		item    corev1.LimitRangeItem
		refused bool
	}{
		{corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: amounts("memory", "100Mi")}, false},
		{corev1.LimitRangeItem{Type: corev1.LimitTypePod, Max: amounts("memory", "90Mi")}, true},
		{corev1.LimitRangeItem{Type: corev1.LimitTypePod, Min: amounts("memory", "110Mi")}, true},
		{corev1.LimitRangeItem{Type: corev1.LimitTypePod, MaxLimitRequestRatio: amounts("memory", "2")}, false},
		{corev1.LimitRangeItem{Type: corev1.LimitTypePod, MaxLimitRequestRatio: amounts("memory", "1900m")}, true},
	} {
		r := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "default"},
			Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{c.item}}}
		s, _ := state.Apply(state.Empty("", time.Time{}), []state.Change{state.Put(class, ""), state.Put(r, "")})
		p := aPod(t, "runtimeClassName: vm")
		p.Namespace = "default"
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amounts("memory", "50Mi"),
			Limits: amounts("memory", "100Mi")}
		if err := Complete(p, s); (err != nil) != c.refused {
			t.Errorf("the range %+v: %v, want refused: %t", c.item, err, c.refused)
		}
	}
}
