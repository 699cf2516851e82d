package agent

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
)

// memoryPod is a pod of one container with a memory request and limit; an empty text means none.
func memoryPod(name, request, limit string) corev1.Pod {
	p := makePod(name, "wait")
	r := &p.Spec.Containers[0].Resources
	if request != "" {
		r.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(request)}
	}
	if limit != "" {
		r.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)}
	}
	return p
}

// A recordingEngine records the specs of created containers.
type recordingEngine struct {
	engine.Engine
	mu    sync.Mutex
	specs map[string]engine.Spec // spec by container name
}

func (n *recordingEngine) Create(ctx context.Context, s engine.Spec) (string, error) {
	n.mu.Lock()
	if n.specs == nil {
		n.specs = map[string]engine.Spec{}
	}
	n.specs[s.Labels[plan.LabelPodName]+"/"+s.Labels[plan.LabelContainer]] = s
	n.mu.Unlock()
	return n.Engine.Create(ctx, s)
}

// spec is the last spec of a container.
func (n *recordingEngine) spec(name string) engine.Spec {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.specs[name]
}

// With LimitedSwap the engine gets swap limits, and the node has the condition SwapLimits.
func TestSwapOfContainersIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		recorder := &recordingEngine{Engine: d.fake}
		d.engine = recorder
		info, _ := d.fake.Info(t.Context())
		info.SwapLimit, info.CgroupV2 = true, true
		d.fake.SetInfo(info)
		d.config.Swap = plan.LimitedSwap
		d.board.swap = 512 << 20
		d.start()
		defer func() { d.end() }()
		d.desire(1, memoryPod("burstable", "256Mi", "1Gi"), memoryPod("effortless", "", ""))
		time.Sleep(time.Second)
		synctest.Wait()
		d.wantPhase("burstable", corev1.PodRunning, "")
		if s := recorder.spec("burstable/c0"); s.MemoryBytes != 1<<30 || s.SwapBytes != 64<<20 {
			t.Errorf("the burstable pod has memory %d and swap %d", s.MemoryBytes, s.SwapBytes)
		}
		if s := recorder.spec("effortless/c0"); s.MemoryBytes != 2<<30 || s.SwapBytes != 0 {
			t.Errorf("the best-effort pod has memory %d and swap %d", s.MemoryBytes, s.SwapBytes)
		}
		st := d.agent.Status().Status
		if st.NodeInfo.Swap == nil || *st.NodeInfo.Swap.Capacity != 512<<20 {
			t.Errorf("the node's swap is %+v, want 512 MiB", st.NodeInfo.Swap)
		}
		found := false
		for _, c := range st.Conditions {
			found = found || c.Type == "SwapLimits" && c.Reason == "LimitedSwap"
		}
		if !found {
			t.Errorf("SwapLimits with LimitedSwap is missing from %+v", st.Conditions)
		}
	})
}
