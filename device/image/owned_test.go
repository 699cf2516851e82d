package image

import (
	"strings"
	"testing"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/memory"
)

func TestIsPulled(t *testing.T) {
	pulled := []memory.Pulled{{Name: "web:1", ID: "sha256:a"}, {Name: "registry.example.org/web@" + "sha256:" + strings.Repeat("d", 64), ID: "sha256:d"}, {Name: "earlier:1"}}
	for _, c := range []struct {
		name string
		im   engine.Image
		ours bool
	}{
		{"pulled", engine.Image{ID: "sha256:a", Tags: []string{"web:1"}}, true},
		{"pulled, under its full name", engine.Image{ID: "sha256:a", Tags: []string{"docker.io/library/web:1"}}, true},
		{"pulled, but its name is another image's now", engine.Image{ID: "sha256:a"}, true},
		{"pulled by digest, without a name", engine.Image{ID: "sha256:d"}, true},
		{"pulled, with another name of the owner", engine.Image{ID: "sha256:a", Tags: []string{"mine:1", "web:1"}}, false},
		{"the owner's under the same name", engine.Image{ID: "sha256:b", Tags: []string{"web:1"}}, false},
		{"the owner's", engine.Image{ID: "sha256:c", Tags: []string{"db:1"}}, false},
		{"the owner's without a name", engine.Image{ID: "sha256:c"}, false},
		{"pulled by an earlier agent", engine.Image{ID: "sha256:e", Tags: []string{"earlier:1"}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := IsPulled(c.im, pulled); got != c.ours {
				t.Errorf("ours: %v", got)
			}
		})
	}
}
