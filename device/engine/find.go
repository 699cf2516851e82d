package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// installHint ends every message about a missing engine.
const installHint = "install one (on Debian and Raspberry Pi OS: apt install docker.io; or: apt install podman " +
	"&& systemctl enable --now podman.socket) or name its socket with --engine"

// Find opens the engine of choice: auto (the first usable one that answers), docker, podman,
// balena, a socket's path or its unix:// URL. If none answers, the error is ErrUnavailable and
// names the tried sockets; try again later, since the engine may start after the agent. last is the
// socket of the engine that was used last. With auto, that engine stays the only choice while it is
// installed: it has the containers and images, and may be about to start.
func Find(ctx context.Context, choice, last string) (Engine, error) {
	sockets, err := socketsOf(choice, os.Getenv("XDG_RUNTIME_DIR"))
	if err != nil {
		return nil, err
	}
	if len(sockets) == 0 {
		return nil, fmt.Errorf("find a container engine: %w: --engine none", ErrUnavailable)
	}
	if len(sockets) > 1 && slices.Contains(sockets, last) && installed(last) {
		e, err := Open(ctx, last)
		if err != nil {
			err = fmt.Errorf("%w; this engine has the device's containers: start it; to change to another engine, uninstall it "+
				"or pass the other engine's socket with --engine", err)
		}
		return e, err
	}
	return first(ctx, sockets)
}

// first opens the first usable engine that answers. If there is none, it prefers the error of an
// unusable engine, which says more than "does not answer".
func first(ctx context.Context, sockets []string) (Engine, error) {
	var tried []string
	var unsupported error
	for _, socket := range sockets {
		e, err := Open(ctx, socket)
		switch {
		case err == nil:
			return e, nil
		case ctx.Err() != nil || len(sockets) == 1:
			return nil, err
		case errors.Is(err, ErrUnsupported):
			unsupported = cmp.Or(unsupported, err)
		}
		tried = append(tried, socket+": "+whyNot(socket))
	}
	if unsupported != nil {
		return nil, unsupported
	}
	return nil, fmt.Errorf("find a container engine: %w: %s; %s", ErrUnavailable, strings.Join(tried, ", "), installHint)
}

// socketsOf lists the sockets of the chosen engine, the most likely first.
func socketsOf(choice, runtimeDir string) ([]string, error) {
	docker := []string{"/var/run/docker.sock"}
	podman := []string{"/run/podman/podman.sock"}
	balena := []string{"/var/run/balena-engine.sock"}
	if runtimeDir != "" { // rootless
		docker = append(docker, runtimeDir+"/docker.sock")
		podman = append(podman, runtimeDir+"/podman/podman.sock")
	}
	switch choice {
	case "", "auto":
		return append(append(docker, podman...), balena...), nil
	case "docker":
		return docker, nil
	case "podman":
		return podman, nil
	case "balena", "balena-engine":
		return balena, nil
	case "none":
		return nil, nil
	}
	if path, ok := strings.CutPrefix(choice, "unix://"); ok {
		choice = path
	}
	if !strings.HasPrefix(choice, "/") {
		return nil, fmt.Errorf(
			"--engine %q is not auto, docker, podman, balena, none or the absolute path of a socket: %w", choice,
			ErrUnsupported)
	}
	return []string{choice}, nil
}

// installed reports whether the engine of a well-known socket is installed.
func installed(socket string) bool {
	program := map[string]string{"docker.sock": "dockerd", "podman.sock": "podman",
		"balena-engine.sock": "balena-engine-daemon"}[filepath.Base(socket)]
	_, err := exec.LookPath(program)
	return err == nil
}

// whyNot returns a short reason why a socket does not answer.
func whyNot(socket string) string {
	info, err := os.Stat(socket)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "not there"
	case errors.Is(err, os.ErrPermission):
		return "permission denied"
	case err != nil:
		return err.Error()
	case info.Mode()&os.ModeSocket == 0:
		return "not a socket"
	case !writable(socket):
		return "permission denied (run as root, or join the group that owns it)"
	}
	return "does not answer"
}
