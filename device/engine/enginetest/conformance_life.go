package enginetest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"flotilla.dev/device/engine"
)

var everything = engine.LogOptions{Tail: -1}

// lifeCases are the rules for containers and images.
var lifeCases = []conformanceCase{
	{"an engine describes itself", func(k *kit) {
		info, err := k.Info(k.ctx)
		k.must(err)
		if info.Name == "" || info.Version == "" || info.APIVersion == "" || info.OS != "linux" || info.Arch == "" ||
			!strings.HasPrefix(info.Root, "/") || info.Socket == "" {
			k.Fatalf("Info is %+v, want all of its texts set", info)
		}
	}},
	{"a created container is listed with its name, image and labels, and does not run", func(k *kit) {
		s := k.spec("wait")
		s.Labels["of"] = "ours"
		c := k.look(k.create(s))
		k.equal(c.Name, s.Name)
		k.equal(c.Image, ToolImage)
		k.equal(c.State, engine.Created)
		k.equal(c.IP, "")
		k.equal(c.Pid, 0)
		k.equal(len(c.Labels), 2)
		k.equal(c.Labels["of"], "ours")
		k.equal(c.Created.IsZero(), false)
		k.equal(c.StartedAt.IsZero(), true)
		k.equal(c.FinishedAt.IsZero(), true)
		id, ok, err := k.HasImage(k.ctx, ToolImage)
		k.must(err)
		k.equal(ok, true)
		k.equal(c.ImageID, id)
	}},
	{"a running container has an address, a process and a start", func(k *kit) {
		c := k.await(k.start(k.spec("wait")), engine.Running)
		if c.IP == "" || c.Pid <= 0 || c.StartedAt.IsZero() || !c.FinishedAt.IsZero() {
			k.Fatalf("the container is %+v", c)
		}
	}},
	{"an update takes effect without a restart and keeps other limits", func(k *kit) {
		info, err := k.Info(k.ctx)
		k.must(err)
		s := k.spec("wait")
		s.MemoryBytes, s.MilliCPU, s.CPUShares = 40<<20, 30, 20
		c := k.await(k.start(s), engine.Running)
		k.equal(c.Limits, engine.LimitsOf(s, info))
		s.MemoryBytes, s.MilliCPU, s.CPUShares = 50<<20, 35, 25
		k.must(k.Update(k.ctx, c.ID, s))
		k.must(k.Update(k.ctx, c.ID, s))
		k.must(k.Update(k.ctx, c.ID, engine.Spec{}))
		s.MemoryBytes, s.MilliCPU, s.CPUShares = 30<<20, 25, 15
		k.must(k.Update(k.ctx, c.ID, s))
		after := k.look(c.ID)
		k.equal(after.State, engine.Running)
		k.equal(after.StartedAt, c.StartedAt)
		k.equal(after.Pid, c.Pid)
		if info.Name != "podman" {
			k.equal(after.Limits, engine.LimitsOf(s, info))
		}
		if err := k.Update(k.ctx, "0123456789ab", s); !errors.Is(err, engine.ErrNotFound) {
			k.Errorf("updating an unknown container: %v, want ErrNotFound", err)
		}
	}},
	{"an ended container keeps its exit code, start and end", func(k *kit) {
		c := k.await(k.start(k.spec("sleep 200ms then exit 3")), engine.Exited)
		k.equal(c.ExitCode, 3)
		k.equal(c.OOMKilled, false)
		k.equal(c.Pid, 0)
		k.equal(c.IP, "")
		if c.FinishedAt.Sub(c.StartedAt) < 100*time.Millisecond { // engines record the start slightly late
			k.Fatalf("the container ran from %v to %v, want at least 100ms", c.StartedAt, c.FinishedAt)
		}
	}},
	{"without arguments a container runs the image's program", func(k *kit) {
		s := k.spec("")
		s.Args = nil
		id := k.start(s)
		k.equal(k.look(id).State, engine.Running)
		k.awaitOutput(id)
		k.must(k.Stop(k.ctx, id, 10*time.Second))
		k.equal(k.await(id, engine.Exited).ExitCode, 0)
	}},
	{"a container with its own entry point ignores the image's arguments", func(k *kit) {
		s := k.spec("")
		s.Entrypoint, s.Args = []string{"/tool", "print", "mine"}, nil
		k.equal(k.output(s), "mine\n")
	}},
	{"the environment is added to the image's", func(k *kit) {
		s := k.spec("env COLOUR then env FROM_IMAGE")
		s.Env = []string{"COLOUR=light = blue"}
		k.equal(k.output(s), "light = blue\nyes\n")
	}},
	{"a container of a missing image is ErrNoImage", func(k *kit) {
		s := k.spec("wait")
		s.Image = "flotilla.test/missing:1"
		_, err := k.Create(k.ctx, s)
		k.mustBe(err, engine.ErrNoImage)
	}},
	{"a stopped container of the same name is replaced", func(k *kit) {
		s := k.spec("exit 1")
		old := k.start(s)
		k.await(old, engine.Exited)
		if k.create(s) == old {
			k.Fatal("the new container has the old id")
		}
		k.equal(k.look(old).State, engine.State(""))
	}},
	{"a running container of the same name is not replaced", func(k *kit) {
		s := k.spec("wait")
		id := k.start(s)
		if _, err := k.Create(k.ctx, s); err == nil {
			k.Fatal("the call succeeded")
		}
		k.equal(k.look(id).State, engine.Running)
	}},
	{"an ended container starts again", func(k *kit) {
		id := k.start(k.spec("sleep 300ms then exit 4"))
		first := k.await(id, engine.Exited)
		k.must(k.Start(k.ctx, id))
		again := k.await(id, engine.Running)
		k.equal(again.ExitCode, 0)
		k.equal(again.FinishedAt.IsZero(), true)
		k.equal(again.StartedAt.After(first.FinishedAt) || again.StartedAt.Equal(first.FinishedAt), true)
		k.equal(k.await(id, engine.Exited).ExitCode, 4)
	}},
	{"starting a running container is not an error", func(k *kit) {
		id := k.start(k.spec("wait"))
		k.must(k.Start(k.ctx, id))
	}},
	{"starting an unknown container is ErrNotFound", func(k *kit) {
		k.mustBe(k.Start(k.ctx, "flotilla-test-nothing"), engine.ErrNotFound)
	}},
	{"a command that is not in the image cannot be started", func(k *kit) {
		s := k.spec("")
		s.Entrypoint = []string{"/nothing"}
		id := k.create(s)
		if err := k.Start(k.ctx, id); err == nil || !strings.Contains(err.Error(), "no such file") {
			k.Fatalf("got error %v", err)
		}
		if state := k.look(id).State; state == engine.Running {
			k.Fatal("a container whose command is missing runs")
		}
		k.must(k.Remove(k.ctx, id))
	}},
	{"a stopped container ends with its own exit code before the grace period ends", func(k *kit) {
		id := k.start(k.spec("print here then wait"))
		k.awaitOutput(id)
		begin := time.Now()
		k.must(k.Stop(k.ctx, id, 30*time.Second))
		if took := time.Since(begin); took > 10*time.Second {
			k.Fatalf("the call took %s", took)
		}
		c := k.look(id)
		k.equal(c.State, engine.Exited)
		k.equal(c.ExitCode, 0)
	}},
	{"a container that ignores its stop signal is killed after the grace period", func(k *kit) {
		id := k.start(k.spec("print here then stubborn"))
		k.awaitOutput(id)
		begin := time.Now()
		k.must(k.Stop(k.ctx, id, time.Second))
		if took := time.Since(begin); took < time.Second || took > 6*time.Second {
			k.Fatalf("the call took %s", took)
		}
		c := k.look(id)
		k.equal(c.State, engine.Exited)
		k.equal(c.ExitCode, 137)
	}},
	{"a grace period of zero kills at once", func(k *kit) {
		id := k.start(k.spec("print here then stubborn"))
		k.awaitOutput(id)
		k.must(k.Stop(k.ctx, id, 0))
		k.equal(k.look(id).ExitCode, 137)
	}},
	{"stopping a created, ended or unknown container is not an error", func(k *kit) {
		never, ended := k.create(k.spec("wait")), k.start(k.spec("exit 0"))
		k.await(ended, engine.Exited)
		for _, id := range []string{never, ended, "flotilla-test-nothing"} {
			k.must(k.Stop(k.ctx, id, time.Second))
		}
		k.equal(k.look(never).State, engine.Created)
	}},
	{"a running container can be removed, and a second removal is not an error", func(k *kit) {
		id := k.start(k.spec("wait"))
		k.must(k.Remove(k.ctx, id))
		k.equal(k.look(id).State, engine.State(""))
		k.must(k.Remove(k.ctx, id))
	}},
	{"only containers with the label are listed, by name", func(k *kit) {
		second, first := k.spec("wait"), k.spec("wait")
		first.Name, second.Name = first.Name+"-a", first.Name+"-b"
		other := k.spec("wait")
		other.Labels = map[string]string{"flotilla.test/case": "another"}
		k.create(second)
		k.create(first)
		k.create(other)
		list, err := k.Containers(k.ctx, k.label)
		k.must(err)
		var names []string
		for _, c := range list {
			names = append(names, c.Name)
		}
		if !slices.Equal(names, []string{first.Name, second.Name}) {
			k.Fatalf("the list is %v, want the containers with the label by name", names)
		}
	}},
	{"a container that shares a network has no address, and is removed with the owner", func(k *kit) {
		owner := k.start(k.spec("wait"))
		s := k.spec("wait")
		s.NetworkOf, s.Hostname = owner, "ignored"
		s.Ports = []engine.Port{{HostPort: 1, ContainerPort: 1, Protocol: "TCP"}} // ports belong to the owner
		id := k.start(s)
		c := k.look(id)
		k.equal(c.State, engine.Running)
		k.equal(c.IP, "")
		k.must(k.Stop(k.ctx, id, 10*time.Second))
		k.must(k.Remove(k.ctx, owner))
		k.equal(k.look(owner).State, engine.State(""))
		k.must(k.Remove(k.ctx, id))
	}},
	{"two networks at once are ErrUnsupported", func(k *kit) {
		s := k.spec("wait")
		s.NetworkOf, s.HostNetwork = k.start(k.spec("wait")), true
		_, err := k.Create(k.ctx, s)
		k.mustBe(err, engine.ErrUnsupported)
	}},
	{"two containers cannot have one port of the device", func(k *kit) {
		// Hubs in other tests listen on higher ports.
		port := []engine.Port{{HostIP: "127.0.0.1", HostPort: int32(10000 + time.Now().UnixNano()/1000%10000),
			ContainerPort: 80, Protocol: "TCP"}}
		first, second := k.spec("wait"), k.spec("wait")
		first.Ports, second.Ports = port, port
		k.start(first)
		if err := k.Start(k.ctx, k.create(second)); err == nil {
			k.Fatal("a second container with the same port started")
		}
	}},
	{"a container that exceeds its memory limit is killed", func(k *kit) {
		info, err := k.Info(k.ctx)
		k.must(err)
		if !info.MemLimit {
			k.Skip("the engine cannot limit memory")
		}
		s := k.spec("memory 300 then wait")
		s.MemoryBytes = 64 << 20
		c := k.await(k.start(s), engine.Exited)
		k.equal(c.ExitCode, 137)
		if log, err := os.Open("/dev/kmsg"); err == nil {
			_ = log.Close()
		} else if !c.OOMKilled {
			k.Skip("the engine reported the end without its reason, as it does now and then, and the kernel's log "+
				"cannot be read here: ", err)
		}
		k.equal(c.OOMKilled, true)
	}},
	{"images are listed with their names, their size and whether they are in use", func(k *kit) {
		k.create(k.spec("wait"))
		id, ok, err := k.HasImage(k.ctx, ToolImage)
		k.must(err)
		k.equal(ok, true)
		images, err := k.Images(k.ctx)
		k.must(err)
		i := slices.IndexFunc(images, func(i engine.Image) bool { return i.ID == id })
		if i < 0 || !slices.Contains(images[i].Tags, ToolImage) || images[i].Size < 1<<20 || !images[i].InUse {
			k.Fatalf("the images are %+v, want the tool's in use, with its name and size", images)
		}
		if again, ok, err := k.HasImage(k.ctx, id); err != nil || !ok || again != id {
			k.Fatalf("HasImage by id: %q %v %v", again, ok, err)
		}
		if user, err := k.ImageUser(k.ctx, ToolImage); err != nil || user != "" {
			k.Fatalf("ImageUser without a user: %q, %v", user, err)
		}
		_, err = k.ImageUser(k.ctx, "flotilla.test/missing:1")
		k.mustBe(err, engine.ErrNoImage)
	}},
	{"looking for or removing a missing image is not an error", func(k *kit) {
		_, ok, err := k.HasImage(k.ctx, "flotilla.test/missing:1")
		k.must(err)
		k.equal(ok, false)
		k.must(k.RemoveImage(k.ctx, "flotilla.test/missing:1"))
	}},
	{"an image in use cannot be removed", func(k *kit) {
		k.create(k.spec("wait"))
		id, _, err := k.HasImage(k.ctx, ToolImage)
		k.must(err)
		if err := k.RemoveImage(k.ctx, id); err == nil {
			k.Fatal("the call succeeded")
		}
		_, ok, err := k.HasImage(k.ctx, ToolImage)
		k.must(err)
		k.equal(ok, true)
	}},
	{"every call ends with its context", func(k *kit) {
		id := k.start(k.spec("wait"))
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		_, err := k.Info(ctx)
		k.mustBe(err, context.Canceled)
		_, err = k.Containers(ctx, k.label)
		k.mustBe(err, context.Canceled)
		_, err = k.Create(ctx, k.spec("wait"))
		k.mustBe(err, context.Canceled)
		k.mustBe(k.Start(ctx, id), context.Canceled)
		k.mustBe(k.Stop(ctx, id, time.Second), context.Canceled)
		k.mustBe(k.Remove(ctx, id), context.Canceled)
		_, err = k.Images(ctx)
		k.mustBe(err, context.Canceled)
		_, _, err = k.HasImage(ctx, ToolImage)
		k.mustBe(err, context.Canceled)
		k.mustBe(k.Pull(ctx, ToolImage, nil, nil), context.Canceled)
		k.mustBe(k.RemoveImage(ctx, ToolImage), context.Canceled)
		_, err = k.Usage(ctx, id)
		k.mustBe(err, context.Canceled)
		k.equal(k.look(id).State, engine.Running)
	}},
}
