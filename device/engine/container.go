package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

func (a *api) Containers(ctx context.Context, label string) ([]Container, error) {
	before := a.seen.of(label)
	items, stuck, err := a.items(ctx, label, before)
	if err != nil {
		return nil, explain(err, "list the containers with label", label)
	}
	found := make([]Container, 0, len(items))
	now, silent := make(map[string]sight, len(items)), 0
	for _, item := range items {
		// the list lacks exit codes and times
		was, known := before[item.ID]
		asking, cancel := context.WithTimeout(ctx, a.patienceFor(was))
		c, err := a.look(asking, item.ID)
		cancel()
		hangs := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
		switch {
		case errdefs.IsNotFound(err):
			continue // removed since the list was made
		case hangs && a.answers(ctx):
			if !known {
				was.Container = listed(item)
			}
			was.silent, silent = true, silent+1
		case err != nil && (hangs || lost(err) || ctx.Err() != nil):
			return nil, explain(err, "look at container", item.ID)
		case err != nil || c.Container.State == nil || c.Container.Config == nil:
			// A broken container is listed but cannot be inspected. Containers returns it all the
			// same: otherwise the agent would never remove it, and an error would hide all other
			// containers.
			if was.silent = false; !stuck {
				was.Container = listed(item)
			}
			if err != nil {
				was.Error = cause(err)
			}
		default:
			was = sight{Container: view(c.Container)}
			was.Net = networkNamespace(was.Pid, was.ID)
		}
		now[item.ID], found = was, append(found, was.Container)
	}
	a.seen.set(label, before, now)
	if silent > 1 && silent > len(found)-silent { // if only one container fails, the container is broken, not the engine
		return nil, fmt.Errorf("list the containers with label %s: the engine does not answer for %d of %d: %w", label,
			silent, len(found), context.DeadlineExceeded)
	}
	a.killed.settle(found, kernelLog)
	sort.Slice(found, func(i, j int) bool { return found[i].Name+"\x00"+found[i].ID < found[j].Name+"\x00"+found[j].ID })
	return found, nil
}

