package memory

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"flotilla.dev/shared/wire"
)

// A slowDisk syncs as slowly as a test needs.
type slowDisk struct {
	realDisk
	begun, over chan struct{}
}

func (d slowDisk) Sync(f *os.File) error {
	d.begun <- struct{}{}
	<-d.over
	return d.realDisk.Sync(f)
}

func (d slowDisk) SyncDir(path string) error {
	d.begun <- struct{}{}
	<-d.over
	return d.realDisk.SyncDir(path)
}

// The lease contains the stored generation. The lease and other readers do not wait for a card that
// needs minutes for a write.
func TestReadersDoNotWaitForTheDisk(t *testing.T) {
	for name, store := range map[string]func(*Memory) error{
		"the desired state": func(m *Memory) error { return m.SetDesired(wire.Desired{Generation: 2, Hub: "hub"}) },
		"the journal":       func(m *Memory) error { return m.SetNotes([]PodNote{{UID: "a"}}) },
		"a pulled image":    func(m *Memory) error { return m.SetPulled(Pulled{Name: "a", ID: "b"}) },
		"a verified image":  func(m *Memory) error { return m.SetVerified(Verified{Asked: "a", Image: "b", Key: "c"}) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			first, _ := open(t, dir)
			if err := first.SetDesired(wire.Desired{Generation: 1, Hub: "hub"}); err != nil {
				t.Fatal(err)
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			d := slowDisk{begun: make(chan struct{}), over: make(chan struct{})}
			m, err := openOn(d, dir, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			stored := make(chan error, 1)
			go func() { stored <- store(m) }()
			<-d.begun
			read := make(chan int64, 1)
			go func() {
				have, _ := m.Desired()
				m.Trouble()
				m.Notes()
				m.Pulled()
				m.Verified("a")
				if err := m.SetNotes(nil); err != nil { // SetNotes without a change
					t.Error(err)
				}
				read <- have.Generation
			}()
			select {
			case got := <-read:
				if got != 1 {
					t.Errorf("generation %d is returned before it is stored", got)
				}
			case <-time.After(20 * time.Second):
				t.Error("a reader waits for the disk")
			}
			close(d.over)
			for done := false; !done; {
				select {
				case <-d.begun:
				case err := <-stored:
					if done = true; err != nil {
						t.Error(err)
					}
				}
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
