package image

import (
	"context"
	"slices"

	"github.com/distribution/reference"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/memory"
)

// notePulled stores that the agent has pulled an image. An image that was there before belongs to
// the device's owner.
func (p *Puller) notePulled(ctx context.Context, e engine.Engine, image, had string) {
	id, present, err := e.HasImage(ctx, image)
	if err != nil || !present || id == had {
		return // it counts as the owner's
	}
	if err := p.c.Memory.SetPulled(memory.Pulled{Name: image, ID: id}); err != nil {
		p.c.Log.Error("store that an image was pulled", "image", image, "err", err)
	}
}

// IsPulled reports whether only the agent has pulled an image: the device's owner may use the same
// engine, and has given the image no name.
func IsPulled(im engine.Image, pulled []memory.Pulled) bool {
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

// Removed notes that an image was removed: if it comes back by other means, it is the owner's.
func (p *Puller) Removed(im engine.Image) {
	if err := p.c.Memory.DropPulled(func(pulled memory.Pulled) bool {
		return pulled.ID == im.ID || pulled.ID == "" && slices.ContainsFunc(im.Tags,
			func(t string) bool { return fullName(t) == fullName(pulled.Name) })
	}); err != nil {
		p.c.Log.Error("store that an image was removed", "image", im.ID, "err", err)
	}
}

// IDs returns the ids of those images that are present. An image that is known by its digest has no
// name in an engine's list.
func (p *Puller) IDs(ctx context.Context, e engine.Engine, images map[string]bool) (map[string]bool, error) {
	ids := map[string]bool{}
	for image := range images {
		if v, signed := p.c.Memory.Verified(image); signed {
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

// fullName is an image's name with registry and tag.
func fullName(image string) string {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return image
	}
	return ref.String()
}
