package engine_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"flotilla.dev/device/engine"
)

// After a power cut the directory of a layer may be lost while the engine's database still has the
// image.
func TestAnImageWithoutALayerIsDamagedUntilItIsPulledAgain(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		for _, removed := range []string{"", "diff"} { // the layer's whole directory, or only its files
			for _, byDigest := range []bool{false, true} {
				what := cmp.Or(removed, "whole directory")
				t.Run(fmt.Sprintf("the layer lacks its %s, by digest %v", what, byDigest), func(t *testing.T) {
					e, r := open(t, socket), newRegistry(t, "")
					ref := r.host + "/name:1"
					if byDigest {
						ref = r.host + "/name@" + sum(r.manifest)
					}
					must(t, e.Pull(t.Context(), ref, nil, nil))
					t.Cleanup(func() { must(t, e.RemoveImage(context.Background(), ref)) })
					id, err := e.Create(
						t.Context(),
						engine.Spec{
							Name:   "damaged-" + filepath.Base(t.TempDir()) + r.host[len(r.host)-5:],
							Image:  ref,
							Labels: map[string]string{},
						},
					)
					must(t, err)
					var at struct {
						GraphDriver struct{ Data struct{ UpperDir string } }
					}
					ask(t, socket, "/images/"+ref+"/json", &at)
					layer := filepath.Join(filepath.Dir(at.GraphDriver.Data.UpperDir), removed)
					if _, err := os.Stat(layer); err != nil || at.GraphDriver.Data.UpperDir == "" {
						must(t, e.Remove(t.Context(), id))
						t.Skipf("the engine's layers cannot be reached here: %v", err)
					}
					must(t, os.RemoveAll(layer))
					_, _, err = e.HasImage(t.Context(), ref)
					if err == nil {
						_, err = e.Create(t.Context(),
							engine.Spec{Name: "again-" + r.host[len(r.host)-5:], Image: ref, Labels: map[string]string{}})
					}
					if !errors.Is(err, engine.ErrDamaged) {
						t.Errorf("an image without its layer: got %v, want ErrDamaged", err)
					}
					if err := e.Pull(t.Context(), ref, nil, nil); err != nil && !errors.Is(err, engine.ErrDamaged) {
						t.Errorf("a pull of the damaged image: %v, want success or ErrDamaged", err)
					}
					if err := e.RemoveImage(t.Context(), ref); err == nil {
						t.Error("the image was removed although a container uses it")
					}
					must(t, e.Remove(t.Context(), id))
					must(t, e.RemoveImage(t.Context(), ref))
					must(t, e.Pull(t.Context(), ref, nil, nil))
					if _, ok, err := e.HasImage(t.Context(), ref); err != nil || !ok {
						t.Fatalf("the image is missing after another pull: %v", err)
					}
					id, err = e.Create(t.Context(),
						engine.Spec{Name: "again-" + r.host[len(r.host)-5:], Image: ref, Labels: map[string]string{}})
					must(t, err)
					must(t, e.Remove(t.Context(), id))
				})
			}
		}
	})
}
