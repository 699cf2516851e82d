package admin

import (
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/frame"
)

// A hub on a board without a clock starts with the time that it stored, and the board's clock is
// set later. All times and ages on the page are by the hub's clock.
func TestAllTimesOfThePageAreTheHubs(t *testing.T) {
	for _, ahead := range []time.Duration{time.Hour, -time.Hour} {
		var step, heard atomic.Int64
		c := configOf(admintest.New(admintest.Sample()...))
		c.Now = func() time.Time { return time.Now().Add(ahead + time.Duration(step.Load())) }
		c.Liveness = func(string) frame.Liveness {
			return frame.Liveness{Seen: admintest.Now.Add(ahead - time.Hour + time.Duration(heard.Load())), Connected: true}
		}
		srv := start(t, c)
		near := func(what, text string) {
			t.Helper()
			at, err := time.Parse(time.RFC3339Nano, text)
			if off := c.Now().Sub(at); err != nil || off < -10*time.Minute || off > 10*time.Minute {
				t.Errorf("%s has the time %q (%v), %s from the hub's", what, text, err, off)
			}
		}
		now := regexp.MustCompile(`data-now="([^"]*)"`)
		for _, path := range []string{"/nodes", "/account", "/nobody"} {
			_, body := srv.ask(t, "viewer", "GET", path, nil)
			near(path, now.FindStringSubmatch(body)[1])
		}
		l := srv.listen(t, "viewer", "/nodes")
		if e := <-l.events; e[0] == "beat" {
			near("a stream", e[2][:len(e[2])-1])
		} else {
			t.Errorf("a stream begins with %q", e[0])
		}

		seen := regexp.MustCompile(`datetime="([^"]*)"[^>]*data-ago>[^<]*</time> ago</td>`)
		_, before := srv.ask(t, "viewer", "GET", "/nodes", nil)
		heard.Store(int64(30 * time.Minute))
		step.Store(int64(time.Second))
		_, after := srv.ask(t, "viewer", "GET", "/nodes", nil)
		if x, y := seen.FindStringSubmatch(before)[1], seen.FindStringSubmatch(after)[1]; x == y {
			t.Errorf("with a clock %s ahead, a list still says that a node was heard at %s", ahead, x)
		}
	}
}
