package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func (a *api) Images(ctx context.Context) ([]Image, error) {
	list, err := a.client().ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, explain(err, "list", "images")
	}
	containers, err := a.list(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, explain(err, "list", "containers")
	}
	used := map[string]bool{}
	for _, c := range containers.Items {
		used[digest(c.ImageID)] = true
	}
	images := make([]Image, 0, len(list.Items))
	for _, item := range list.Items {
		image := Image{ID: digest(item.ID), Size: item.Size, InUse: used[digest(item.ID)]}
		for _, tag := range item.RepoTags {
			if tag != "<none>:<none>" {
				image.Tags = append(image.Tags, shortTag(tag))
			}
		}
		slices.Sort(image.Tags)
		images = append(images, image)
	}
	sort.Slice(images, func(i, j int) bool { return images[i].ID < images[j].ID })
	return images, nil
}

// shortTag shortens an image name as users write it: docker.io/library/nginx:1 (Podman) to nginx:1
// (Docker).
func shortTag(tag string) string {
	tag = withoutLocalhost(tag)
	if named, err := reference.ParseNormalizedNamed(tag); err == nil {
		return reference.FamiliarString(named)
	}
	return tag
}

func withoutLocalhost(ref string) string { return strings.TrimPrefix(ref, "localhost/") }

// digest adds the algorithm to an id, which some answers leave out.
func digest(id string) string {
	if id == "" || strings.Contains(id, ":") {
		return id
	}
	return "sha256:" + id
}

// A foundImage is a local image as the engine describes it.
type foundImage struct {
	id, name        string
	user            string
	size            int64
	tags            []string
	entrypoint, cmd []string // default program and arguments
	labels          int      // total bytes of the labels
}

// maxLabels limits the bytes of an image's labels. An engine repeats the labels for each container
// and image in every list; megabytes of them exceed the agent's memory.
const maxLabels = 64 << 10

func (f foundImage) fit() error {
	if f.labels > maxLabels {
		return fmt.Errorf("%w: its labels have %d bytes, at most %d are allowed; build it with fewer", ErrUnsupported,
			f.labels, maxLabels)
	}
	return nil
}

func (a *api) findImage(ctx context.Context, ref string) (foundImage, bool, error) {
	names := []string{ref}
	if a.podman() && !hasRegistry(ref) {
		names = append(names, "localhost/"+ref)
	}
	for _, name := range names {
		found, err := a.client().ImageInspect(ctx, name)
		if err == nil {
			image := foundImage{id: digest(found.ID), name: name, tags: found.RepoTags, size: found.Size}
			if found.Config != nil {
				image.user = found.Config.User
				image.entrypoint, image.cmd = found.Config.Entrypoint, found.Config.Cmd
				for k, v := range found.Config.Labels {
					image.labels += len(k) + len(v)
				}
			}
			return image, true, nil
		}
		if !errdefs.IsNotFound(err) {
			return foundImage{}, false, a.explainLayers(err, "look for image", ref)
		}
	}
	return foundImage{}, false, nil
}

// listedImage finds an image in the list of all images, which unlike an inspection includes damaged
// ones.
func (a *api) listedImage(ctx context.Context, ref string) (foundImage, bool, error) {
	list, err := a.client().ImageList(ctx, client.ImageListOptions{})
	for _, item := range list.Items {
		names := slices.Concat(item.RepoTags, item.RepoDigests)
		if digest(item.ID) == ref || slices.ContainsFunc(names, func(name string) bool {
			return shortTag(name) == shortTag(ref)
		}) {
			return foundImage{id: digest(item.ID), tags: item.RepoTags}, true, nil
		}
	}
	return foundImage{}, false, explain(err, "look for image", ref)
}

// hasRegistry reports whether a name includes the registry, or is an id. Podman never has such an
// image under localhost/, and rejects a request for localhost/ followed by such a name as invalid.
func hasRegistry(ref string) bool {
	first, _, more := strings.Cut(ref, "/")
	return strings.HasPrefix(ref, "sha256:") || more && (first == "localhost" || strings.ContainsAny(first, ".:"))
}

