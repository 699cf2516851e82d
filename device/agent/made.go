package agent

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/volume"
)

// A notebook is the disk of the pods' volumes with what the agent notes beside these: which containers it has made, which of
// their hooks and probes have passed, what they say at their end.
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
		if l[plan.LabelAgent] == "" || c.Name != plan.NameOf(l[plan.LabelContainer], l[plan.LabelPodName], l[plan.LabelNamespace], l[plan.LabelPodUID], l[plan.LabelRestarts]) {
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
	return filepath.Join(d.Root, volume.PodsDir, string(uid), filepath.Base(madePrefix+attempt+"-"+cmp.Or(container, "POD")+"-"+id))
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
		_ = os.Remove(d.madeNote(s.Place.Pod, s.Place.Container, strconv.Itoa(s.Attempt), s.ID)) // what is left goes with the pod
	}
}

// attempts returns the newest attempt of each container of a pod that an agent has noted: somebody may have removed the
// container since, and its restart count goes on from there.
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
