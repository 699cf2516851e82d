package overview

import (
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/search"
)

func TestEveryListKnowsItsKeys(t *testing.T) {
	admintest.CheckKeys(t, search.Events, eventFinder.Has)
}