func (a *api) Layers(ctx context.Context) (map[string]bool, error) {
	list, err := a.client().ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, explain(err, "list", "images")
	}
	layers := map[string]bool{}
	for _, item := range list.Items {
		found, err := a.client().ImageInspect(ctx, item.ID)
		if err != nil {
			continue // it is damaged, or gone
		}
		for _, l := range found.RootFS.Layers {
			layers[l] = true
		}
	}
	return layers, nil
}

func (a *api) HasImage(ctx context.Context, ref string) (string, bool, error) {
	found, ok, err := a.findImage(ctx, ref)
	return found.id, ok, err
}

func (a *api) ImageUser(ctx context.Context, ref string) (string, error) {
	found, ok, err := a.findImage(ctx, ref)
	if err == nil && !ok {
		err = fmt.Errorf("look at image %s: %w", ref, ErrNoImage)
	}
	return found.user, err
}

// Pull lets the engine choose among an image's platforms, except on 32-bit ARM, because engines
// have mistaken a Raspberry Pi Zero for an ARMv7 machine.
func (a *api) Pull(ctx context.Context, ref string, auth *RegistryAuth, progress func(Progress)) error {
	info := a.current.Load().info
	options := client.ImagePullOptions{}
	if info.Variant != "" {
		options.Platforms = []ocispec.Platform{{OS: info.OS, Architecture: info.Arch, Variant: info.Variant}}
	}
	if auth != nil {
		encoded, err := authconfig.Encode(registry.AuthConfig{Username: auth.Username, Password: auth.Password,
			ServerAddress: auth.ServerAddress})
		if err != nil {
			return fmt.Errorf("pull image %s: encode the credentials: %w", ref, err)
		}
		options.RegistryAuth = encoded
	}
	if _, err := reference.ParseNormalizedNamed(ref); err != nil {
		return fmt.Errorf("pull image %s: %w: %s", ref, ErrNotFound, err.Error())
	}
	// Without this a registry that stops in the middle of a response would block the agent and the
	// engine for ever.
	pulling, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(a.stall, func() { cancel(fmt.Errorf("no progress for %s; the agent tries again", a.stall)) })
	defer stalled.Stop()
	stream, err := a.beginPull(pulling, ref, options)
	if err == nil {
		defer stream.Close()
		err = follow(stream, func(p Progress) {
			stalled.Reset(a.stall)
			if progress != nil {
				progress(p)
			}
		})
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return pullError(ctx.Err(), ref)
	case err != nil && pulling.Err() != nil:
		return pullError(context.Cause(pulling), ref)
	case err != nil:
		return pullError(err, ref)
	}
	// If the engine stops, the stream ends without an error, so check that the image exists.
	found, ok, err := a.findImage(ctx, ref)
	if wrong := found.fit(); wrong != nil {
		_, err := a.client().ImageRemove(ctx, found.name, client.ImageRemoveOptions{PruneChildren: true})
		return errors.Join(fmt.Errorf("pull image %s: %w", ref, wrong), err)
	}
	if err == nil && !ok {
		err = fmt.Errorf("pull image %s: %w: the engine stopped before the end; the agent tries again", ref, ErrUnavailable)
	}
	return err
}

// beginPull returns the progress stream of a pull. Docker uses a registry on loopback without TLS
// by itself; Podman needs an option that only its own API has.
func (a *api) beginPull(ctx context.Context, ref string, options client.ImagePullOptions) (io.ReadCloser, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return nil, err
	}
	at, err := netip.ParseAddrPort(reference.Domain(named))
	if err != nil || !at.Addr().IsLoopback() || !a.podman() {
		return a.client().ImagePull(ctx, ref, options)
	}
	query := url.Values{"reference": {ref}, "tlsVerify": {"false"}}
	for _, p := range options.Platforms {
		query.Set("Variant", p.Variant)
	}
	answer, err := a.libpodStream(ctx, http.MethodPost, "images/pull?"+query.Encode(), nil,
		http.Header{"X-Registry-Auth": {options.RegistryAuth}})
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		defer answer.Body.Close()
		var refusal struct{ Message string }
		_ = json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&refusal)
		return nil, errors.New(cmp.Or(refusal.Message, answer.Status))
	}
	return answer.Body, nil
}

