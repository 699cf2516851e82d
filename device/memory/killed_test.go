package memory

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"testing"
)

var errKilled = errors.New("the agent was killed")

// A killedDisk stops after a number of calls, as if the agent were killed. With tears, it does half
// of the last write.
type killedDisk struct {
	realDisk
	callsLeft int
	tears     bool
}

func (d *killedDisk) dead() bool { d.callsLeft--; return d.callsLeft < 0 }

func (d *killedDisk) Open(path string) (*os.File, error) {
	if d.dead() {
		return nil, errKilled
	}
	return d.realDisk.Open(path)
}

func (d *killedDisk) Room(f *os.File, bytes int64) error {
	if d.dead() {
		return errKilled
	}
	return d.realDisk.Room(f, bytes)
}

func (d *killedDisk) WriteAt(f *os.File, text []byte) error {
	if d.dead() {
		if d.tears && d.callsLeft == -1 {
			_ = d.realDisk.WriteAt(f, text[:len(text)/2])
		}
		return errKilled
	}
	return d.realDisk.WriteAt(f, text)
}

func (d *killedDisk) Sync(f *os.File) error {
	if d.dead() {
		return errKilled
	}
	return d.realDisk.Sync(f)
}

func (d *killedDisk) SyncDir(path string) error {
	if d.dead() {
		return errKilled
	}
	return d.realDisk.SyncDir(path)
}

func (d *killedDisk) Replace(path string, text []byte) error {
	if d.dead() {
		return errKilled
	}
	return d.realDisk.Replace(path, text)
}

func (d *killedDisk) Remove(path string) error {
	if d.dead() {
		return errKilled
	}
	return d.realDisk.Remove(path)
}

// After a kill at any call that changes a file, the next start has the acknowledged content, or the
// content of the interrupted write.
func TestAnAgentKilledAtAnyFileOperationLosesNoStoredContent(t *testing.T) {
	for _, tears := range []bool{false, true} {
		for n := 0; ; n++ {
			dir := t.TempDir()
			d := &killedDisk{callsLeft: n, tears: tears}
			m, err := openOn(d, dir, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			// Each step writes one file; at first it creates the file.
			var generation, notes, images int // numbers of the last acknowledged writes
			for i := 1; i <= 3; i++ {
				if m.SetDesired(desired(int64(i), "hub", "a")) == nil {
					generation = i
				}
				if m.SetNotes([]PodNote{{UID: "u"}, {UID: "v"}, {UID: "w"}}[:i]) == nil {
					notes = i
				}
				if m.SetVerified(Verified{Asked: fmt.Sprint("image", i), Image: "x"}) == nil {
					images = i
				}
			}
			_ = m.Close()
			m, logged := open(t, dir)
			got, _ := m.Desired()
			for name, is := range map[string][2]int{"generation": {int(got.Generation), generation},
				"notes": {len(m.Notes()), notes}, "images": {len(m.verified), images}} {
				if is[0] != is[1] && is[0] != is[1]+1 {
					t.Errorf("killed at call %d (torn: %v): stored %s %d, but %d was acknowledged", n, tears, name,
						is[0], is[1])
				}
			}
			// until this start the first write had only one copy
			first := got.Generation == 1 && m.slots.seq == 2 || len(m.Notes()) == 1 && m.journal.seq == 2
			if trouble := m.Trouble(); trouble != "" && !tears && !first {
				t.Errorf("killed at call %d: %s", n, trouble)
			}
			for i := 4; i <= 5; i++ { // the next agent writes without faults
				if err := errors.Join(m.SetDesired(desired(int64(i), "hub", "a")),
					m.SetNotes([]PodNote{{UID: "x"}}[:i-4])); err != nil {
					t.Errorf("killed at call %d: the next write: %v", n, err)
				}
			}
			_ = m.Close()
			m, _ = open(t, dir)
			if got, _ := m.Desired(); got.Generation != 5 || len(m.Notes()) != 1 || m.Trouble() != "" {
				t.Errorf("killed at call %d: in the end generation %d, %d notes, trouble %q (at first %q)", n,
					got.Generation,
					len(m.Notes()), m.Trouble(), logged)
			}
			_ = m.Close()
			if d.callsLeft >= 0 {
				if n < 30 {
					t.Errorf("the test saw only %d calls", n)
				}
				break
			}
		}
	}
}
