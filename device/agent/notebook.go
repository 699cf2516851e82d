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
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/volume"
)

// A notebook is the directory of the pods' volumes. It also has the agent's notes: containers that
// it created, completed hooks and passed probes, termination messages.
type notebook struct{ volume.Disk }

// OwnContainers returns the containers of a list that the agent with this directory created. Labels
// may come from an image, and names can be changed, so the agent notes each container's id before
// its start. A container without a note but with the agent's labels and the exact name is from an
// earlier version or an interrupted start; it gets a note.
func OwnContainers(dir string, list []engine.Container) []engine.Container {
	d := notebook{volume.Disk{Root: dir}}
	return slices.DeleteFunc(list, func(c engine.Container) bool {
		l, note := c.Labels, ""
		if uid := types.UID(l[plan.LabelPodUID]); dir != "" && podspec.IsUID(uid) {
			note = d.madeNote(uid, l[plan.LabelContainer], l[plan.LabelRestarts], c.ID)
			if _, err := os.Lstat(note); err == nil {
				return false
			}
		}
		if l[plan.LabelAgent] == "" || c.Name != plan.NameOf(l[plan.LabelContainer], l[plan.LabelPodName],
			l[plan.LabelNamespace], l[plan.LabelPodUID], l[plan.LabelRestarts]) {
			return true
		}
		if note != "" {
			_ = os.WriteFile(note, nil, 0o600) // the pod's directory may have been removed
		}
		return false
	})
}

const madePrefix = ".made-"

// madeNote is the path of the note that the agent created a container. Like the container, the note
// outlives a boot.
func (d *notebook) madeNote(uid types.UID, container, attempt, id string) string {
	return filepath.Join(d.Root, volume.PodsDir, string(uid),
		filepath.Base(madePrefix+attempt+"-"+cmp.Or(container, "POD")+"-"+id))
}

// noteMade records that a container is the agent's. Without the note, the container's name decides.
func (d *notebook) noteMade(s plan.Step, id string) {
	path := d.madeNote(s.Place.Pod, s.Place.Container, strconv.Itoa(s.Attempt), id)
	if d.Root != "" && podspec.IsUID(s.Place.Pod) && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = os.WriteFile(path, nil, 0o600)
	}
}

func (d *notebook) forgetMade(s plan.Step) {
	if d.Root != "" && podspec.IsUID(s.Place.Pod) {
		// a note that remains is removed with the pod
		_ = os.Remove(d.madeNote(s.Place.Pod, s.Place.Container, strconv.Itoa(s.Attempt), s.ID))
	}
}

// attempts returns the newest noted attempt of each container of a pod, so that its restart count
// continues even if another client removed the container.
func (d *notebook) attempts(uid types.UID) map[string]int {
	out := map[string]int{}
	list, _ := os.ReadDir(filepath.Join(d.Root, volume.PodsDir, string(uid))) // the pod may have no files
	for _, e := range list {
		text, made := strings.CutPrefix(e.Name(), madePrefix)
		text, container, _ := strings.Cut(text, "-")
		attempt, err := strconv.Atoi(text)
		end := strings.LastIndexByte(container, '-')
		if !made || err != nil || end < 0 {
			continue
		}
		if container = container[:end]; container == "POD" {
			container = ""
		}
		out[container] = max(out[container], attempt)
	}
	return out
}

// A termination message comes from a file that the agent mounts into the container, or from the end
// of the container's log. The limits are the kubelet's.
const (
	maxLogMessage  = 2048 // bytes
	maxLogLines    = 80
	messagesAtOnce = 30 * time.Second
)

func messageName(at plan.Place, attempt int) string {
	return filepath.Join(volume.PodsDir, string(at.Pod), ".message-"+at.Container+"-"+strconv.Itoa(attempt))
}

// makeMessageFile creates the file for a container's termination message. It returns "" if a volume
// is mounted at that path, or if the device has no volumes.
func (d *notebook) makeMessageFile(s plan.Step) (source string, err error) {
	target := path.Clean(podspec.MessagePath(s.Spec))
	if d.Root == "" || !podspec.IsUID(s.Place.Pod) || slices.ContainsFunc(s.Spec.VolumeMounts,
		func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == target }) {
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
	if err := root.Chmod(name, 0o666); err != nil { // the umask must not restrict it: the container's user is unknown
		return "", err
	}
	return filepath.Join(d.Root, name), nil
}

// forgetMessage removes the message file of a container that the agent removes.
func (d *notebook) forgetMessage(s plan.Step) {
	if d.Root != "" && podspec.IsUID(s.Place.Pod) && s.Place.Container != "" {
		_ = os.Remove(filepath.Join(d.Root, messageName(s.Place, s.Attempt))) // a file that remains is removed with the pod
	}
}

// readMessage reads the termination message of a container.
func (d *notebook) readMessage(at plan.Place, attempt int) string {
	if d.Root == "" || !podspec.IsUID(at.Pod) {
		return ""
	}
	f, err := os.OpenFile(filepath.Join(d.Root, messageName(at, attempt)), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "" // an earlier version created no file
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

// readMessages reads the termination messages of ended containers into the Error field of the list.
// known has the messages that were read before, by container id.
func (a *Agent) readMessages(ctx context.Context, e engine.Engine, list []engine.Container, node plan.Facts,
	logFallback map[plan.Place]bool, known map[string]string) map[string]string {
	now := map[string]string{}
	for i, c := range list {
		in, ok := plan.InstanceOf(c, node)
		if !ok || in.Place.Container == "" || in.State != engine.Exited && in.State != engine.Dead {
			continue
		}
		message, has := known[c.ID]
		if !has {
			message = a.disk.readMessage(in.Place, in.Attempt)
			if message == "" && in.ExitCode != 0 && logFallback[in.Place] {
				message = lastOfLog(ctx, e, c.ID)
			}
		}
		if now[c.ID] = message; message != "" && c.Error != "" {
			message = c.Error + ": " + message
		}
		list[i].Error = cmp.Or(message, c.Error)
	}
	return now
}

// lastOfLog reads the end of a container's log.
func lastOfLog(ctx context.Context, e engine.Engine, id string) string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var end tail
	if err := e.Logs(ctx, id, engine.LogOptions{Tail: maxLogLines}, &end, &end); err != nil {
		return fmt.Sprintf("Error reading termination message from logs: %v", err)
	}
	return string(end)
}

// A tail keeps the last bytes written to it.
type tail []byte

func (e *tail) Write(p []byte) (int, error) {
	*e = append(*e, p...)
	if n := len(*e) - maxLogMessage; n > 0 {
		*e = append((*e)[:0], (*e)[n:]...)
	}
	return len(p), nil
}

// fallsBackToLogs are the containers whose termination message policy is FallbackToLogsOnError.
func (l *loop) fallsBackToLogs() map[plan.Place]bool {
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