// pullStall is the longest pause between progress messages: writing a large layer to a slow SD card
// takes minutes.
const pullStall = 10 * time.Minute

// maxLayers limits the layers of a pull in memory; an image has at most 127.
const maxLayers = 256

// follow reads the progress of a pull and returns the error in it.
func follow(stream io.Reader, progress func(Progress)) error {
	type layer struct {
		now, total int64
		done       bool
	}
	layers := map[string]layer{}
	for lines := json.NewDecoder(stream); ; {
		var line struct {
			Error          string
			ErrorDetail    *struct{ Message string }
			ID, Status     string
			Stream         string // text of Podman's own API
			ProgressDetail struct{ Current, Total int64 }
		}
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if line.ErrorDetail != nil && line.ErrorDetail.Message != "" {
			return errors.New(line.ErrorDetail.Message)
		}
		if line.Error != "" {
			return errors.New(line.Error)
		}
		if blob, ok := strings.CutPrefix(line.Stream, "Copying blob "); ok {
			line.ID, line.Status = blob, "Waiting"
		} else if strings.HasPrefix(line.Stream, "Writing manifest") { // all layers are downloaded
			for id, l := range layers {
				l.done = true
				layers[id] = l
			}
			line.ID = ""
		}
		l, known := layers[line.ID]
		switch line.Status {
		case "Downloading":
			l.now, l.total = line.ProgressDetail.Current, max(line.ProgressDetail.Total, l.total)
		case "Download complete", "Pull complete", "Already exists":
			l.now, l.done = l.total, true
		case "Pulling fs layer", "Waiting", "Verifying Checksum", "Extracting":
		default: // a line about the whole image
			known = false
			line.ID = ""
		}
		if line.ID != "" && (known || len(layers) < maxLayers) {
			layers[line.ID] = l
		}
		p := Progress{Layers: len(layers)}
		for _, l := range layers {
			p.Bytes, p.Total = p.Bytes+l.now, p.Total+l.total
			if l.done {
				p.Done++
			}
		}
		progress(p)
	}
}

// pullError separates a missing image, which a retry cannot fix, from other errors.
func pullError(err error, ref string) error {
	text := strings.ToLower(err.Error())
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	if has("denied", "unauthorized", "authentication required") {
		return fmt.Errorf("pull image %s: %s; check its name and the registry's credentials", ref, cause(err))
	}
	if has("manifest unknown", "name unknown", "no such manifest", "no matching manifest",
		"no image found in manifest list",
		"no image found in image index", "repository does not exist", "manifest for "+strings.ToLower(ref)+" not found") {
		return fmt.Errorf("pull image %s: %w: %s", ref, ErrNotFound, cause(err))
	}
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("pull image %s: %w: %s", ref, ErrNotFound, cause(err))
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || lost(err) {
		return explain(err, "pull image", ref)
	}
	return fmt.Errorf("pull image %s: %s", ref, cause(err))
}

// RemoveImage removes an image with all its names. It does not use force, so an image with
// containers is an error. An image that is already gone is not an error.
func (a *api) RemoveImage(ctx context.Context, id string) error {
	found, ok, err := a.findImage(ctx, id)
	if errors.Is(err, ErrDamaged) {
		found, ok, err = a.listedImage(ctx, id)
	}
	if err != nil || !ok {
		return err
	}
	names := slices.DeleteFunc(found.tags, func(tag string) bool { return tag == "<none>:<none>" })
	if len(names) == 0 {
		names = []string{found.id}
	}
	for _, name := range names {
		if _, err := a.client().ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true}); err != nil &&
			!errdefs.IsNotFound(err) {
			return explain(err, "remove image", name)
		}
	}
	return nil
}
