package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// explain turns a client error into "verb object: cause" and wraps the package's error for its
// kind. A context error stays recognizable.
func explain(err error, verb, object string) error {
	var sentinel error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s %s: %w", verb, object, err)
	case lost(err):
		sentinel = ErrUnavailable
	case errdefs.IsNotFound(err):
		sentinel = ErrNotFound
	case errdefs.IsNotImplemented(err):
		sentinel = ErrUnsupported
	default:
		if port, taken := portInUse(cause(err)); taken && verb == "start container" {
			return fmt.Errorf("host port %sis in use on this device: stop what listens there, which `ss -lntup` shows, or "+
				"choose another hostPort", port)
		}
		return fmt.Errorf("%s %s: %s", verb, object, cause(err))
	}
	return fmt.Errorf("%s %s: %w: %s", verb, object, sentinel, cause(err))
}

// explainLayers is explain for calls that read an image's layers. If the directory of a layer is
// gone, for example after a power cut, the engine reports an internal error that differs from
// others only in its path. An error with "runtime" in it is about files of the container.
func (a *api) explainLayers(err error, verb, object string) error {
	if err != nil && strings.Contains(err.Error(), "no such file or directory") &&
		!strings.Contains(err.Error(), "runc") &&
		strings.Contains(err.Error(), a.current.Load().info.Root+"/") {
		return fmt.Errorf("%s %s: %w: %s", verb, object, ErrDamaged, cause(err))
	}
	return explain(err, verb, object)
}

// lost reports whether an error means that the engine does not run or stopped during the call.
func lost(err error) bool {
	var network *net.OpError
	return client.IsErrConnectionFailed(err) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}

// cause returns the engine's message on one line, without the client's prefix.
func cause(err error) string {
	text := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	return strings.Join(strings.Fields(text), " ")
}

// portInUse reports whether a message says that a port of the device is in use. It returns the port
// followed by a space, or "" if the message does not name the port.
func portInUse(message string) (port string, taken bool) {
	if !strings.Contains(message, "address already in use") && !strings.Contains(message, "port is already allocated") {
		return "", false
	}
	for _, before := range []string{"Bind for ", "bind host port for ", "bind host port ", "listen tcp4 ",
		"listen tcp6 ",
		"listen tcp ", "listen udp4 ", "listen udp6 ", "listen udp "} {
		if _, after, ok := strings.Cut(message, before); ok {
			word, _, _ := strings.Cut(after, " ")
			word, _, _ = strings.Cut(word, "/")
			word = strings.TrimSuffix(word, ":")
			// host address and port, then those of the container
			if at := strings.Split(word, ":"); len(at) == 4 && word[0] != '[' {
				word = at[0] + ":" + at[1]
			}
			return word + " ", true
		}
	}
	return "", true
}
