package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/hardware"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/probe"
	"flotilla.dev/device/volume"
)

const (
	// makeTimeout limits the creation and start of a container: some engines copy the image onto a
	// slow card.
	makeTimeout = 10 * time.Minute
)

// A job is a step with everything that is needed to do it.
type job struct {
	step   plan.Step
	engine engine.Engine
	info   engine.Info
	src    podspec.Sources
	node   plan.Facts
	block  string // block of the pods' addresses; empty: the engine's default network
	hard   hardware.Thresholds
}

// do does a step. An interrupted step can be repeated: a container that was created but not started
// is replaced, and stopping or removing a container twice is not an error.
func (a *Agent) do(ctx context.Context, j job) error {
	s := j.step
	switch s.Action {
	case plan.Run:
		return a.run(ctx, j)
	case plan.Stop:
		if s.Pod != nil && s.Spec != nil {
			a.event(corev1.EventTypeNormal, "Killing", s.Pod, s.Place.Container, "Stopping container %s: %s", s.Place.Container,
				s.Why)
		}
		return a.stop(ctx, j)
	case plan.Remove:
		if err := j.engine.Remove(ctx, s.ID); err != nil {
			return err
		}
		a.disk.forgetMessage(s)
		a.disk.forgetMade(s)
		a.disk.forgetHooks(s)
		return nil
	case plan.Refresh:
		return a.disk.Refresh(j.src)
	case plan.Clean:
		err := a.disk.Clean(s.Place.Pod)
		a.disk.RemoveUnusedImages()
		return err
	case plan.Hook:
		return a.postStart(ctx, j)
	case plan.Update:
		return j.update(ctx)
	case plan.Probe:
		return a.prober.Probe(ctx, j.engine, targetOf(s), podspec.ProbeOf(s.Spec, s.Probe))
	}
	return fmt.Errorf("unknown step %s", s.Action)
}

// run pulls the image, then creates and starts the container.
func (a *Agent) run(ctx context.Context, j job) error {
	s := j.step
	c := s.Spec
	if c == nil { // a sandbox uses the first container's image
		c = podspec.Containers(s.Pod)[0].Spec
	}
	if s.Missing != "" {
		a.event(corev1.EventTypeWarning, "DeviceUnavailable", s.Pod, s.Place.Container, "%s", s.Missing)
		return plan.NewRunError(plan.DeviceUnavailable, errors.New(s.Missing))
	}
	if s.Forbidden != "" {
		a.event(corev1.EventTypeWarning, plan.PolicyForbidden, s.Pod, s.Place.Container, "%s", s.Forbidden)
		return plan.NewRunError(plan.PolicyForbidden, errors.New(s.Forbidden))
	}
	if s.Spec != nil {
		// As with the kubelet, no image is pulled for a container whose volumes fail.
		if err := a.disk.SetUp(j.src, s.Spec, a.c.Policy.Document); err != nil {
			return a.notMounted(j, err)
		}
	}
	image, err := a.images.Bring(ctx, a.want(j, c))
	if err != nil {
		return err
	}
	if s.Spec != nil && plan.NeedsImageUser(s.Pod, c) {
		if j.src.ImageUser, err = j.engine.ImageUser(ctx, image); err != nil {
			return plan.NewRunError("ImageInspectError", err)
		}
	}
	if s.Spec != nil {
		if j.src.Images, err = a.bringImages(ctx, j); err != nil {
			return err
		}
	}
	spec, volumes, err := a.specOf(j)
	defer func() {
		if err := volumes.Close(); err != nil {
			a.log.Warn("unmount the volumes of a started container", "err", err)
		}
	}()
	if err != nil {
		return err
	}
	spec.Image = image
	fail := func(reason string, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if strings.Contains(err.Error(), a.disk.Binds()) {
			err = fmt.Errorf("%w (the container engine does not see what the agent mounts: both must be in the device's "+
				"first mount namespace)", err)
		}
		err = j.src.MaskSecrets(s.Spec, err)
		switch {
		case errors.Is(err, engine.ErrUnavailable):
		case s.Spec == nil:
			a.event(corev1.EventTypeWarning, "FailedCreatePodSandBox", s.Pod, "", "Failed to create pod sandbox: %v", err)
		default:
			a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Place.Container, "Error: %v", err)
		}
		return plan.NewRunError(reason, err)
	}
	err = a.begin(ctx, j, spec, fail)
	if errors.Is(err, engine.ErrDamaged) {
		if err = a.images.Renew(ctx, a.want(j, c), image, err); err == nil {
			err = a.begin(ctx, j, spec, fail)
		}
	}
	return err
}

// begin creates a container and starts it.
func (a *Agent) begin(ctx context.Context, j job, spec engine.Spec, fail func(reason string, err error) error) error {
	s := j.step
	a.networkMutex.RLock()
	defer a.networkMutex.RUnlock()
	if err := a.join(ctx, j, &spec); err != nil {
		return fail("CreatePodSandboxError", err)
	}
	making, cancel := context.WithTimeout(ctx, makeTimeout) // a hanging engine must become visible as a failure
	defer cancel()
	id, err := j.engine.Create(making, spec)
	if err != nil {
		return fail("CreateContainerError", err)
	}
	a.disk.noteMade(s, id)
	if s.Spec != nil {
		a.event(corev1.EventTypeNormal, "Created", s.Pod, s.Place.Container, "Created container: %s", s.Place.Container)
	}
	if err := j.engine.Start(making, id); err != nil {
		return fail("RunContainerError", err)
	}
	if s.Spec != nil {
		a.event(corev1.EventTypeNormal, "Started", s.Pod, s.Place.Container, "Started container %s", s.Place.Container)
	}
	return nil
}

