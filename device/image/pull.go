package image

import (
	"context"
	"errors"
	"fmt"
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
	report, done := p.progress(w, ref, size, began)
	defer done()
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

// progressTime is the shortest interval between two reports in the pod's status.
const progressTime = 10 * time.Second

// progress reports a long pull in the pod's status, and as an event after half a minute, then at
// doubling intervals of at most ten minutes. size is that of an image of the hub, else 0. Call done
// at its end.
func (p *Puller) progress(w Want, image reference.Named, size int64, began time.Time) (told func(engine.Progress),
	done func()) {
	const first, longest = 30 * time.Second, 10 * time.Minute
	var mu sync.Mutex
	var at engine.Progress
	passed := func() int64 { return 0 }
	if size > 0 { // Podman does not say how much has come
		passed = func() int64 { return p.c.Hub.Passed(reference.Path(image)) }
	}
	before, wait, last := passed(), first, began
	report := func() {
		mu.Lock()
		now := at
		mu.Unlock()
		n, of := max(now.Bytes, passed()-before), max(now.Total, size)
		if of == 0 {
			return
		}
		text := fmt.Sprintf("%.1f of %.1f MiB", float64(min(n, of))/(1<<20), float64(of)/(1<<20))
		p.c.Pulling(w.Sources.Pod.UID, w.Container.Name, "pulling image: "+text)
		if t := time.Now(); t.Sub(last) >= wait {
			wait, last = min(2*wait, longest), t
			p.event(corev1.EventTypeNormal, "Pulling", w, "Pulling image %q: %s, %d of %d layers, since %s",
				w.Container.Image, text, now.Done, now.Layers, t.Sub(began).Round(time.Second))
		}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-end:
				p.c.Pulling(w.Sources.Pod.UID, w.Container.Name, "")
				return
			case <-time.After(progressTime):
				report()
			}
		}
	}()
	return func(now engine.Progress) {
		mu.Lock()
		at = now
		mu.Unlock()
	}, func() { close(end); <-ended }
}
