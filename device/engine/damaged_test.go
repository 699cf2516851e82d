package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"flotilla.dev/device/engine"
)

// A power cut can remove the directory of a layer while the engine's database still has the image.
func TestAnImageWhoseLayerIsGoneIsDamagedUntilItIsPulledAgain(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		for _, gone := range []string{"", "diff"} { // the layer's directory, or only its files
			for _, byDigest := range []bool{false, true} {
				t.Run(fmt.Sprintf("%q gone, by digest %v", gone, byDigest), func(t *testing.T) {
					e, r := open(t, socket), newRegistry(t, "")
					ref := r.host + "/name:1"
					if byDigest {
						ref = r.host + "/name@" + sum(r.manifest)
					}
					must(t, e.Pull(t.Context(), ref, nil, nil))
					t.Cleanup(func() { must(t, e.RemoveImage(context.Background(), ref)) })
					id, err := e.Create(t.Context(), engine.Spec{Name: "damaged-" + filepath.Base(t.TempDir()) + r.host[len(r.host)-5:], Image: ref, Labels: map[string]string{}})
					must(t, err)
					var at struct {
						GraphDriver struct{ Data struct{ UpperDir string } }
					}
					ask(t, socket, "/images/"+ref+"/json", &at)
					layer := filepath.Join(filepath.Dir(at.GraphDriver.Data.UpperDir), gone)
					if _, err := os.Stat(layer); err != nil || at.GraphDriver.Data.UpperDir == "" {
						must(t, e.Remove(t.Context(), id))
						t.Skipf("its layers are not to be reached here: %v", err)
					}
					must(t, os.RemoveAll(layer))
					_, _, err = e.HasImage(t.Context(), ref)
					if err == nil {
						_, err = e.Create(t.Context(), engine.Spec{Name: "again-" + r.host[len(r.host)-5:], Image: ref, Labels: map[string]string{}})
					}
					if !errors.Is(err, engine.ErrDamaged) {
						t.Errorf("without its layer it is: %v", err)
					}
					if err := e.Pull(t.Context(), ref, nil, nil); err != nil && !errors.Is(err, engine.ErrDamaged) {
						t.Errorf("a pull of what is there already: %v", err)
					}
					if err := e.RemoveImage(t.Context(), ref); err == nil {
						t.Error("it goes although a container was made of it")
					}
					must(t, e.Remove(t.Context(), id))
					must(t, e.RemoveImage(t.Context(), ref))
					must(t, e.Pull(t.Context(), ref, nil, nil))
					if _, ok, err := e.HasImage(t.Context(), ref); err != nil || !ok {
						t.Fatalf("after another pull it is not there: %v", err)
					}
					id, err = e.Create(t.Context(), engine.Spec{Name: "again-" + r.host[len(r.host)-5:], Image: ref, Labels: map[string]string{}})
					must(t, err)
					must(t, e.Remove(t.Context(), id))
				})
			}
		}
	})
}
