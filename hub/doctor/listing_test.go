package doctor

import (
	"path/filepath"
	"testing"
)

// The listing names the files that a killed hub leaves.
func TestTheListingNamesFilesOfAKilledHub(t *testing.T) {
	for _, name := range []string{
		"hub.db", "hub.db-wal", "hub.db.migrate", "hub.db.migrate-wal", "hub.db.restore", "hub.db.restore-journal",
		"hub.db.before-migrate-20260102T030405Z", "hub.db.before-restore-20260102T030405Z-2",
		"hub.db.before-restore-20260102T030405Z.part", "hub.db.before-restore-20260102T030405Z.restore-wal",
		"backups/hub-20260102T030405Z.db.part", "backups/before-schema-7-20260102T030405Z.db.part-journal",
	} {
		if got := named("/data", filepath.Join("/data", name)); got != filepath.Join("/data", name) {
			t.Errorf("the listing shows %s as %s, want it unchanged", name, got)
		}
	}
	for _, name := range []string{"hub.db.of-anna", "hub.db.migrate-anna", "backups/anna.db.part"} {
		if got := named("/data", filepath.Join("/data", name)); got == filepath.Join("/data", name) {
			t.Errorf("the listing must hide %s", name)
		}
	}
}
