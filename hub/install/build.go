package install

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"

	"flotilla.dev/shared/fleet"
)

// BuildSuffix ends the name of the file beside an agent with its version, hash and signature, which
// command packages/sign writes.
const BuildSuffix = ".json"

// Builds lists the agents to which devices can be upgraded: those with a file that describes them.
func (d *Depot) Builds() (builds []fleet.AgentBuild) {
	for _, a := range d.Agents() {
		text, err := os.ReadFile(a.File + BuildSuffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		b, err := fleet.ParseAgentBuild(text)
		if err == nil {
			err = d.describes(b, a)
		}
		if err != nil {
			d.Log.Warn("no device is upgraded to this agent: build it and its file again with `make agents`",
				"file", a.File+BuildSuffix, "err", err)
			continue
		}
		builds = append(builds, b)
	}
	return builds
}

// describes checks that a build is that of a file. It reads a file once.
func (d *Depot) describes(b fleet.AgentBuild, a Agent) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hashes == nil {
		d.hashes = map[Agent]string{}
	}
	sum, known := d.hashes[a]
	if !known {
		f, err := os.Open(a.File)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		if len(d.hashes) >= 2*len(arches) { // files were replaced
			clear(d.hashes)
		}
		sum = hex.EncodeToString(h.Sum(nil))
		d.hashes[a] = sum
	}
	if b.SHA256 != sum || b.Size != a.Size || b.Arch != a.Arch {
		return errors.New("it describes another file")
	}
	return nil
}
