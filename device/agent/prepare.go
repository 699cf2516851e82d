package agent

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/image"
	"flotilla.dev/device/podspec"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

const (
	prepareTime  = 2 * time.Hour    // for one pull
	firstPrepare = 20 * time.Second // between two tries; it doubles
)

// A preparation is an image that the hub wants on the device before a pod needs it.
type preparation struct {
	of     wire.Preparation
	pod    *corev1.Pod // names the image and the pull secrets; it never runs
	done   bool
	at     time.Time // of the next try
	failed int
}

// prepareImages pulls the next image of the desired state's list that is due, one at a time.
func (a *Agent) prepareImages(now time.Time) (next time.Time) {
	l := &a.loop
	next = now.Add(maxIdle)
	var list []wire.Preparation
	if l.desired.Images != nil {
		list = l.desired.Images.Prepare
	}
	l.preparations = slices.DeleteFunc(l.preparations, func(p *preparation) bool {
		return !slices.ContainsFunc(list, p.of.Equal)
	})
	for _, of := range list {
		if !slices.ContainsFunc(l.preparations, func(p *preparation) bool { return p.of.Equal(of) }) {
			l.preparations = append(l.preparations, &preparation{of: of, pod: podToPrepare(of)})
		}
	}
	for _, p := range l.preparations {
		switch {
		case p.done || l.preparing || l.engine == nil:
		case now.Before(p.at):
			if p.at.Before(next) {
				next = p.at
			}
		default:
			a.prepareImage(p)
		}
	}
	return next
}

// podToPrepare returns a pod with a container that has the image.
func podToPrepare(of wire.Preparation) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace = of.Namespace
	pod.Spec.Containers = []corev1.Container{{Image: of.Image}}
	for _, name := range of.PullSecrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return pod
}

func (a *Agent) prepareImage(p *preparation) {
	l := &a.loop
	if p.failed == 0 {
		if why := a.c.Policy.Forbids(p.pod); why != "" {
			a.event(corev1.EventTypeWarning, "PrepullForbidden", nil, "", "Image %q is not pulled in advance: %s", p.of.Image,
				why)
			p.at = time.Now().Add(prepareTime)
			p.failed++
			return
		}
	}
	l.preparing = true
	want := image.Want{Engine: l.engine, Container: &p.pod.Spec.Containers[0], Sandbox: true,
		Sources: podspec.Sources{Pod: p.pod, Secrets: l.desired.Secrets},
		Stopped: func(context.Context, string) ([]string, error) { return nil, nil }}
	a.async(prepareTime, func(ctx context.Context) func() {
		_, err := a.images.Bring(ctx, want)
		return func() {
			l.preparing = false
			if err == nil {
				p.done = true
				return
			}
			p.at = time.Now().Add(min(firstPrepare<<min(p.failed, 10), fleet.MaxBackOff))
			p.failed++
		}
	})
}

// preparedImages puts the prepared images, by the names in the hub's list, before the others: the
// hub waits for them.
func (l *loop) preparedImages(images []corev1.ContainerImage) []corev1.ContainerImage {
	var first []corev1.ContainerImage
	for _, p := range l.preparations {
		if p.done {
			first = append(first, corev1.ContainerImage{Names: []string{p.of.Image}})
		}
	}
	all := append(first, images...)
	return all[:min(len(all), maxImages)]
}
