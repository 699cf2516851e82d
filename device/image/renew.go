package image

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

	// renewTime is the minimum time between two renewals of one image. Another pull does not help if
	// the disk is broken, or if running containers or other images share the damaged layer.
	renewTime = time.Hour
)

// Renew replaces an image that lacks files of a layer, for example after a power cut: only another
// pull restores them. The image and its stopped containers are removed once its registry answers.
func (p *Puller) Renew(ctx context.Context, w Want, image string, damage error) error {
	why := p.removeDamaged(ctx, w, image)
	next := "it is removed and pulled again"
	if why != nil {
		next = why.Error()
	}
	p.event(corev1.EventTypeWarning, imageDamaged, w, "Image %q lacks files on this device: %v; %s", image, damage, next)
	if why != nil {
		return plan.NewRunError(imageInspectError, errors.Join(damage, why))
	}
	return p.pull(ctx, w, image, "")
}

// removeDamaged removes a damaged image that can be pulled again. The error says why it did not.
func (p *Puller) removeDamaged(ctx context.Context, w Want, image string) error {
	if w.Container.ImagePullPolicy == corev1.PullNever {
		return errors.New("its pull policy is Never: remove it on the device, and load it again")
	}
	if p.renewed.has(image) {
		return errors.New("it was pulled again less than an hour ago: check the disk, and whether running containers or " +
			"other images of the device share its layers")
	}
	p.renewed.set(image, renewTime)        // set first, so that only one of the image's containers renews it
	err := p.pullInTurn(ctx, w, image, "") // checks that the registry answers
	if err != nil && !errors.Is(err, engine.ErrDamaged) {
		p.renewed.set(image, 0)
		return fmt.Errorf("it is not removed, since it cannot be pulled: %w", err)
	}
	ids, err := w.Stopped(ctx, image)
	for _, id := range ids {
		err = errors.Join(err, w.Engine.Remove(ctx, id))
	}
	return errors.Join(err, w.Engine.RemoveImage(ctx, image))
}
