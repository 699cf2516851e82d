package incidents

import (
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/search"
)

func TestEveryListKnowsItsKeys(t *testing.T) {
	admintest.CheckKeys(t, search.Incidents, finder.Has)
}
