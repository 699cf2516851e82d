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

// A notebook is the disk of the pods' volumes with what the agent notes beside these: which
// containers it has made, which of their hooks and probes have passed, what they say at their end.
type notebook struct{ volume.Disk }

// Made returns those containers of a list that the agent with this directory made. Labels alone do
// not tell: an image can bring them, and one that is committed from a container of an agent does.
// Nor does the name, which anybody can change. So the agent notes the id of each container between
// its creation and its start. A container without a note that has the agent's name for it is of an
// earlier version, or of an agent that was killed before it wrote the note: it gets one.
func Made(dir string, list []engine.Container) []engine.Container {
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
			_ = os.WriteFile(note, nil, 0o600) // without its directory: the pod may have been cleaned away since
		}
		return false
	})
}

const madePrefix = ".made-"

// madeNote is the note that the agent made a container. It outlives a boot, as the container does.
func (d *notebook) madeNote(uid types.UID, container, attempt, id string) string {
	return filepath.Join(d.Root, volume.PodsDir, string(uid),
		filepath.Base(madePrefix+attempt+"-"+cmp.Or(container, "POD")+"-"+id))
}

// noteMade notes that a container is the agent's; where it cannot, its name tells.
func (d *notebook) noteMade(s plan.Step, id string) {
	path := d.madeNote(s.Place.Pod, s.Place.Container, strconv.Itoa(s.Attempt), id)
	if d.Root != "" && podspec.IsUID(s.Place.Pod) && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = os.WriteFile(path, nil, 0o600)
	}
}

func (d *notebook) forgetMade(s plan.Step) {
	if d.Root != "" && podspec.IsUID(s.Place.Pod) {
		// what is left goes with the pod
		_ = os.Remove(d.madeNote(s.Place.Pod, s.Place.Container, strconv.Itoa(s.Attempt), s.ID))
	}
}

// attempts returns the newest attempt of each container of a pod that an agent has noted: somebody
// may have removed the container since, and its restart count goes on from there.
func (d *notebook) attempts(uid types.UID) map[string]int {
	out := map[string]int{}
	list, _ := os.ReadDir(filepath.Join(d.Root, volume.PodsDir, string(uid))) // none, for a pod that has no files
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
func (a *Agent) readMessages(ctx context.Context, e engine.Engine, list []engine.Container, node plan.Facts,
	ofLog map[plan.Place]bool, known map[string]string) map[string]string {
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
