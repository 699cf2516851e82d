package agent

import (
	"context"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
)

// startTimeout is for starting everything that is there.
const startTimeout = 2 * time.Minute

// resort is the last one of a device that has lost what its hub wants and cannot ask it:
// the containers that it has made and that have ended are started as they are, once, each
// pod's sandbox first. Pods that have ended for good stay so, and init containers have
// done their work. When the hub is back everything goes by what it wants.
func (a *Agent) resort() {
	l := &a.loop
	l.resorted = true
	todo := lastResort(&l.o)
	if len(todo) == 0 {
		return
	}
	a.event(corev1.EventTypeWarning, "DesiredStateLost", nil, "",
		"This device has lost what its hub wants here, and starts the %d containers that it has as they are", len(todo))
	e := l.engine
	a.async(startTimeout, func(ctx context.Context) func() {
		for _, in := range todo {
			if err := e.Start(ctx, in.ID); err != nil {
				a.log.Warn("start a container without the desired state", "container", in.Name, "err", err)
			}
		}
		return l.changed
	})
}

// lastResort lists the newest instance of each sandbox and app container that has ended,
// but of pods that have ended for good; sandboxes first.
func lastResort(o *plan.Observed) (out []plan.Instance) {
	for i, in := range o.Containers { // the newest of a place first
		r := o.Pods[in.Place.Pod]
		if i > 0 && o.Containers[i-1].Place == in.Place || in.State != engine.Exited || r != nil && r.Final != nil {
			continue
		}
		if in.Kind == podspec.KindSandbox || in.Kind == podspec.KindApp {
			out = append(out, in)
		}
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].Kind == podspec.KindSandbox && out[j].Kind != podspec.KindSandbox })
	return out
}
