package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/signature"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/policy"
)

// Reasons why there is no image, in the kubelet's words.
const (
	errImagePull         = "ErrImagePull"
	errImageNeverPull    = "ErrImageNeverPull"
	signatureInvalid     = "SignatureValidationFailed"
	pullFailedUsePresent = "PullFailedUsingPresent"
)

// A Verify function tells which digest an image has and whether one of the keys has
// signed it (signature.Verify).
type Verify func(ctx context.Context, image string, keys []policy.Key, c signature.Credentials) (signature.Verified,
	error)

// bring sees to it that the image is there, by the container's pull policy, and
// returns the name to run it by. Ours: where the policy is Always and the registry
// cannot be reached, an image that is there already will do, with an event: a device
// must start again without network.
func (a *Agent) bring(ctx context.Context, j job, c *corev1.Container) (string, error) {
	if _, err := reference.ParseDockerRef(c.Image); err != nil { // it would be part of a path of the engine's API
		err = fmt.Errorf("failed to parse image name %q: %w", c.Image, err)
		a.event(corev1.EventTypeWarning, "InspectFailed", j.step.Pod, c.Name, "%v", err)
		return "", &runError{"InvalidImageName", err}
	}
	image := a.c.Policy.ImageOf(c.Image)
	always, never := c.ImagePullPolicy == corev1.PullAlways || c.ImagePullPolicy == "" && latest(c.Image),
		c.ImagePullPolicy == corev1.PullNever
	keys, known := a.c.Policy.Signers(c.Image)
	verified := false // in this very moment
	var unreachable error
	if !known { // its pod was not admitted: this is a mistake of ours, and must not run
		return "", a.noImage(j, c, signatureInvalid,
			fmt.Errorf("no rule of this device's policy says who must have signed image %q", c.Image))
	}
	if len(keys) > 0 {
		var err error
		if image, verified, err = a.trusted(ctx, j, image, keys, always && j.step.Spec != nil); image == "" {
			return "", a.noSignature(ctx, j, c, err)
		}
		unreachable = err
	}
	had, present, err := j.engine.HasImage(ctx, image)
	switch {
	case errors.Is(err, engine.ErrDamaged):
		return image, a.renew(ctx, j, c, image, err)
	case err != nil:
		a.event(corev1.EventTypeWarning, "InspectFailed", j.step.Pod, c.Name, "Failed to inspect image %q: %v", image, err)
		return "", &runError{"ImageInspectError", err}
	case present && unreachable != nil:
		a.event(corev1.EventTypeWarning, pullFailedUsePresent, j.step.Pod, c.Name,
			"%v; the image that is on the device is used", unreachable)
		return image, nil
	case present && (!always || verified ||
		j.step.Spec == nil): // by a digest that was looked at just now there is nothing newer
		if j.step.Spec != nil {
			a.event(corev1.EventTypeNormal, "Pulled", j.step.Pod, c.Name, "Container image %q already present on machine",
				c.Image)
		}
		return image, nil
	case never:
		return "", a.noImage(j, c, errImageNeverPull,
			fmt.Errorf("container image %q is not present with pull policy of Never", c.Image))
	}
	return image, a.pull(ctx, j, c, image, had)
}

// trusted is the name, by digest, under which an image may run that needs a signature:
// one that was verified before and is still what the pull policy wants, or what its
// registry has now. An empty name comes with why there is none, and a name with an
// error was verified before, and its registry does not answer now.
func (a *Agent) trusted(ctx context.Context, j job, image string, keys []policy.Key, always bool) (name string,
	now bool, err error) {
	last, known := a.c.Memory.Verified(image)
	known = known && slices.ContainsFunc(keys, func(k policy.Key) bool { return k.ID == last.Key })
	if known && !always {
		return last.Image, false, nil
	}
	var v signature.Verified
	err = withEach(ctx, credentials(j.src, image), func(auth *engine.RegistryAuth) (err error) {
		var who signature.Credentials
		if auth != nil {
			who = signature.Credentials{Username: auth.Username, Password: auth.Password}
		}
		v, err = a.c.Verify(ctx, image, keys, who)
		return err
	})
	switch {
	case err == nil:
		if err := a.c.Memory.SetVerified(memory.Verified{Asked: image, Image: v.Image, Key: v.Key}); err != nil {
			a.log.Error("a verified image", "err", err)
		}
		return v.Image, true, nil
	case known && !errors.Is(err, signature.ErrUntrusted):
		return last.Image, false, err
	}
	return "", false, err
}

