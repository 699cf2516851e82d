// Package image brings the images of containers onto the device: by pull policy, with the pod's
// credentials, and by the digest whose signature was checked where the policy wants one.
//
// It decides whether an image may be used, pulls it, and pulls it again when files of it are lost.
// It never starts a container and never removes an image that the device's owner may use. Package
// agent calls it before it creates a container and when the disk is full.
package image

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/signature"
	"flotilla.dev/shared/policy"
)

// The kubelet's reasons of failures and events.
const (
	errImagePull         = "ErrImagePull"
	errImageNeverPull    = "ErrImageNeverPull"
	imageInspectError    = "ImageInspectError"
	signatureInvalid     = "SignatureValidationFailed"
	pullFailedUsePresent = "PullFailedUsingPresent"
)

// A Verify function returns the digest of an image that one of the keys has signed
// (signature.Verify).
type Verify func(ctx context.Context, image string, keys []policy.Key, c signature.Credentials) (signature.Verified,
	error)

// Config is what a Puller needs; all fields but Hub are required.
type Config struct {
	Policy plan.Policy
	Memory *memory.Memory
	Verify Verify
	Event  func(kind, reason string, pod *corev1.Pod, container, format string, args ...any)
	Log    *slog.Logger
	// Room returns the free bytes of the disk with that directory of the engine.
	Room func(ctx context.Context, engineRoot string) (free int64, known bool)
	Hub  Hub // nil: there is none
	// Pulling receives the progress of a container's pull, at intervals of at least progressTime; "":
	// it has ended.
	Pulling func(pod types.UID, container, progress string)
}

// A Puller brings images.
type Puller struct {
	c       Config
	pulling chan struct{} // a slot for each pull
	silent  untilTimes    // registries that do not answer
	renewed untilTimes    // images that were damaged
	noRoom  untilTimes    // images of which an event said that the disk has no room
}

// NewPuller makes a Puller.
func NewPuller(c Config) *Puller { return &Puller{c: c, pulling: make(chan struct{}, maxPulls)} }

// A Want is an image that a container needs.
type Want struct {
	Engine    engine.Engine
	Sources   podspec.Sources   // its pod and the pull secrets
	Container *corev1.Container // its image and pull policy; the name is for events
	Sandbox   bool              // any present image will do, and is no event
	// Stopped lists the agent's stopped containers of an image.
	Stopped func(ctx context.Context, image string) (ids []string, err error)

	first bool // the registry itself is asked next
}

func (p *Puller) event(kind, reason string, w Want, format string, args ...any) {
	if w.first && kind == corev1.EventTypeWarning {
		return
	}
	pod := w.Sources.Pod
	if pod.Name == "" { // the image is pulled in advance
		pod = nil
	}
	p.c.Event(kind, reason, pod, w.Container.Name, format, args...)
}

// Bring makes an image present, by the container's pull policy, and returns the name to run it by.
// A failure is a *plan.RunError. Unlike the kubelet it uses a present image when the policy is
// Always and the registry does not answer: a device must start again without network.
func (p *Puller) Bring(ctx context.Context, w Want) (string, error) {
	c := w.Container
	if _, err := reference.ParseDockerRef(c.Image); err != nil { // it becomes part of a URL
		err = fmt.Errorf("failed to parse image name %q: %w", c.Image, err)
		p.event(corev1.EventTypeWarning, "InspectFailed", w, "%v", err)
		return "", plan.NewRunError("InvalidImageName", err)
	}
	desired, _ := p.c.Memory.Desired()
	names := p.c.Policy.Sources(c.Image, desired.Mirrors())
	if len(names) > 1 && !w.always() {
		if image := p.present(ctx, w, names); image != "" {
			names = []string{image}
		}
	}
	if len(names) > 1 {
		image, err := p.bring(ctx, w.atHub(), names[0])
		if err == nil || ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
			return image, err
		}
		p.c.Log.Info("the hub does not give an image, which is pulled from its registry", "image", c.Image, "err", err)
	}
	image, err := p.bring(ctx, w, names[len(names)-1])
	if err == nil || len(names) == 1 || ctx.Err() != nil {
		return image, err
	}
	if p.present(ctx, w, names[:1]) == "" {
		return "", err
	}
	old := *w.Container
	old.ImagePullPolicy = corev1.PullIfNotPresent
	w.Container = &old
	return p.bring(ctx, w, names[0])
}

// present returns the first of an image's names that is on the device, or "".
func (p *Puller) present(ctx context.Context, w Want, names []string) string {
	for _, name := range names {
		found := name
		if v, signed := p.c.Memory.Verified(name); signed {
			found = v.Image
		}
		if _, present, _ := w.Engine.HasImage(ctx, found); present {
			return name
		}
	}
	return ""
}