// notMounted is the failure of a container whose mounts failed.
func (a *Agent) notMounted(j job, err error) error {
	event, reason := plan.FailedMount, plan.FailedMount
	if errors.Is(err, volume.ErrSubPath) { // the same reason as the kubelet's, which mounts the volumes earlier
		event, reason = "Failed", "CreateContainerConfigError"
	}
	err = j.src.MaskSecrets(j.step.Spec, err)
	a.event(corev1.EventTypeWarning, event, j.step.Pod, j.step.Spec.Name, "%v", err)
	return plan.NewRunError(reason, err)
}

// specOf computes the spec of the container to create. Its volumes stay mounted until the caller
// closes them, also after an error.
func (a *Agent) specOf(j job) (engine.Spec, *volume.Mounts, error) {
	s, volumes := j.step, &volume.Mounts{}
	if s.Spec == nil {
		path, err := a.pauseFile()
		if err != nil {
			return engine.Spec{}, volumes, plan.NewRunError("CreatePodSandboxError", err)
		}
		spec := plan.SandboxSpec(s, j.node, path)
		applyDNS(&spec, s.Pod)
		if spec.Runtime, err = runtimeOf(a.c.Runtimes, j.info, s.Pod); err != nil {
			return spec, volumes, plan.NewRunError("CreatePodSandboxError", err)
		}
		return spec, volumes, nil
	}
	spec, err := plan.ContainerSpec(s, j.node, j.src, a.c.Policy)
	applyDNS(&spec, s.Pod)
	if err != nil {
		err = j.src.MaskSecrets(s.Spec, err)
		a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: %v", err)
		return spec, volumes, plan.NewRunError("CreateContainerConfigError", err)
	}
	if spec.Runtime, err = runtimeOf(a.c.Runtimes, j.info, s.Pod); err != nil {
		a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: %v", err)
		return spec, volumes, plan.NewRunError("CreateContainerError", err)
	}
	if spec.Seccomp, err = seccomp(a.c.Seccomp, s.Pod, s.Spec); err != nil {
		a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: %v", err)
		return spec, volumes, plan.NewRunError("CreateContainerError", err)
	}
	if spec.AppArmor, err = a.appArmor(j.node, s.Pod, s.Spec); err != nil {
		a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: %v", err)
		return spec, volumes, plan.NewRunError("CreateContainerError", err)
	}
	if volumes, err = a.disk.PrepareMounts(j.src, s.Spec, a.c.Policy.Document); err != nil {
		return spec, volumes, a.notMounted(j, err)
	}
	spec.Mounts = volumes.List
	switch source, err := a.disk.makeMessageFile(s); {
	case err != nil: // as with the kubelet, the container runs without the file
		a.log.Warn("create the file for a container's termination message", "pod", s.Place.Pod, "container", s.Spec.Name,
			"err", err)
	case source != "":
		spec.Mounts = append(spec.Mounts, engine.Mount{Source: source, Target: podspec.MessagePath(s.Spec)})
	}
	ip := ""
	if s.Network != "" {
		ip = j.src.PodIP
	}
	etc, err := a.disk.Etc(s.Pod, s.Spec, ip)
	if err != nil {
		a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: make the pod's /etc/hosts: %v", err)
		return spec, volumes, plan.NewRunError("CreateContainerConfigError", err)
	}
	spec.Mounts = append(spec.Mounts, etc...)
	if err := addDevices(&spec, s.Devices, a.c.Hardware.Look); err != nil {
		a.post(func() { a.loop.reportAt = time.Time{} }) // the devices have changed since the last report
		a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: %v", err)
		return spec, volumes, plan.NewRunError("CreateContainerConfigError", err)
	}
	if spec.MemoryBytes > 0 && !j.info.MemLimit {
		a.event(corev1.EventTypeWarning, "MemoryLimitIgnored", s.Pod, s.Spec.Name,
			"The kernel of this device cannot limit memory: the limit of container %s has no effect; on a Raspberry Pi add "+
				"cgroup_enable=memory to cmdline.txt", s.Spec.Name)
		spec.MemoryBytes = 0
	}
	if spec.CPUs = cmp.Or(s.CPUs, plan.CPUsOf(s, j.node.NUMA)); spec.CPUs != "" && !j.info.CPUSet {
		a.event(corev1.EventTypeWarning, "CPUSetIgnored", s.Pod, s.Spec.Name,
			"The kernel of this device cannot pin containers to processors: container %s may also run on others "+
				"than %s, of its NUMA nodes", s.Spec.Name, spec.CPUs)
	}
	return spec, volumes, nil
}

// targetOf is the target of a probe or hook.
func targetOf(s plan.Step) probe.Target {
	return probe.Target{ID: s.ID, Spec: s.Spec, IP: s.IP, HostNetwork: s.Pod != nil && s.Pod.Spec.HostNetwork}
}
