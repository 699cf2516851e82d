package finding

import (
	"cmp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// An ImageTrouble is why a container has no image.
type ImageTrouble struct {
	Container                 string
	Registry, Repository, Tag string
	Cause                     string // in a few words, such as "image not found"
	Says                      string
	Next                      string
	Text                      string // the engine's own text
	Short                     string // the image without its registry
}

// The agent's words that precede the engine's text.
const (
	backingOff = "Back-off pulling image: "
	pulling    = "pull image "
)

// ImageTroubleOf explains why a waiting container has no image; nil: it does not wait for an image.
func ImageTroubleOf(w diagnose.Args) *ImageTrouble {
	if !diagnose.WaitsForImage(w.Reason) {
		return nil
	}
	image, text := w.Image, strings.TrimPrefix(w.Message, backingOff)
	t := &ImageTrouble{Container: w.Container, Text: strings.ToValidUTF8(w.Message, "")}
	if asked, said, ok := strings.Cut(strings.TrimPrefix(text, pulling), ": "); ok && strings.HasPrefix(text, pulling) {
		image, text = asked, said // a mirror of the device's policy may be asked instead
	}
	t.Registry, t.Repository, t.Tag = "", image, ""
	if named, err := reference.ParseNormalizedNamed(image); err == nil {
		t.Registry, t.Repository = reference.Domain(named), reference.Path(named)
		switch named := reference.TagNameOnly(named).(type) {
		case reference.Digested:
			t.Tag = named.Digest().String()
		case reference.Tagged:
			t.Tag = named.Tag()
		}
	}
	t.Short = shortImage(image)
	cause := diagnose.ImageCauseOf(diagnose.WithReason(w.Reason, text))
	t.Cause, t.Next = cause.Cause, cause.Next
	t.Says = strings.Replace(cause.Says, "%s", cmp.Or(t.Registry, "the registry"), 1)
	return t
}

// shortImage returns an image's name without its registry.
func shortImage(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	name = name[strings.LastIndexByte(name, '/')+1:]
	if _, _, tagged := strings.Cut(name, ":"); digest != "" && !tagged {
		return name + "@" + digest[:min(len(digest), 15)]
	}
	return name
}

// ImagesMissing returns the images that a pod waits for.
func ImagesMissing(p *corev1.Pod) (all []*ImageTrouble) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || p.Spec.NodeName == "" || state.Terminated(p) || len(all) == mostCrashes {
			continue
		}
		if t := ImageTroubleOf(diagnose.Args{Container: c.Name, Image: diagnose.ImageOf(p, c.Name), Reason: w.Reason,
			Message: w.Message}); t != nil {
			all = append(all, t)
		}
	}
	return all
}
