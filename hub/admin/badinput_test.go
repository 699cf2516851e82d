package admin

import (
	"net/http"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
)

// A wrong address is answered with one sentence and the way back, never with an empty page or a whole
// list.
func TestAWrongAddressIsOneSentenceWithTheWayBack(t *testing.T) {
	srv := acting(t, admintest.New(admintest.Sample()...))
	const wrong, missing = http.StatusBadRequest, http.StatusNotFound
	for _, c := range []struct {
		path string
		code int
		says string
		back string
	}{
		{"/nodes?status=broken", wrong, "status “broken” does not exist. Use attention, ready, notready, unknown, never, cordoned or hot.", "/nodes"},
		{"/nodes?status=READY", wrong, "status “READY” does not exist.", "/nodes"},
		{"/nodes?site=nowhere", wrong, "site “nowhere” does not exist.", "/nodes"},
		{"/nodes?page=x", wrong, "page “x” does not exist. Use a number from 1 on.", "/nodes"},
		{"/nodes?page=0", wrong, "page “0” does not exist.", "/nodes"},
		{"/nodes?sort=colour", wrong,
			"sort “colour” does not exist. Use name, status, site, board, pods, cpu, memory, heard or age.", "/nodes"},
		{"/pods?sort=-x", wrong, "sort “-x” does not exist. Use name, status, restarts, node or age.", "/pods"},
		{"/pods?namespace=nowhere", wrong, "namespace “nowhere” does not exist.", "/pods"},
		{"/workloads?status=broken", wrong, "Use attention, complete or paused.", "/workloads"},
		{"/sites?state=broken", wrong, "Use attention, held, maintenance or normal.", "/sites"},
		{"/events?type=broken", wrong, "Use Warning or Normal.", "/events"},
		{"/events?since=long", wrong, "Use for example 1h.", "/events"},
		{"/events?since=-5h", wrong, "Use for example 1h.", "/events"},
		{"/incidents?cause=Bad", wrong, "cause “Bad” does not exist.", "/incidents"},
		{"/incidents?severity=Bad", wrong, "Use Critical, Warning or Info.", "/incidents"},
		{"/incidents?status=" + strings.Repeat("x", 5000), wrong, "xxx…”", "/incidents"},
		{"/audit?before=x", wrong, "record “x” does not exist.", "/audit"},
		{"/audit?kind=x", wrong, "kind “x” does not exist.", "/audit"},
		{"/audit?from=x", wrong, "source “x” does not exist.", "/audit"},
		{"/audit?result=x", wrong, "result “x” does not exist.", "/audit"},
		{"/nodes/pi-1?span=9y", wrong, "Use 1h, 6h, 24h, 7d or 30d.", "/nodes"},
		{"/nodes/nothing", missing, "There is no node nothing.", "/nodes"},
		{"/sites/nothing", missing, "There is no site nothing.", "/sites"},
		{"/pods/default/nothing", missing, "There is no pod nothing in namespace default.", "/pods"},
		{"/pods/default/nothing/logs", missing, "There is no pod nothing in namespace default.", "/pods"},
		{"/workloads/deployments/default/nothing", missing, "There is no deployment nothing in namespace default.", "/workloads"},
		{"/workloads/boats/default/nothing", missing, "A workload is a deployment, a stateful set or a daemon set.", "/workloads"},
		{"/incidents/nothing", missing, "There is no incident nothing", "/incidents"},
		{"/rollouts/nothing", missing, "There is no rollout nothing.", "/rollouts"},
		{"/help/nothing", missing, "The manual has no page “nothing”.", "/help"},
		{"/actions/nodes/cordon?site=nowhere", missing, "site “nowhere” does not exist. Go back to the list", "/actions"},
	} {
		resp, body := srv.ask(t, "admin", "GET", c.path, nil)
		if resp.StatusCode != c.code || !strings.Contains(body, c.says) || !strings.Contains(body, `<a class="button" href="`+c.back+`">`) {
			t.Errorf("%.80s: %d, want %d; does it say %q and lead to %s? %.600s", c.path, resp.StatusCode, c.code, c.says, c.back, wordsOf(body))
		}
	}
}
