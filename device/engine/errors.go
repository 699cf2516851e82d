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

// explain turns an error of the client into a sentence "verb object: cause" with the sentinel that
// tells the caller what to do. An error of the context stays recognizable as such.
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
		if port, taken := taken(cause(err)); taken && verb == "start container" {
			return fmt.Errorf("host port %sis in use on this device: stop what listens there, which `ss -lntup` shows, or "+
				"choose another hostPort", port)
		}
		return fmt.Errorf("%s %s: %s", verb, object, cause(err))
	}
	return fmt.Errorf("%s %s: %w: %s", verb, object, sentinel, cause(err))
}

// explainLayers is explain for what an engine needs the layers of an image for. One whose directory
// is gone, after a power cut say, is an engine's inner error, in which only the path tells. What a
// runtime says is of the container's own files.
func (a *api) explainLayers(err error, verb, object string) error {
	if err != nil && strings.Contains(err.Error(), "no such file or directory") &&
		!strings.Contains(err.Error(), "runc") &&
		strings.Contains(err.Error(), a.current.Load().info.Root+"/") {
		return fmt.Errorf("%s %s: %w: %s", verb, object, ErrDamaged, cause(err))
	}
	return explain(err, verb, object)
}

// lost tells whether an error means that the engine is not there or has gone away in the middle.
func lost(err error) bool {
	var network *net.OpError
	return client.IsErrConnectionFailed(err) || errors.As(err, &network) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNREFUSED)
}

// cause is the engine's own sentence without the client's preface, on one line.
func cause(err error) string {
	text := strings.TrimPrefix(err.Error(), "Error response from daemon: ")
	return strings.Join(strings.Fields(text), " ")
}

// taken tells whether an engine says that a port of the device has another user, and which port,
// with a space behind it; "": it does not say.
func taken(said string) (port string, taken bool) {
	if !strings.Contains(said, "address already in use") && !strings.Contains(said, "port is already allocated") {
		return "", false
	}
	for _, before := range []string{"Bind for ", "bind host port for ", "bind host port ", "listen tcp4 ", "listen tcp6 ",
		"listen tcp ", "listen udp4 ", "listen udp6 ", "listen udp "} {
		if _, after, ok := strings.Cut(said, before); ok {
			word, _, _ := strings.Cut(after, " ")
			word, _, _ = strings.Cut(word, "/")
			word = strings.TrimSuffix(word, ":")
			if at := strings.Split(word, ":"); len(at) == 4 && word[0] != '[' { // with the container's behind it
				word = at[0] + ":" + at[1]
			}
			return word + " ", true
		}
	}
	return "", true
}
