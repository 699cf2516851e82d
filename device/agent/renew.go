package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
)

const (
	imageDamaged = "ImageDamaged"
	renewTime    = time.Hour // between two renewals of one image: it may be the disk, or a layer that others hold
)

// renew replaces an image that lacks the files of a layer, after a power cut say: nothing but
// another pull brings them. It is removed only once its registry has answered, with the stopped
// containers that hold it.
func (a *Agent) renew(ctx context.Context, j job, c *corev1.Container, image string, damage error) error {
	why := a.removeDamaged(ctx, j, c, image)
	next := "it is removed and pulled again"
	if why != nil {
		next = why.Error()
	}
	a.event(corev1.EventTypeWarning, imageDamaged, j.step.Pod, c.Name, "Image %q lacks files on this device: %v; %s",
		image, damage, next)
	if why != nil {
		return &runError{"ImageInspectError", errors.Join(damage, why)}
	}
	return a.pull(ctx, j, c, image, "")
}

// removeDamaged removes a damaged image that can be pulled again, or says why not.
func (a *Agent) removeDamaged(ctx context.Context, j job, c *corev1.Container, image string) error {
	if c.ImagePullPolicy == corev1.PullNever {
		return errors.New("its pull policy is Never: remove it on the device, and load it again")
	}
	if a.renewed.is(image) {
		return errors.New("it was pulled again less than an hour ago: check the disk, and whether running containers or " +
			"other images of the device share its layers")
	}
	a.renewed.set(image, renewTime)       // of two containers of it, one renews it
	err := a.pullIt(ctx, j, c, image, "") // asks for what it has already
	if err != nil && !errors.Is(err, engine.ErrDamaged) {
		a.renewed.set(image, 0)
		return fmt.Errorf("it is not removed, since it cannot be pulled: %w", err)
	}
	list, err := j.engine.Containers(ctx, plan.LabelAgent+"="+a.c.Node)
	for _, made := range Made(a.disk.Root, list) {
		if in, ok := plan.InstanceOf(made, j.node); ok && plan.HasStopped(in) && in.Image == image {
			err = errors.Join(err, j.engine.Remove(ctx, in.ID))
		}
	}
	return errors.Join(err, j.engine.RemoveImage(ctx, image))
}
