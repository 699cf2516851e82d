package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

const failedMount = "FailedMount"

// A job is a step with what it takes to do it.
type job struct {
	step   Step
	engine engine.Engine
	info   engine.Info
	src    sources
	block  string // addresses of the node's pods; empty: the engine's choice
}

// A runError is why a container could not be run, with the kubelet's word for it.
type runError struct {
	reason string
	err    error
}

func (e *runError) Error() string { return e.reason + ": " + e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// do does a step. Every step can be done again after it was cut off anywhere: a
// container that was created and not started is replaced, stopping what has stopped
// and removing what is gone are no errors.
func (a *Agent) do(ctx context.Context, j job) error {
	s := j.step
	switch s.Action {
	case Run:
		return a.run(ctx, j)
	case Stop:
		if s.Pod != nil && s.Spec != nil {
			a.event(corev1.EventTypeNormal, "Killing", s.Pod, s.Place.Container, "Stopping container %s: %s", s.Place.Container, s.Why)
		}
		return j.engine.Stop(ctx, s.ID, s.Grace)
	case Remove:
		return j.engine.Remove(ctx, s.ID)
	case Refresh:
		return a.disk.refresh(j.src)
	case Clean:
		return a.disk.clean(s.Place.Pod)
	case Probe:
		return a.probe(ctx, j)
	}
	return fmt.Errorf("%s is not something that takes time", s.Action)
}

// run brings the image, creates the container and starts it.
func (a *Agent) run(ctx context.Context, j job) error {
	s := j.step
	c := s.Spec
	if c == nil { // a sandbox is made of the first container's image
		c = everyContainer(s.Pod)[0].spec
	}
	if err := a.bring(ctx, j, c); err != nil {
		return err
	}
	spec, err := a.specOf(j)
	if err != nil {
		return err
	}
	fail := func(reason string, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		switch {
		case errors.Is(err, engine.ErrUnavailable):
		case s.Spec == nil:
			a.event(corev1.EventTypeWarning, "FailedCreatePodSandBox", s.Pod, "", "Failed to create pod sandbox: %v", err)
		default:
			a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Place.Container, "Error: %v", err)
		}
		return &runError{reason, err}
	}
	a.joining.RLock()
	defer a.joining.RUnlock()
	if err := a.join(ctx, j, &spec); err != nil {
		return fail("CreatePodSandboxError", err)
	}
	id, err := j.engine.Create(ctx, spec)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	if s.Spec != nil {
		a.event(corev1.EventTypeNormal, "Created", s.Pod, s.Place.Container, "Created container: %s", s.Place.Container)
	}
	if err := j.engine.Start(ctx, id); err != nil {
		return fail("RunContainerError", err)
	}
	if s.Spec != nil {
		a.event(corev1.EventTypeNormal, "Started", s.Pod, s.Place.Container, "Started container %s", s.Place.Container)
	}
	return nil
}

// bring sees to it that the image is there, by the container's pull policy. Ours:
// where the policy is Always and the registry cannot be reached, an image that is
// there already will do, with an event: a device must start again without network.
func (a *Agent) bring(ctx context.Context, j job, c *corev1.Container) error {
	s := j.step
	policy := c.ImagePullPolicy
	if policy == "" {
		policy = corev1.PullIfNotPresent
		if latest(c.Image) {
			policy = corev1.PullAlways
		}
	}
	_, present, err := j.engine.HasImage(ctx, c.Image)
	if err != nil {
		return &runError{"ImageInspectError", err}
	}
	if present && (policy != corev1.PullAlways || s.Spec == nil) {
		if s.Spec != nil {
			a.event(corev1.EventTypeNormal, "Pulled", s.Pod, c.Name, "Container image %q already present on machine", c.Image)
		}
		return nil
	}
	if policy == corev1.PullNever {
		err := fmt.Errorf("container image %q is not present with pull policy of Never", c.Image)
		a.event(corev1.EventTypeWarning, "ErrImageNeverPull", s.Pod, c.Name, "%v", err)
		return &runError{"ErrImageNeverPull", err}
	}
	select {
	case a.pulls <- struct{}{}:
		defer func() { <-a.pulls }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	a.event(corev1.EventTypeNormal, "Pulling", s.Pod, c.Name, "Pulling image %q", c.Image)
	began := time.Now()
	err = j.engine.Pull(ctx, c.Image, j.src.registryAuth(c.Image))
	switch {
	case err == nil:
		a.event(corev1.EventTypeNormal, "Pulled", s.Pod, c.Name, "Successfully pulled image %q in %s", c.Image, time.Since(began).Round(time.Millisecond))
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, engine.ErrUnavailable):
		return err
	case present:
		a.event(corev1.EventTypeWarning, "PullFailedUsingPresent", s.Pod, c.Name, "Failed to pull image %q: %v; the image that is on the device is used", c.Image, err)
		return nil
	}
	a.event(corev1.EventTypeWarning, "Failed", s.Pod, c.Name, "Failed to pull image %q: %v", c.Image, err)
	return &runError{"ErrImagePull", err}
}

// latest tells whether an image reference means "the newest", for which Kubernetes
// defaults to pulling always.
func latest(image string) bool {
	if strings.Contains(image, "@") {
		return false
	}
	name := image[strings.LastIndexByte(image, '/')+1:]
	_, tag, has := strings.Cut(name, ":")
	return !has || tag == "latest"
}

// specOf computes the container to create, with its volumes ready on the disk.
func (a *Agent) specOf(j job) (engine.Spec, error) {
	s := j.step
	if s.Spec == nil {
		path, err := a.pauseFile()
		if err != nil {
			return engine.Spec{}, &runError{"CreatePodSandboxError", err}
		}
		return sandboxSpec(s, j.src.node, path), nil
	}
	spec, err := containerSpec(s, j.src, a.c.Policy)
	if err != nil {
		a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: %v", err)
		return spec, &runError{"CreateContainerConfigError", err}
	}
	if spec.Mounts, err = a.disk.mounts(j.src, s.Spec, a.c.Policy); err != nil {
		a.event(corev1.EventTypeWarning, failedMount, s.Pod, s.Spec.Name, "%v", err)
		return spec, &runError{failedMount, err}
	}
	if spec.MemoryBytes > 0 && !j.info.MemLimit {
		a.event(corev1.EventTypeWarning, "MemoryLimitIgnored", s.Pod, s.Spec.Name,
			"The kernel of this device cannot limit memory: the limit of container %s has no effect; on a Raspberry Pi add cgroup_enable=memory to cmdline.txt", s.Spec.Name)
		spec.MemoryBytes = 0
	}
	return spec, nil
}
