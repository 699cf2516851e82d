package agent

import (
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
)

// Made returns those containers of a list that the agent with this directory made. Labels alone do
// not tell: an image can bring them, and one that is committed from a container of an agent does.
// Nor does the name, which anybody can change. So the agent notes the id of each container between
// its creation and its start. A container without a note that has the agent's name for it is of an
// earlier version, or of an agent that was killed before it wrote the note: it gets one.
func Made(dir string, list []engine.Container) []engine.Container {
	d := disk{root: dir}
	return slices.DeleteFunc(list, func(c engine.Container) bool {
		l := c.Labels
		note, uid := "", types.UID(l[LabelPodUID])
		if dir != "" && isUID(uid) {
			note = d.madeNote(uid, c.ID)
			if _, err := os.Lstat(note); err == nil {
				return false
			}
		}
		if l[LabelAgent] == "" || c.Name != nameOf(l[LabelContainer], l[LabelPodName], l[LabelNamespace], l[LabelPodUID], l[LabelRestarts]) {
			return true
		}
		if note != "" {
			_ = os.WriteFile(note, nil, 0o600) // without its directory: the pod may have been cleaned away since
		}
		return false
	})
}

// madeNote is the note that the agent made a container. It outlives a boot, as the container does.
func (d *disk) madeNote(uid types.UID, id string) string {
	return filepath.Join(d.root, podsDir, string(uid), ".made-"+filepath.Base(id))
}

// noteMade notes that a container is the agent's; where it cannot, its name tells.
func (d *disk) noteMade(uid types.UID, id string) {
	if path := d.madeNote(uid, id); d.root != "" && isUID(uid) && os.MkdirAll(filepath.Dir(path), 0o700) == nil {
		_ = os.WriteFile(path, nil, 0o600)
	}
}

func (d *disk) forgetMade(uid types.UID, id string) {
	if d.root != "" && isUID(uid) {
		_ = os.Remove(d.madeNote(uid, id)) // what is left goes with the pod
	}
}
