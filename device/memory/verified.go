package memory

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
)

const (
	verifiedFile = "verified.state"
	maxVerified  = 512 // number of images; the oldest is dropped
)

// A Verified is an image whose signature was verified. The device may run it without network while
// its key is trusted.
type Verified struct {
	Asked string `json:"asked"` // full name in the pod's spec
	Image string `json:"image"` // the same name with the verified digest
	Key   string `json:"key"`   // id of the signer's key
}

// Verified returns the last verified image for a name.
func (m *Memory) Verified(asked string) (Verified, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := slices.IndexFunc(m.verified, func(v Verified) bool { return v.Asked == asked })
	if i < 0 {
		return Verified{}, false
	}
	return m.verified[i], true
}

// SetVerified stores a verified image durably. It does not write an unchanged entry.
func (m *Memory) SetVerified(v Verified) error {
	m.writing.Lock()
	defer m.writing.Unlock()
	if slices.Contains(m.verified, v) {
		return nil
	}
	next := slices.DeleteFunc(slices.Clone(m.verified), func(old Verified) bool { return old.Asked == v.Asked })
	next = append(next, v)
	next = next[max(0, len(next)-maxVerified):]
	m.change(func() { m.verified = next }) // used even if the disk fails
	if m.dir == "" {
		return nil
	}
	body, err := json.Marshal(next)
	if err == nil {
		err = write(m.disk, filepath.Join(m.dir, verifiedFile), body)
	}
	if m.setTrouble(verifiedFile, err); err != nil {
		return fmt.Errorf(
			"store that image %s is signed: %w; after a restart it is verified again, which needs its registry", v.Asked, err)
	}
	return nil
}

func (m *Memory) readVerified() {
	m.read(filepath.Join(m.dir, verifiedFile), &m.verified, "images are verified again, which needs their registries")
}
