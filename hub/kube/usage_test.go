package kube

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/shared/wire"
)

// measurers are devices that need time to measure.
type measurers struct {
	takes map[string]time.Duration

	mu    sync.Mutex
	asked []string
}

func (m *measurers) Usage(ctx context.Context, node string) (wire.Usage, error) {
	m.mu.Lock()
	m.asked = append(m.asked, node)
	m.mu.Unlock()
	select {
	case <-time.After(m.takes[node]):
		return wire.Usage{Time: time.Now(), Node: corev1.ResourceList{"cpu": quantity.MustParse("1")}}, nil
	case <-ctx.Done():
		return wire.Usage{}, ctx.Err()
	}
}

// All devices are asked at once, silent ones not at all, and late answers are left out.
func TestLateMeasurementsAreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		silent := fakeNode("silent", "oslo")
		silent.Status.Conditions[0].Status = corev1.ConditionUnknown
		f.put(fakeNode("quick", "oslo"), fakeNode("slow", "oslo"), fakeNode("stuck", "oslo"), silent)
		m := &measurers{takes: map[string]time.Duration{"quick": 2 * time.Second, "slow": 7 * time.Second,
			"stuck": time.Hour}}
		s := newServer(f)
		s.Metrics = m
		began := time.Now()
		get := func(path string) *httptest.ResponseRecorder {
			return request{role: "viewer", method: "GET", path: "/apis/metrics.k8s.io/v1beta1/nodes" + path}.do(s)
		}
		var list metricsv1beta1.NodeMetricsList
		if err := json.Unmarshal(get("").Body.Bytes(), &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		if took := time.Since(began); len(names) != 2 || names[0] != "quick" || names[1] != "slow" || took != measureTimeout {
			t.Errorf("the measurements after %s are %v, want quick and slow", took, names)
		}
		if len(m.asked) != 3 {
			t.Errorf("requests were sent to %v, want three devices", m.asked)
		}
		for _, node := range []string{"stuck", "silent"} {
			if w := get("/" + node); w.Code != 404 {
				t.Errorf("%s: %d %s; want 404", node, w.Code, w.Body)
			}
		}
	})
}
