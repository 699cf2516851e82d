package enginetest

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"flotilla.dev/device/engine"
)

// Info implements engine.Engine.
func (t *Fake) Info(ctx context.Context) (engine.Info, error) {
	if err := t.enter(ctx, "Info", "engine"); err != nil {
		return engine.Info{}, err
	}
	defer t.mu.Unlock()
	return t.info, nil
}

// Ping implements engine.Engine.
func (t *Fake) Ping(ctx context.Context) error {
	if err := t.enter(ctx, "Ping", "engine"); err != nil {
		return err
	}
	t.mu.Unlock()
	return nil
}

// Containers implements engine.Engine.
func (t *Fake) Containers(ctx context.Context, label string) ([]engine.Container, error) {
	if err := t.enter(ctx, "Containers", label); err != nil {
		return nil, err
	}
	defer t.mu.Unlock()
	list := []engine.Container{}
	for _, c := range t.containers {
		if carries(c.spec.Labels, label) {
			v := c.view()
			v.Labels = maps.Clone(v.Labels)
			list = append(list, v)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list, nil
}

// Create implements engine.Engine.
func (t *Fake) Create(ctx context.Context, s engine.Spec) (string, error) {
	if err := t.enter(ctx, "Create", s.Name); err != nil {
		return "", err
	}
	defer t.mu.Unlock()
	t.record("Create", s.Name)
	image := t.images[s.Image]
	if image == nil {
		return "", fmt.Errorf("create container %s: %w: %s", s.Name, engine.ErrNoImage, s.Image)
	}
	if image.damaged {
		return "", fmt.Errorf("create container %s: %w: no such file or directory", s.Name, engine.ErrDamaged)
	}
	if s.HostNetwork && s.NetworkOf != "" {
		return "", fmt.Errorf("create container %s: %w: the host's network and that of another container", s.Name,
			engine.ErrUnsupported)
	}
	if s.NetworkOf != "" && t.find(s.NetworkOf) == nil {
		return "", fmt.Errorf("create container %s: %w: container %s", s.Name, engine.ErrNotFound, s.NetworkOf)
	}
	if _, ok := t.networks[s.Network]; s.Network != "" && s.NetworkOf == "" && !s.HostNetwork && !ok {
		return "", fmt.Errorf("create container %s: %w: network %s", s.Name, engine.ErrNotFound, s.Network)
	}
	if s.Name != "" {
		if old := t.find(s.Name); old != nil {
			if old.state == engine.Running {
				return "", fmt.Errorf("create container %s: a running container has that name", s.Name)
			}
			t.remove(old)
		}
	}
	t.made++
	s.Labels = maps.Clone(s.Labels)
	c := &instance{id: newID(t.made, s.Name), number: t.made, spec: s, limits: engine.LimitsOf(s, t.info),
		network: t.networks[s.Network], image: image, state: engine.Created, created: time.Now()}
	t.containers = append(t.containers, c)
	t.notify(s.Labels)
	return c.id, nil
}

// Start implements engine.Engine.
func (t *Fake) Start(ctx context.Context, id string) error {
	if err := t.enter(ctx, "Start", id); err != nil {
		return err
	}
	defer t.mu.Unlock()
	c := t.find(id)
	if c == nil {
		return fmt.Errorf("start container %s: %w", id, engine.ErrNotFound)
	}
	t.record("Start", c.spec.Name)
	switch c.state {
	case engine.Running:
		return nil
	case engine.Dead:
		return fmt.Errorf("start container %s: its removal was interrupted", c.spec.Name)
	}
	if c.spec.NetworkOf != "" {
		if owner := t.find(c.spec.NetworkOf); owner == nil || owner.state != engine.Running {
			return fmt.Errorf("start container %s: the owner of its network does not run: %s", c.spec.Name,
				c.spec.NetworkOf)
		}
	}
	if owner, port, taken := t.portTaken(c); taken {
		return fmt.Errorf("start container %s: port %d is already allocated to %s", c.spec.Name, port.HostPort, owner)
	}
	t.start(c, time.Now())
	if why := c.play.StartError; why != "" {
		c.problem = why
		return fmt.Errorf("start container %s: %s", c.spec.Name, why)
	}
	t.settle(time.Now()) // a program without a duration ends at once
	return nil
}

// Update implements engine.Engine.
func (t *Fake) Update(ctx context.Context, id string, s engine.Spec) error {
	if err := t.enter(ctx, "Update", id); err != nil {
		return err
	}
	defer t.mu.Unlock()
	c := t.find(id)
	if c == nil {
		return fmt.Errorf("update container %s: %w", id, engine.ErrNotFound)
	}
	t.record("Update", c.spec.Name)
	keep := func(to *int64, v int64) {
		if v > 0 {
			*to = v
		}
	}
	keep(&c.spec.MemoryBytes, s.MemoryBytes)
	keep(&c.spec.MilliCPU, s.MilliCPU)
	keep(&c.spec.CPUShares, s.CPUShares)
	if s.MemoryBytes > 0 {
		c.spec.SwapBytes = s.SwapBytes
	}
	if s.CPUs != "" {
		c.spec.CPUs = s.CPUs
	}
	if t.info.Name != "podman" {
		c.limits = engine.LimitsOf(c.spec, t.info)
	}
	if c.state == engine.Running && t.info.MemLimit && c.spec.MemoryBytes > 0 &&
		c.play.MemoryBytes > uint64(c.spec.MemoryBytes) {
		t.end(c, time.Now(), 137, true)
	}
	return nil
}

// Stop implements engine.Engine.
func (t *Fake) Stop(ctx context.Context, id string, grace time.Duration) error {
	if err := t.enter(ctx, "Stop", id); err != nil {
		return err
	}
	c := t.find(id)
	if c != nil && c.state == engine.Paused {
		c.state = engine.Running // resume a paused container, so that it handles the signal
	}
	if c == nil || c.state != engine.Running {
		t.mu.Unlock()
		return nil
	}
	t.record("Stop", c.spec.Name, grace)
	grace = (max(grace, 0) + time.Second - 1) / time.Second * time.Second // whole seconds, as in the API
	end := ending{at: time.Now().Add(c.play.StopTakes), code: c.play.StopCode}
	if c.play.StopTakes > grace || grace == 0 {
		end = ending{at: time.Now().Add(grace), code: 137}
	}
	t.endAt(c, end) // as in real engines, the container still ends if the caller gives up
	life := c.starts
	t.settle(time.Now())
	t.mu.Unlock()
	return t.await(ctx, "Stop", id, func() bool { return c.state != engine.Running || c.starts != life })
}

// await waits until done returns true. It calls done under the lock after every change.
func (t *Fake) await(ctx context.Context, call, object string, done func() bool) error {
	for {
		t.mu.Lock()
		t.settle(time.Now())
		finished, down, changed := done(), t.down, t.changed
		t.mu.Unlock()
		switch {
		case finished:
			return nil
		case down:
			return fmt.Errorf("%s %s: %w: it was switched off", call, object, engine.ErrUnavailable)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w", call, object, ctx.Err())
		}
	}
}

// Remove implements engine.Engine. As in Podman, a container stays while another one runs in its
// network.
func (t *Fake) Remove(ctx context.Context, id string) error {
	if err := t.enter(ctx, "Remove", id); err != nil {
		return err
	}
	defer t.mu.Unlock()
	c := t.find(id)
	if c == nil {
		return nil
	}
	t.record("Remove", c.spec.Name)
	dependents := t.dependents(c)
	for _, d := range dependents {
		if d.state == engine.Running {
			return fmt.Errorf("remove container %s: container %s runs in its network; stop that container first", c.spec.Name,
				d.spec.Name)
		}
	}
	for _, d := range dependents {
		t.remove(d)
	}
	t.remove(c)
	return nil
}

// Images implements engine.Engine.
func (t *Fake) Images(ctx context.Context) ([]engine.Image, error) {
	if err := t.enter(ctx, "Images", "engine"); err != nil {
		return nil, err
	}
	defer t.mu.Unlock()
	list := make([]engine.Image, 0, len(t.images))
	for _, i := range t.images {
		each := engine.Image{ID: i.id, Size: i.size, InUse: t.inUse(i)}
		if !strings.Contains(i.ref, "@") { // an image pulled by digest has no tag
			each.Tags = []string{i.ref}
		}
		list = append(list, each)
	}
	sort.Slice(list, func(i, j int) bool { return list[i].ID < list[j].ID })
	return list, nil
}

// Layers implements engine.Engine.
func (t *Fake) Layers(ctx context.Context) (map[string]bool, error) {
	if err := t.enter(ctx, "Layers", "engine"); err != nil {
		return nil, err
	}
	defer t.mu.Unlock()
	layers := map[string]bool{}
	for _, i := range t.images {
		for _, l := range i.layers {
			layers[l] = true
		}
	}
	return layers, nil
}

func (t *Fake) inUse(i *image) bool {
	return slices.ContainsFunc(t.containers, func(c *instance) bool { return c.image == i })
}

func (t *Fake) findImage(ref string) *image {
	if i := t.images[ref]; i != nil {
		return i
	}
	for _, i := range t.images {
		if i.id == ref {
			return i
		}
	}
	return nil
}

// ImageUser implements engine.Engine.
func (t *Fake) ImageUser(ctx context.Context, ref string) (string, error) {
	if err := t.enter(ctx, "ImageUser", ref); err != nil {
		return "", err
	}
	defer t.mu.Unlock()
	i := t.findImage(ref)
	if i == nil {
		return "", fmt.Errorf("look at image %s: %w", ref, engine.ErrNoImage)
	}
	return i.user, nil
}

// ImageTree implements engine.Engine.
func (t *Fake) ImageTree(ctx context.Context, ref string, s engine.Spec,
	take func(size int64) (func(*tar.Header, io.Reader) error, error)) (err error) {
	if err := t.enter(ctx, "ImageTree", ref); err != nil {
		return err
	}
	i := t.findImage(ref)
	t.record("ImageTree", ref)
	t.mu.Unlock()
	if i == nil {
		return fmt.Errorf("read image %s: %w", ref, engine.ErrNoImage)
	}
	put, err := take(i.size)
	if err != nil {
		return err
	}
	s.Image = ref
	id, err := t.Create(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Remove(context.WithoutCancel(ctx), id)) }()
	for _, e := range i.tree {
		e.Size = int64(len(e.Data))
		if err := put(&e.Header, strings.NewReader(e.Data)); err != nil {
			return fmt.Errorf("read image %s: %w", ref, err)
		}
	}
	return nil
}

// HasImage implements engine.Engine.
func (t *Fake) HasImage(ctx context.Context, ref string) (string, bool, error) {
	if err := t.enter(ctx, "HasImage", ref); err != nil {
		return "", false, err
	}
	defer t.mu.Unlock()
	if i := t.findImage(ref); i != nil && i.damaged {
		return "", false, fmt.Errorf("look for image %s: %w: no such file or directory", ref, engine.ErrDamaged)
	} else if i != nil {
		return i.id, true, nil
	}
	return "", false, nil
}

// Pull implements engine.Engine.
func (t *Fake) Pull(ctx context.Context, ref string, auth *engine.RegistryAuth, progress func(engine.Progress)) error {
	if err := t.enter(ctx, "Pull", ref); err != nil {
		return err
	}
	t.record("Pull", ref)
	offer, ok := t.offers[ref]
	t.mu.Unlock()
	if !ok {
		return fmt.Errorf("pull image %s: %w: manifest unknown", ref, engine.ErrNotFound)
	}
	if offer.Auth != nil && (auth == nil || *auth != *offer.Auth) {
		return fmt.Errorf("pull image %s: unauthorized; check its name and the registry's credentials", ref)
	}
	for left := offer.Delay; left > 0; {
		step := left
		if offer.Tells > 0 {
			step = min(left, offer.Tells)
		}
		pulling, cancel := context.WithTimeout(ctx, step)
		err := t.await(pulling, "Pull", ref, func() bool { return false })
		cancel()
		if ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable) {
			return err
		}
		if left -= step; left > 0 && progress != nil {
			progress(engine.Progress{Layers: 1, Bytes: int64(float64(offer.Size) * (1 - float64(left)/float64(offer.Delay))),
				Total: offer.Size})
		}
	}
	if offer.Err != nil {
		return fmt.Errorf("pull image %s: %w", ref, offer.Err)
	}
	t.do(func() {
		if have := t.images[ref]; have == nil || offer.ID != "" && offer.ID != have.id {
			t.addImage(ref, offer)
		}
	})
	return nil
}