// items lists the containers with a label. If a container keeps Podman from listing, items returns
// the ids already known.
func (a *api) items(ctx context.Context, label string,
	before map[string]sight) (all []container.Summary, stuck bool, err error) {
	asking, cancel := context.WithTimeout(ctx, a.patienceFor(sight{silent: a.seen.stuck.Load()}))
	list, err := a.list(asking, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	cancel()
	stuck = a.podman() && len(before) > 0 && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && a.answers(ctx)
	a.seen.stuck.Store(stuck)
	if !stuck {
		return list.Items, false, err
	}
	for id := range before {
		all = append(all, container.Summary{ID: id})
	}
	return all, true, nil
}

func firstName(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.TrimPrefix(names[0], "/")
}

// view converts the engine's description of a container.
func view(c container.InspectResponse) Container {
	v := Container{
		ID:         c.ID,
		Name:       strings.TrimPrefix(c.Name, "/"),
		Image:      withoutLocalhost(c.Config.Image),
		ImageID:    digest(c.Image),
		Labels:     c.Config.Labels,
		State:      stateOf(string(c.State.Status)),
		ExitCode:   c.State.ExitCode,
		OOMKilled:  c.State.OOMKilled,
		Error:      c.State.Error,
		Created:    moment(c.Created),
		StartedAt:  moment(c.State.StartedAt),
		FinishedAt: moment(c.State.FinishedAt),
		Pid:        c.State.Pid,
	}
	if h := c.HostConfig; h != nil {
		v.Limits = numbers(h.Resources)
	}
	if asked, ok := v.Labels[requestedImageLabel]; ok {
		v.Image = asked
		delete(v.Labels, requestedImageLabel)
	}
	if v.State != Running && v.State != Paused {
		v.Pid = 0
		if !v.StartedAt.IsZero() && v.FinishedAt.IsZero() {
			v.setLostEnd()
		}
		return v
	}
	v.ExitCode, v.FinishedAt = 0, time.Time{} // left over from an earlier run
	// For a container that shares a network, Podman reports the owner's address, which is left out.
	if c.NetworkSettings != nil && (c.HostConfig == nil || !c.HostConfig.NetworkMode.IsContainer()) {
		mode := ""
		if c.HostConfig != nil {
			mode = string(c.HostConfig.NetworkMode)
		}
		if ip := addressOf(c.NetworkSettings.Networks, mode); ip.IsValid() {
			v.IP = ip.String()
		}
	}
	return v
}

// networkNamespace identifies the network namespace of a container's process; "" if it cannot be
// read.
func networkNamespace(pid int, id string) string {
	if pid <= 1 {
		return ""
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil || !belongs(pid, id) {
		return ""
	}
	return name
}

// setLostEnd marks a container that ran when the device went down as exited with 255, as Docker
// does. Podman reports that it never started (until 4.4) or exited with 0 (since then).
func (c *Container) setLostEnd() {
	if c.State == Created {
		c.State = Exited
	}
	c.ExitCode, c.Error = 255, cmp.Or(c.Error, "the device went down while it ran")
}

// stateOf maps the states of Docker and Podman.
func stateOf(status string) State {
	switch status {
	case "created", "configured", "initialized":
		return Created
	case "running", "restarting", "stopping":
		return Running
	case "paused":
		return Paused
	case "exited", "stopped":
		return Exited
	}
	return Dead // dead, removing, unknown
}

// moment parses a time; engines write the year 1 for "never".
func moment(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

func (a *api) Start(ctx context.Context, id string) error {
	_, err := a.client().ContainerStart(ctx, id, client.ContainerStartOptions{})
	return a.explainLayers(err, "start container", id)
}

// Stop rounds the grace period up to whole seconds, the API's unit, so that no container is killed
// too early.
func (a *api) Stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := int((max(grace, 0) + time.Second - 1) / time.Second)
	if a.podman() { // Docker resumes a paused container to stop it; with Podman the stop fails
		if now, err := a.look(ctx, id); err == nil && now.Container.State != nil && now.Container.State.Paused {
			// If resuming fails, ContainerStop reports the error.
			_, _ = a.client().ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
		}
	}
	_, err := a.client().ContainerStop(ctx, id, client.ContainerStopOptions{Timeout: &seconds})
	if err == nil || errdefs.IsNotFound(err) {
		return nil
	}
	// Some engines report an error for stopping a container that never ran or is just ending.
	if now, lookErr := a.look(ctx, id); errdefs.IsNotFound(lookErr) ||
		lookErr == nil && now.Container.State != nil && !now.Container.State.Running {
		return nil
	}
	return explain(err, "stop container", id)
}

func (a *api) Remove(ctx context.Context, id string) error {
	err := a.remove(ctx, id)
	for wait := 20 * time.Millisecond; err != nil && wait < time.Second && strings.Contains(err.Error(),
		"state improper"); wait *= 2 {
		// In Podman an ended container has the state "stopped" until its clean-up.
		time.Sleep(wait)
		err = a.remove(ctx, id)
	}
	if err != nil && strings.Contains(err.Error(), "dependent containers") {
		// Docker removes the owner of a network while other containers use it; Podman refuses.
		if err := a.removeDependents(ctx, id); err != nil {
			return err
		}
		err = a.remove(ctx, id)
	}
	return explain(err, "remove container", id)
}

func (a *api) remove(ctx context.Context, id string) error {
	_, err := a.client().ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err != nil && strings.Contains(err.Error(), "already in progress") {
		err = a.awaitGone(ctx, id, err)
	}
	if errdefs.IsNotFound(err) {
		err = nil
	}
	if err == nil {
		a.seen.gone(id)
	}
	return err
}

// awaitGone waits until a removal by another client completes. If that takes too long, it returns
// underWay.
func (a *api) awaitGone(ctx context.Context, id string, underWay error) error {
	began := time.Now()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if _, err := a.look(ctx, id); err != nil {
			return err
		}
		if time.Since(began) >= a.answerTime {
			return underWay
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// removeDependents removes the ended containers that share the network of a container. A running
// container there is an error, since the caller did not ask to stop it.
func (a *api) removeDependents(ctx context.Context, id string) error {
	owner, err := a.look(ctx, id)
	if err != nil {
		return explain(err, "look at container", id)
	}
	list, err := a.list(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return explain(err, "list the containers that depend on", id)
	}
	for _, item := range list.Items {
		c, err := a.look(ctx, item.ID)
		if err != nil || c.Container.HostConfig == nil ||
			string(c.Container.HostConfig.NetworkMode) != "container:"+owner.Container.ID {
			continue
		}
		if c.Container.State.Running {
			return fmt.Errorf("remove container %s: container %s runs in its network; stop that container first", id,
				strings.TrimPrefix(c.Container.Name, "/"))
		}
		if err := a.remove(ctx, item.ID); err != nil {
			return explain(err, "remove container", item.ID)
		}
	}
	return nil
}
