package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/volume"
)

// What a container says at its end is in a file of the agent's that is bound into it, a
// new one for each instance, or at the end of its log. The limits are the kubelet's.
const (
	maxLogMessage  = 2048 // of a log: its last,
	maxLogLines    = 80   // in so many lines
	messagesAtOnce = 30 * time.Second
)

func messageName(at plan.Place, attempt int) string {
	return filepath.Join(volume.PodsDir, string(at.Pod), ".message-"+at.Container+"-"+strconv.Itoa(attempt))
}

// message makes the file for a container's message; "" where there is none: a volume of
// the pod's is there, or this device keeps nothing.
func (d *notebook) message(s plan.Step) (source string, err error) {
	target := path.Clean(podspec.MessagePath(s.Spec))
	if d.Root == "" || !podspec.IsUID(s.Place.Pod) || slices.ContainsFunc(s.Spec.VolumeMounts, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == target }) {
		return "", nil
	}
	root, err := os.OpenRoot(d.Root)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	name := messageName(s.Place, s.Attempt)
	if err := root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return "", err
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	if err := root.WriteFile(name, nil, 0o600); err != nil {
		return "", err
	}
	if err := root.Chmod(name, 0o666); err != nil { // whatever the umask is: its user is not to be known
		return "", err
	}
	return filepath.Join(d.Root, name), nil
}

// forgetMessage removes the file of an instance that is being removed.
func (d *notebook) forgetMessage(s plan.Step) {
	if d.Root != "" && podspec.IsUID(s.Place.Pod) && s.Place.Container != "" {
		_ = os.Remove(filepath.Join(d.Root, messageName(s.Place, s.Attempt))) // what is left goes with the pod
	}
}

// readMessage reads the end of what an instance has written.
func (d *notebook) readMessage(at plan.Place, attempt int) string {
	if d.Root == "" || !podspec.IsUID(at.Pod) {
		return ""
	}
	f, err := os.OpenFile(filepath.Join(d.Root, messageName(at, attempt)), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "" // of an agent before this one
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-plan.MaxMessage), plan.MaxMessage))
	if err != nil {
		return fmt.Sprintf("Error on reading termination log: %v", err)
	}
	return string(b)
}

// readMessages reads what those containers said that have ended, and says it as the
// engine would: in what the list has of them. known is what was read before, by id.
func (a *Agent) readMessages(ctx context.Context, e engine.Engine, list []engine.Container, node plan.Facts, ofLog map[plan.Place]bool, known map[string]string) map[string]string {
	now := map[string]string{}
	for i, c := range list {
		in, ok := plan.InstanceOf(c, node)
		if !ok || in.Place.Container == "" || in.State != engine.Exited && in.State != engine.Dead {
			continue
		}
		said, has := known[c.ID]
		if !has {
			said = a.disk.readMessage(in.Place, in.Attempt)
			if said == "" && in.ExitCode != 0 && ofLog[in.Place] {
				said = lastOfLog(ctx, e, c.ID)
			}
		}
		if now[c.ID] = said; said != "" && c.Error != "" {
			said = c.Error + ": " + said
		}
		list[i].Error = cmp.Or(said, c.Error)
	}
	return now
}

// lastOfLog reads the end of a container's log.
func lastOfLog(ctx context.Context, e engine.Engine, id string) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var end ending
	if err := e.Logs(ctx, id, engine.LogOptions{Tail: maxLogLines}, &end, &end); err != nil {
		return fmt.Sprintf("Error reading termination message from logs: %v", err)
	}
	return string(end)
}

// An ending keeps the end of what is written to it.
type ending []byte

func (e *ending) Write(p []byte) (int, error) {
	*e = append(*e, p...)
	if n := len(*e) - maxLogMessage; n > 0 {
		*e = append((*e)[:0], (*e)[n:]...)
	}
	return len(p), nil
}

// logSpeaks are the containers whose log speaks for them where they wrote nothing.
func (l *loop) logSpeaks() map[plan.Place]bool {
	out := map[plan.Place]bool{}
	for i := range l.desired.Pods {
		pod := &l.desired.Pods[i]
		for _, w := range slices.Concat(podspec.Containers(pod), podspec.Ephemerals(pod)) {
			if w.Spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
				out[plan.Place{Pod: pod.UID, Container: w.Spec.Name}] = true
			}
		}
	}
	return out
}