// noSignature is the failure of a container whose image was not found to be signed.
func (a *Agent) noSignature(ctx context.Context, j job, c *corev1.Container, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, signature.ErrUntrusted):
		return a.noImage(j, c, signatureInvalid, err)
	}
	return a.noImage(j, c, errImagePull, fmt.Errorf("its signature cannot be checked: %w", err))
}

func (a *Agent) noImage(j job, c *corev1.Container, reason string, err error) error {
	told := "Failed"
	if reason == errImageNeverPull {
		told = reason
	}
	a.event(corev1.EventTypeWarning, told, j.step.Pod, c.Name, "%v", err)
	return &runError{reason, err}
}

// A registry that is cut off does not say so: Docker waits a quarter of a minute for it, Podman
// many minutes, and the containers of a device that comes back from a power cut wait one after the
// other. For an image that is there already it is waited for little, and not at all where it keeps
// somebody else waiting, or has just done so.
const (
	answerTime = 30 * time.Second // for a registry to answer a pull
	awayTime   = time.Minute      // for which one is not asked that did not
	waited     = 3 * time.Second  // without an answer: it did not
)

var errNoAnswer = errors.New("there is no answer from its registry")

// away are the names that are left alone, such as those of registries that do not answer, and until
// when that holds.
type away struct {
	sync.Mutex
	until map[string]time.Time
}

func (w *away) is(name string) bool {
	w.Lock()
	defer w.Unlock()
	return time.Now().Before(w.until[name])
}

// set notes that a name is left alone for a while; 0: it is not.
func (w *away) set(name string, lasts time.Duration) {
	w.Lock()
	defer w.Unlock()
	if w.until == nil {
		w.until = map[string]time.Time{}
	}
	w.until[name] = time.Now().Add(lasts)
	if lasts == 0 {
		delete(w.until, name)
	}
}

// pull pulls an image. One that is present already, had, will do where that fails.
func (a *Agent) pull(ctx context.Context, j job, c *corev1.Container, image, had string) error {
	pod := j.step.Pod
	began := time.Now()
	err := a.pullIt(ctx, j, c, image, had)
	switch {
	case err == nil:
		a.notePulled(ctx, j.engine, image, had)
		a.event(corev1.EventTypeNormal, "Pulled", pod, c.Name, "Successfully pulled image %q in %s", image,
			time.Since(began).Round(time.Millisecond))
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, engine.ErrUnavailable):
		return err
	case had != "":
		a.event(corev1.EventTypeWarning, pullFailedUsePresent, pod, c.Name,
			"Failed to pull image %q: %v; the image that is on the device is used", image, err)
		return nil
	}
	a.event(corev1.EventTypeWarning, "Failed", pod, c.Name, "Failed to pull image %q: %v", image, err)
	return &runError{errImagePull, err}
}

