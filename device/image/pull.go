package image

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/shared/fleet"
)

// An unreachable registry fails late: Docker waits 15 s for it, Podman many minutes. So that a
// device starts quickly after a power cut, a pull of a present image waits only answerTimeout, and
// not at all while its registry is known to be silent.
const (
	maxPulls      = 2                // at one time
	answerTimeout = 30 * time.Second // for a registry to answer a pull
	silentTime    = time.Minute      // without another try, after a pull without an answer
	silentAfter   = 3 * time.Second  // a pull that fails later than this had no answer
)

var errNoAnswer = errors.New("its registry does not answer")

// untilTimes are names with the time until which each is left alone.
type untilTimes struct {
	sync.Mutex
	until map[string]time.Time
}

func (u *untilTimes) has(name string) bool {
	u.Lock()
	defer u.Unlock()
	return time.Now().Before(u.until[name])
}

// set leaves a name alone for a while; 0 ends that.
func (u *untilTimes) set(name string, lasts time.Duration) {
	u.Lock()
	defer u.Unlock()
	if u.until == nil {
		u.until = map[string]time.Time{}
	}
	u.until[name] = time.Now().Add(lasts)
	if lasts == 0 {
		delete(u.until, name)
	}
}

// pull pulls an image. If that fails, the present image with the id had is used, if there is one.
func (p *Puller) pull(ctx context.Context, w Want, image, had string) error {
	began := time.Now()
	err := p.pullInTurn(ctx, w, image, had)
	switch {
	case err == nil:
		p.notePulled(ctx, w.Engine, image, had)
		p.event(corev1.EventTypeNormal, "Pulled", w, "Successfully pulled image %q in %s", w.Container.Image,
			time.Since(began).Round(time.Millisecond))
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, engine.ErrUnavailable):
		return err
	case had != "" && !w.first:
		p.event(corev1.EventTypeWarning, pullFailedUsePresent, w,
			"Failed to pull image %q: %v; the image that is on the device is used", w.Container.Image, err)
		return nil
	}
	if !errors.Is(err, errNoRoom) || !p.noRoom.has(image) && !w.first {
		p.event(corev1.EventTypeWarning, "Failed", w, "Failed to pull image %q: %v", w.Container.Image, err)
	}
	if errors.Is(err, errNoRoom) && !w.first {
		p.noRoom.set(image, noRoomTime)
	}
	return plan.NewRunError(errImagePull, err)
}

// pullInTurn waits for a slot and pulls an image. It notes whether the registry answers.
func (p *Puller) pullInTurn(ctx context.Context, w Want, image, had string) error {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return err // Bring has checked this
	}
	registry := reference.Domain(ref)
	for slot := false; !slot; {
		if had != "" && p.silent.has(registry) {
			return errNoAnswer
		}
		select {
		case p.pulling <- struct{}{}:
			slot = true
		case <-time.After(time.Second): // another pull may find the registry silent
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { <-p.pulling }()
	if had != "" && p.silent.has(registry) {
		return errNoAnswer
	}
	pulling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	noAnswer := time.AfterFunc(answerTimeout, func() {
		p.silent.set(registry, fleet.MaxBackOff) // until this pull ends, at the latest
		if had != "" {
			cancel(errNoAnswer)
		}
	})
	size, err := p.sizeOf(ctx, w.Engine, ref)
	if err != nil {
		return err
	}
	about := ""
	if size > 0 {
		about = " (" + mebibytes(size) + ")"
	}
	p.event(corev1.EventTypeNormal, "Pulling", w, "Pulling image %q%s", w.Container.Image, about)
	began, answered := time.Now(), false
	report := p.progress(w, began)
	err = withEach(pulling, credentials(w.Sources, image), func(auth *engine.RegistryAuth) error {
		return w.Engine.Pull(pulling, image, auth, func(now engine.Progress) {
			if now.Layers > 0 && !answered {
				answered = true
				noAnswer.Stop()
				p.silent.set(registry, 0)
			}
			report(now)
		})
	})
	noAnswer.Stop()
	if err != nil && errors.Is(context.Cause(pulling), errNoAnswer) {
		err = errNoAnswer
	}
	switch {
	case err == nil || answered || errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrUnavailable):
		p.silent.set(registry, 0)
	case time.Since(began) >= silentAfter:
		p.silent.set(registry, silentTime)
	}
	return err
}

// progress reports a long pull as an event after half a minute, then at doubling intervals of at
// most ten minutes.
func (p *Puller) progress(w Want, began time.Time) func(engine.Progress) {
	const first, longest = 30 * time.Second, 10 * time.Minute
	wait, last := first, began
	return func(at engine.Progress) {
		now := time.Now()
		if at.Layers == 0 || now.Sub(last) < wait {
			return
		}
		wait, last = min(2*wait, longest), now
		p.event(corev1.EventTypeNormal, "Pulling", w, "Pulling image %q: %.1f of %.1f MiB, %d of %d layers, since %s",
			w.Container.Image, float64(at.Bytes)/(1<<20), float64(at.Total)/(1<<20), at.Done, at.Layers,
			now.Sub(began).Round(time.Second))
	}
}
