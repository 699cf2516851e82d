package image

import (
	"strings"
	"testing"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/memory"
)

func TestWhoseAnImageIs(t *testing.T) {
	pulled := []memory.Pulled{{Name: "web:1", ID: "sha256:a"}, {Name: "registry.example.org/web@" + "sha256:" + strings.Repeat("d", 64), ID: "sha256:d"}, {Name: "earlier:1"}}
	for _, c := range []struct {
		name string
		im   engine.Image
		ours bool
	}{
		{"what was pulled", engine.Image{ID: "sha256:a", Tags: []string{"web:1"}}, true},
		{"under its whole name", engine.Image{ID: "sha256:a", Tags: []string{"docker.io/library/web:1"}}, true},
		{"its name is another image's now", engine.Image{ID: "sha256:a"}, true},
		{"what was pulled by a digest has no name", engine.Image{ID: "sha256:d"}, true},
		{"the owner has given it a name", engine.Image{ID: "sha256:a", Tags: []string{"mine:1", "web:1"}}, false},
		{"the owner has pulled another under that name", engine.Image{ID: "sha256:b", Tags: []string{"web:1"}}, false},
		{"the owner's", engine.Image{ID: "sha256:c", Tags: []string{"db:1"}}, false},
		{"the owner's without a name", engine.Image{ID: "sha256:c"}, false},
		{"an earlier agent's", engine.Image{ID: "sha256:e", Tags: []string{"earlier:1"}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := IsPulled(c.im, pulled); got != c.ours {
				t.Errorf("ours: %v", got)
			}
		})
	}
}