// always reports whether the registry is asked for a newer image each time.
func (w Want) always() bool {
	c := w.Container
	return !w.Sandbox && (c.ImagePullPolicy == corev1.PullAlways || c.ImagePullPolicy == "" && isLatest(c.Image))
}

// atHub is w for a first try at the hub, whose failure is no event.
func (w Want) atHub() Want {
	w.first = true
	return w
}

func (p *Puller) bring(ctx context.Context, w Want, image string) (string, error) {
	c := w.Container
	always := c.ImagePullPolicy == corev1.PullAlways || c.ImagePullPolicy == "" && isLatest(c.Image)
	keys, known := p.c.Policy.Signers(c.Image)
	if !known { // admission refuses such a pod; this is the second check
		return "", p.fail(w, signatureInvalid,
			fmt.Errorf("this device's policy has no signature rule for image %q", c.Image))
	}
	verified := false // just now
	var unreachable error
	if len(keys) > 0 {
		var err error
		if image, verified, err = p.trusted(ctx, w, image, keys, always && !w.Sandbox); image == "" {
			return "", p.notSigned(ctx, w, err)
		}
		unreachable = err
	}
	had, present, err := w.Engine.HasImage(ctx, image)
	switch {
	case errors.Is(err, engine.ErrDamaged):
		return image, p.Renew(ctx, w, image, err)
	case err != nil:
		p.event(corev1.EventTypeWarning, "InspectFailed", w, "Failed to inspect image %q: %v", image, err)
		return "", plan.NewRunError(imageInspectError, err)
	case present && unreachable != nil:
		p.event(corev1.EventTypeWarning, pullFailedUsePresent, w, "%v; the image that is on the device is used", unreachable)
		return image, nil
	case present && (!always || verified || w.Sandbox): // verified: a digest has no newer image
		if !w.Sandbox {
			p.event(corev1.EventTypeNormal, "Pulled", w, "Container image %q already present on machine", c.Image)
		}
		return image, nil
	case c.ImagePullPolicy == corev1.PullNever:
		return "", p.fail(w, errImageNeverPull,
			fmt.Errorf("container image %q is not present with pull policy of Never", c.Image))
	}
	return image, p.pull(ctx, w, image, had)
}

// isLatest reports whether an image reference has the tag latest, for which Kubernetes defaults to
// the pull policy Always.
func isLatest(image string) bool {
	if strings.Contains(image, "@") {
		return false
	}
	name := image[strings.LastIndexByte(image, '/')+1:]
	_, tag, has := strings.Cut(name, ":")
	return !has || tag == "latest"
}

// trusted returns the name, by digest, of an image that needs a signature: the digest verified
// before, or with the pull policy Always the registry's current one. An empty name comes with the
// reason. A name with an error was verified before, and its registry does not answer now.
func (p *Puller) trusted(ctx context.Context, w Want, image string, keys []policy.Key, always bool) (name string,
	now bool, err error) {
	last, known := p.c.Memory.Verified(image)
	known = known && slices.ContainsFunc(keys, func(k policy.Key) bool { return k.ID == last.Key })
	if known && !always {
		return last.Image, false, nil
	}
	var v signature.Verified
	err = withEach(ctx, credentials(w.Sources, image), func(auth *engine.RegistryAuth) (err error) {
		var login signature.Credentials
		if auth != nil {
			login = signature.Credentials{Username: auth.Username, Password: auth.Password}
		}
		v, err = p.c.Verify(ctx, image, keys, login)
		return err
	})
	switch {
	case err == nil:
		if err := p.c.Memory.SetVerified(memory.Verified{Asked: image, Image: v.Image, Key: v.Key}); err != nil {
			p.c.Log.Error("store a verified image", "image", image, "err", err)
		}
		return v.Image, true, nil
	case known && !errors.Is(err, signature.ErrUntrusted):
		return last.Image, false, err
	}
	return "", false, err
}

// notSigned is the failure of a container for whose image no signature was found.
func (p *Puller) notSigned(ctx context.Context, w Want, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, signature.ErrUntrusted):
		return p.fail(w, signatureInvalid, err)
	}
	return p.fail(w, errImagePull, fmt.Errorf("its signature cannot be checked: %w", err))
}

func (p *Puller) fail(w Want, reason string, err error) error {
	event := "Failed"
	if reason == errImageNeverPull {
		event = reason
	}
	p.event(corev1.EventTypeWarning, event, w, "%v", err)
	return plan.NewRunError(reason, err)
}