// RemoveImage implements engine.Engine.
func (t *Fake) RemoveImage(ctx context.Context, id string) error {
	if err := t.enter(ctx, "RemoveImage", id); err != nil {
		return err
	}
	defer t.mu.Unlock()
	i := t.findImage(id)
	if i == nil {
		return nil
	}
	t.record("RemoveImage", i.ref)
	if t.inUse(i) {
		return fmt.Errorf("remove image %s: a container uses it", i.ref)
	}
	delete(t.images, i.ref)
	return nil
}

// Usage implements engine.Engine.
func (t *Fake) Usage(ctx context.Context, id string) (engine.Usage, error) {
	if err := t.enter(ctx, "Usage", id); err != nil {
		return engine.Usage{}, err
	}
	defer t.mu.Unlock()
	c := t.find(id)
	if c == nil {
		return engine.Usage{}, fmt.Errorf("measure container %s: %w", id, engine.ErrNotFound)
	}
	if c.state != engine.Running {
		return engine.Usage{}, nil
	}
	return engine.Usage{CPUNanos: c.cpu(time.Now()), MemoryBytes: c.play.MemoryBytes}, nil
}

// Close implements engine.Engine.
func (t *Fake) Close() error { return nil }

// Written implements engine.Engine.
func (t *Fake) Written(ctx context.Context, id string) (int64, error) {
	if err := t.enter(ctx, "Written", id); err != nil {
		return 0, err
	}
	defer t.mu.Unlock()
	c := t.find(id)
	if c == nil {
		return 0, fmt.Errorf("measure container %s: %w", id, engine.ErrNotFound)
	}
	return c.play.Written, nil
}

// Files implements engine.Engine.
func (t *Fake) Files(ctx context.Context, id string) (int64, error) {
	if err := t.enter(ctx, "Files", id); err != nil {
		return 0, err
	}
	defer t.mu.Unlock()
	c := t.find(id)
	if c == nil {
		return 0, fmt.Errorf("count the files of container %s: %w", id, engine.ErrNotFound)
	}
	return c.play.Files, nil
}
