package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
)

const (
	imageDamaged = "ImageDamaged"
	renewTime    = time.Hour // between two renewals of one image: it may be the disk, or a layer that others hold
)

// renewed are the images that were damaged, and when each was renewed last.
type renewed struct {
	sync.Mutex
	at map[string]time.Time
}

// due tells whether an image may be renewed now, and takes it that it is.
func (r *renewed) due(image string, now time.Time) bool {
	r.Lock()
	defer r.Unlock()
	if last, has := r.at[image]; has && now.Sub(last) < renewTime {
		return false
	}
	if r.at == nil {
		r.at = map[string]time.Time{}
	}
	r.at[image] = now
	return true
}

func (r *renewed) forget(image string) {
	r.Lock()
	defer r.Unlock()
	delete(r.at, image)
}

// renew replaces an image that lacks the files of a layer, after a power cut say: nothing but another pull
// brings them. It is removed only once its registry has answered, with the stopped containers that hold it.
func (a *Agent) renew(ctx context.Context, j job, c *corev1.Container, image string, damage error) error {
	fail := func(err error) error {
		a.event(corev1.EventTypeWarning, imageDamaged, j.step.Pod, c.Name, "Image %q lacks files on this device: %v; %v", image, damage, err)
		return &runError{"ImageInspectError", errors.Join(damage, err)}
	}
	if c.ImagePullPolicy == corev1.PullNever {
		return fail(errors.New("its pull policy is Never: remove it on the device, and load it again"))
	}
	if !a.renewed.due(image, time.Now()) {
		return fail(errors.New("it was pulled again less than an hour ago: check the disk, and whether running containers or other images of the device share its layers"))
	}
	err := a.pullIt(ctx, j, c, image, "") // asks for what it has already
	if err != nil && !errors.Is(err, engine.ErrDamaged) {
		a.renewed.forget(image)
		return fail(fmt.Errorf("it is not removed, since it cannot be pulled: %w", err))
	}
	a.event(corev1.EventTypeWarning, imageDamaged, j.step.Pod, c.Name, "Image %q lacks files on this device: %v; it is removed and pulled again", image, damage)
	list, err := j.engine.Containers(ctx, LabelAgent+"="+a.c.Node)
	for _, made := range Made(a.disk.root, list) {
		if in, ok := ours(made, j.src.node); ok && hasStopped(in) && in.Image == image {
			err = errors.Join(err, j.engine.Remove(ctx, in.ID))
		}
	}
	if err = errors.Join(err, j.engine.RemoveImage(ctx, image)); err != nil {
		return fail(err)
	}
	return a.pull(ctx, j, c, image, "")
}
