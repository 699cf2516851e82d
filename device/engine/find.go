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

// howToInstall ends every sentence about a missing engine.
const howToInstall = "install one (on Debian and Raspberry Pi OS: apt install docker.io; or: apt install podman " +
	"&& systemctl enable --now podman.socket) or name its socket with --engine"

// Find opens the engine that choice names: auto (the first that answers and that we can use),
// docker, podman, balena, a path such as /run/podman/podman.sock or its unix:// URL. With none, and
// when nothing answers, the error is ErrUnavailable and tells what was tried; ask again later,
// since an engine may start after us. Where several are meant, that at the socket last, if any, is
// no other for as long as it is installed: it has the containers and the images, and may be about
// to start.
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
			err = fmt.Errorf("%w; what runs here was given to this engine: start it; to go over to another, uninstall it "+
				"or name the other's socket with --engine", err)
		}
		return e, err
	}
	return first(ctx, sockets)
}

// first opens the first engine that answers and is one for us. Where none is, one that is not says
// more than those that do not answer.
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
	return nil, fmt.Errorf("find a container engine: %w: %s; %s", ErrUnavailable, strings.Join(tried, ", "), howToInstall)
}

// socketsOf lists where the chosen engine may listen, the likeliest first.
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
			"--engine %q is neither auto, docker, podman, balena, none nor the absolute path of a socket: %w", choice,
			ErrUnsupported)
	}
	return []string{choice}, nil
}

// installed tells whether the engine that listens at one of the sockets that we know is there to be
// started.
func installed(socket string) bool {
	program := map[string]string{"docker.sock": "dockerd", "podman.sock": "podman",
		"balena-engine.sock": "balena-engine-daemon"}[filepath.Base(socket)]
	_, err := exec.LookPath(program)
	return err == nil
}

// whyNot says in a few words why nothing answers at a socket.
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
