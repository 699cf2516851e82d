package cluster

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/leader"
)

// A silent standby is removed, so that new standbys have room below the limit.
func TestASilentStandbyIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s standbys
		for i := range 2 * maxStandbys {
			s.announced(leader.Status{Name: "hub", Address: fmt.Sprintf("hub-%02d:8444", i)})
		}
		if all := s.list(); len(all) != maxStandbys || all[3].Address != "hub-03:8444" {
			t.Errorf("%d standbys after too many announcements: %+v", len(all), all)
		}
		time.Sleep(standbyTimeout - time.Second)
		s.announced(leader.Status{Name: "hub", Address: "hub-03:8444", Revision: 9})
		time.Sleep(2 * time.Second)
		if all := s.list(); len(all) != 1 || all[0].Revision != 9 {
			t.Errorf("standbys after the timeout: %+v, want only hub-03", all)
		}
		s.announced(leader.Status{Address: "hub-99:8444"})
		if all := s.list(); len(all) != 2 {
			t.Errorf("a new standby is missing: %+v", all)
		}
	})
}