// pullIt pulls an image when it is its turn, and notes whether its registry answers.
func (a *Agent) pullIt(ctx context.Context, j job, c *corev1.Container, image, had string) error {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return err // bring has looked
	}
	registry := reference.Domain(ref)
	for turn := false; !turn; {
		if had != "" && a.away.is(registry) {
			return errNoAnswer
		}
		select {
		case a.pulls <- struct{}{}:
			turn = true
		case <-time.After(time.Second): // those that have it may find out that nobody answers
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	defer func() { <-a.pulls }()
	if had != "" && a.away.is(registry) {
		return errNoAnswer
	}
	pulling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(answerTime, func() {
		a.away.set(registry, fleet.MaxBackOff) // or until this ends
		if had != "" {
			cancel(errNoAnswer)
		}
	})
	a.event(corev1.EventTypeNormal, "Pulling", j.step.Pod, c.Name, "Pulling image %q", image)
	began, answered := time.Now(), false
	tell := a.pullProgress(j, c, image, began)
	err = withEach(pulling, credentials(j.src, image), func(auth *engine.RegistryAuth) error {
		return j.engine.Pull(pulling, image, auth, func(p engine.Progress) {
			if p.Layers > 0 && !answered {
				answered = true
				silent.Stop()
				a.away.set(registry, 0)
			}
			tell(p)
		})
	})
	silent.Stop()
	if err != nil && errors.Is(context.Cause(pulling), errNoAnswer) {
		err = errNoAnswer
	}
	switch {
	case err == nil || answered || errors.Is(err, engine.ErrNotFound) || errors.Is(err, engine.ErrUnavailable):
		a.away.set(registry, 0)
	case time.Since(began) >= waited:
		a.away.set(registry, awayTime)
	}
	return err
}

// pullProgress tells of a long pull after half a minute, and each time after twice as long, up to
// ten minutes.
func (a *Agent) pullProgress(j job, c *corev1.Container, image string, began time.Time) func(engine.Progress) {
	const first, longest = 30 * time.Second, 10 * time.Minute
	wait, last := first, began
	return func(p engine.Progress) {
		now := time.Now()
		if p.Layers == 0 || now.Sub(last) < wait {
			return
		}
		wait, last = min(2*wait, longest), now
		a.event(corev1.EventTypeNormal, "Pulling", j.step.Pod, c.Name,
			"Pulling image %q: %.1f of %.1f MiB, %d of %d layers, since %s", image,
			float64(p.Bytes)/(1<<20), float64(p.Total)/(1<<20), p.Done, p.Layers, now.Sub(began).Round(time.Second))
	}
}

// notePulled notes that an image is here because of us. What was here before is whose it was.
func (a *Agent) notePulled(ctx context.Context, e engine.Engine, image, had string) {
	id, present, err := e.HasImage(ctx, image)
	if err != nil || !present || id == had {
		return // then it is taken for the owner's
	}
	if err := a.c.Memory.SetPulled(memory.Pulled{Name: image, ID: id}); err != nil {
		a.log.Error("a pulled image", "err", err)
	}
}

// pulledByUs tells whether an image is here because of us only: the device's owner may use the
// same engine, and has given it no name of their own.
func pulledByUs(im engine.Image, pulled []memory.Pulled) bool {
	is := func(name string) bool {
		return slices.ContainsFunc(pulled, func(p memory.Pulled) bool {
			return (p.ID == im.ID || p.ID == "") && (name == "" && p.ID != "" || name != "" &&
				fullName(p.Name) == fullName(name))
		})
	}
	if len(im.Tags) == 0 {
		return is("")
	}
	return !slices.ContainsFunc(im.Tags, func(tag string) bool { return !is(tag) })
}

// bringImages sees to it that the images are there that a container mounts, as the images of
// containers are brought, and a copy of each. It returns which copy is which volume's.
func (a *Agent) bringImages(ctx context.Context, j job) (map[string]string, error) {
	s, copies := j.step, map[string]string{}
	for _, m := range s.Spec.VolumeMounts {
		i := slices.IndexFunc(s.Pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 || s.Pod.Spec.Volumes[i].Image == nil || copies[m.Name] != "" {
			continue
		}
		v := s.Pod.Spec.Volumes[i].Image
		image, err := a.bring(ctx, j, &corev1.Container{Image: v.Reference, ImagePullPolicy: v.PullPolicy})
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
			return nil, &runError{"CreateContainerError", err}
		}
	}
	if a.disk.UsesOnly(s.Pod.UID, s.Spec.Name, copies) {
		a.disk.TidyImages()
	}
	return copies, nil
}

// idsOf are the ids of those of the images that are there: what is known by its digest has no other
// name in an engine's list.
func (a *Agent) idsOf(ctx context.Context, e engine.Engine, images map[string]bool) (map[string]bool, error) {
	ids := map[string]bool{}
	for image := range images {
		if v, signed := a.c.Memory.Verified(image); signed {
			image = v.Image
		}
		id, _, err := e.HasImage(ctx, image)
		if err != nil {
			return nil, err
		}
		ids[id] = true
	}
	return ids, nil
}

// forgetPulled forgets an image that was removed: whoever brings it back is its owner.
func (a *Agent) forgetPulled(im engine.Image) {
	if err := a.c.Memory.DropPulled(func(p memory.Pulled) bool {
		return p.ID == im.ID || p.ID == "" && slices.ContainsFunc(im.Tags,
			func(t string) bool { return fullName(t) == fullName(p.Name) })
	}); err != nil {
		a.log.Error("a removed image", "err", err)
	}
}

// fullName is an image's name with registry and tag.
func fullName(image string) string {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return image
	}
	return ref.String()
}
