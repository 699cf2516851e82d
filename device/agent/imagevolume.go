package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/image"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/volume"
)

// want is the image that a container of the job's pod needs.
func (a *Agent) want(j job, c *corev1.Container) image.Want {
	return image.Want{Engine: j.engine, Sources: j.src, Container: c, Sandbox: j.step.Spec == nil,
		Stopped: func(ctx context.Context, image string) (ids []string, err error) {
			list, err := j.engine.Containers(ctx, plan.LabelAgent+"="+a.c.Node)
			for _, made := range OwnContainers(a.disk.Root, list) {
				if in, ok := plan.InstanceOf(made, j.node); ok && plan.HasStopped(in) && in.Image == image {
					ids = append(ids, in.ID)
				}
			}
			return ids, err
		}}
}

// bringImages pulls the images that a container mounts as volumes, and copies each into a
// directory. It returns the directory for each volume.
func (a *Agent) bringImages(ctx context.Context, j job) (map[string]string, error) {
	s, copies := j.step, map[string]string{}
	for _, m := range s.Spec.VolumeMounts {
		i := slices.IndexFunc(s.Pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 || s.Pod.Spec.Volumes[i].Image == nil || copies[m.Name] != "" {
			continue
		}
		v := s.Pod.Spec.Volumes[i].Image
		image, err := a.images.Bring(ctx, a.want(j, &corev1.Container{Image: v.Reference, ImagePullPolicy: v.PullPolicy}))
		if err != nil {
			return nil, err
		}
		copies[m.Name], err = a.disk.CopyImage(ctx, j.engine, volume.ImageCopy{Image: image, Pod: s.Pod.UID,
			Container: s.Spec.Name, State: j.node.StateDir, Hard: j.hard})
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, engine.ErrUnavailable):
			return nil, err
		default:
			err = fmt.Errorf("ImageVolumeMountFailed: volume %q: image %s: %w", m.Name, v.Reference, err)
			a.event(corev1.EventTypeWarning, "Failed", s.Pod, s.Spec.Name, "Error: %v", err)
			return nil, plan.NewRunError("CreateContainerError", err)
		}
	}
	if a.disk.SetUsedImages(s.Pod.UID, s.Spec.Name, copies) {
		a.disk.RemoveUnusedImages()
	}
	return copies, nil
}
