package workloads

import (
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/search"
)

func TestEveryListKnowsItsKeys(t *testing.T) {
	admintest.CheckKeys(t, search.Pods, podFinder.Has)
	admintest.CheckKeys(t, search.Workloads, workloadFinder.Has)
}
