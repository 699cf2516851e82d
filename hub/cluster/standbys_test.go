package cluster

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"flotilla.dev/hub/leader"
)

// A silent standby is removed, however many there were, and a new announcement adds one.
func TestASilentStandbyIsRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s standbys
		for i := range 2 * maxStandbys {
			s.announced(leader.Status{Name: "hub", Address: fmt.Sprintf("hub-%02d:8444", i)})
		}
		if all := s.list(); len(all) != maxStandbys || all[3].Address != "hub-03:8444" {
			t.Errorf("%d hubs are kept, %+v", len(all), all)
		}
		time.Sleep(standbyTimeout - time.Second)
		s.announced(leader.Status{Name: "hub", Address: "hub-03:8444", Revision: 9})
		time.Sleep(2 * time.Second)
		if all := s.list(); len(all) != 1 || all[0].Revision != 9 {
			t.Errorf("of them there are %+v", all)
		}
		s.announced(leader.Status{Address: "hub-99:8444"})
		if all := s.list(); len(all) != 2 {
			t.Errorf("another one found no place: %+v", all)
		}
	})
}
