package agent

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/request"
)

// running finds a running container. An empty name selects the pod's default container, or the
// first one.
func (a *Agent) running(ctx context.Context, uid types.UID, name string) (e engine.Engine, id string, err error) {
	err = a.inLoop(ctx, func(l *loop) (err error) {
		e, id, err = l.running(uid, name)
		return err
	})
	return e, id, err
}

// inLoop runs a function in the loop and returns its error.
func (a *Agent) inLoop(ctx context.Context, ask func(*loop) error) error {
	out := make(chan error, 1)
	a.post(func() { out <- ask(&a.loop) })
	select {
	case err := <-out:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-a.ended:
		return request.ErrStopping
	}
}

func (l *loop) running(uid types.UID, name string) (engine.Engine, string, error) {
	if l.engine == nil {
		return nil, "", fmt.Errorf("the device's container engine does not answer: %w", l.engineErr)
	}
	pod := l.pod(uid)
	if pod == nil {
		return nil, "", fmt.Errorf("pod %s is not on this device", uid)
	}
	if name == "" {
		name = pod.Annotations["kubectl.kubernetes.io/default-container"]
	}
	if name == "" && len(pod.Spec.Containers) > 0 {
		name = pod.Spec.Containers[0].Name
	}
	if name != request.AnyContainer && podspec.Find(pod, name) == nil {
		return nil, "", fmt.Errorf("container %s is not valid for pod %s", name, pod.Name)
	}
	for _, in := range l.o.Containers {
		if in.Place.Pod == uid && (in.Place.Container == name || name == request.AnyContainer) && in.State == engine.Running {
			return l.engine, in.ID, nil
		}
	}
	for place, c := range l.o.RecordOf(uid).Container {
		if c.State == engine.Paused && (place == name || name == request.AnyContainer) {
			return nil, "", fmt.Errorf(
				"container %s of pod %s is paused; unpause it on the device with its container engine, such as docker unpause",
				place, pod.Name)
		}
	}
	if name == request.AnyContainer {
		return nil, "", fmt.Errorf("no container of pod %s is running", pod.Name)
	}
	why := "it has not been started yet"
	switch c := l.o.RecordOf(uid).Peek(name); {
	case c.Failure != nil:
		why = c.Failure.Reason + ": " + c.Failure.Message
	case c.Ended != nil:
		why = fmt.Sprintf("it has ended with exit code %d", c.Ended.ExitCode)
	}
	return nil, "", fmt.Errorf("container %s of pod %s is not running: %s", name, pod.Name, why)
}

// pod finds a desired pod, or returns nil.
func (l *loop) pod(uid types.UID) *corev1.Pod {
	for i := range l.desired.Pods {
		if l.desired.Pods[i].UID == uid {
			return &l.desired.Pods[i]
		}
	}
	return nil
}

// logOf finds the container instance that has the requested log.
func (a *Agent) logOf(ctx context.Context, uid types.UID, name string, previous bool) (e engine.Engine, id string,
	err error) {
	err = a.inLoop(ctx, func(l *loop) (err error) {
		e, id, err = l.logOf(uid, name, previous)
		return err
	})
	return e, id, err
}

func (l *loop) logOf(uid types.UID, name string, previous bool) (engine.Engine, string, error) {
	if l.engine == nil {
		return nil, "", fmt.Errorf("read the log: %w", l.engineErr)
	}
	podName := string(uid)
	if p := l.pod(uid); p != nil {
		podName = p.Name
		if name == "" && len(p.Spec.Containers) > 0 {
			name = p.Spec.Containers[0].Name
		}
		if podspec.Find(p, name) == nil {
			return nil, "", fmt.Errorf("container %s is not valid for pod %s", name, podName)
		}
	}
	n := 0
	for _, in := range l.o.Containers {
		if in.Place != (plan.Place{Pod: uid, Container: name}) || in.State == engine.Created {
			continue
		}
		if n == 0 && !previous || n == 1 && previous {
			return l.engine, in.ID, nil
		}
		// While a container waits for its restart, the instance that ended counts as the previous
		// one.
		if n == 0 && previous && !plan.IsRunning(in) {
			return l.engine, in.ID, nil
		}
		n++
	}
	if previous {
		return nil, "", fmt.Errorf("previous terminated container %q in pod %q not found", name, podName)
	}
	return nil, "", fmt.Errorf("container %q in pod %q is waiting to start: it has no log yet", name, podName)
}
