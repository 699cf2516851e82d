package image

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/distribution/reference"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/mirror"
)

// A Hub says what its images are made of (mirror.Mirror).
type Hub interface {
	Parts(ctx context.Context, name, reference string, of mirror.Platform) (mirror.Parts, error)
	Unpacked(ctx context.Context, p mirror.Parts) ([]string, error)
	// Passed returns the bytes of blobs of an image that the engine has received since the start.
	Passed(name string) int64
}

// errNoRoom is the error of an image for which the disk has no room.
var errNoRoom = errors.New("the device's disk has no room for it")

// noRoomTime is the time between two events about one image without room.
const noRoomTime = time.Hour

// sizeOf returns the bytes that a pull of an image of the hub needs; 0: unknown. The error is a
// reason not to begin it: the hub does not have the image, or the disk has no room for it.
func (p *Puller) sizeOf(ctx context.Context, e engine.Engine, image reference.Named) (int64, error) {
	if p.c.Hub == nil || p.c.Policy.Mirror == "" || reference.Domain(image) != p.c.Policy.Mirror {
		return 0, nil
	}
	info, err := e.Info(ctx)
	if err != nil {
		return 0, err
	}
	name := reference.Path(image)
	tag := strings.TrimLeft(strings.TrimPrefix(image.String(), image.Name()), ":@")
	parts, err := p.c.Hub.Parts(ctx, name, tag, mirror.Platform{Arch: info.Arch, Variant: info.Variant})
	if errors.Is(err, mirror.ErrNotFound) {
		return 0, fmt.Errorf("pull image %s: %w: %w", image, engine.ErrNotFound, err)
	}
	if err != nil {
		return 0, nil // the engine asks again, and has the reason
	}
	free, known := p.c.Room(ctx, info.Root)
	if !known || needs(parts.Layers, nil, nil) <= free {
		return parts.Size(), nil
	}
	have, err := e.Layers(ctx)
	if err != nil {
		return parts.Size(), nil
	}
	unpacked, err := p.c.Hub.Unpacked(ctx, parts)
	if err != nil {
		return parts.Size(), nil
	}
	if need := needs(parts.Layers, unpacked, have); need > free {
		return parts.Size(), fmt.Errorf("%w: it needs at least %s, and %s are free: remove files or images there, or make the "+
			"image smaller", errNoRoom, mebibytes(need), mebibytes(free))
	}
	return parts.Size(), nil
}

// needs returns the least space for the layers that are not on the device: an engine keeps a layer
// both as it came and unpacked for a while.
func needs(layers []mirror.Layer, unpacked []string, have map[string]bool) (n int64) {
	for i, l := range layers {
		if i >= len(unpacked) || !have[unpacked[i]] {
			n += 2 * l.Size
		}
	}
	return n
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
