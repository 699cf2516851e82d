package nodes

import (
	"testing"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/search"
)

func TestEveryListKnowsItsKeys(t *testing.T) {
	admintest.CheckKeys(t, search.Nodes, Finder.Has)
	admintest.CheckKeys(t, search.Sites, siteFinder.Has)
}
