package admin

import (
	"bytes"
	"cmp"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
)

// With SCREENSHOTS naming a directory this test makes web/screenshots anew; otherwise it checks
// that those files are small. The overview is that of TestANightOnTheRealHub.
func TestThePicturesOfTheReadme(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		dir = "../../web/screenshots"
	} else {
		k := newKit(t, toolObjects()...)
		k.open("/yaml/apis/apps/v1/namespaces/default/deployments/till")
		k.replaces("till:1.0", "till:1.1")
		k.press("button[value=check]")
		k.picture("yaml")
		k.width(1280, true)
		k.open("/nodes/pi-2")
		k.picture("node")
	}
	for _, name := range []string{"overview", "node", "yaml"} {
		if name == "overview" && os.Getenv("SCREENSHOTS") != "" {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, name+".png"))
		if err != nil {
			t.Errorf("%v; make it with SCREENSHOTS=web/screenshots", err)
		} else if info.Size() > 150_000 {
			t.Errorf("%s has %d bytes, more than 150 kB", info.Name(), info.Size())
		}
	}
}

// picture saves what the window shows.
func (b *browser) picture(name string) {
	b.Helper()
	shot, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err != nil {
		b.Fatalf("take a picture of %s: %v", name, err)
	}
	full, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		b.Fatal(err)
	}
	var out bytes.Buffer
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, paletted(full)); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("SCREENSHOTS"), name+".png"), out.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
}

// paletted reduces a picture to its 256 most frequent colours, which are nearly all.
func paletted(from image.Image) *image.Paletted {
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(from.At(x, y)).(color.RGBA) }
	count := map[color.RGBA]int{}
	r := from.Bounds()
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	often := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Or(count[b]-count[a], int(a.R)-int(b.R), int(a.G)-int(b.G), int(a.B)-int(b.B))
	})
	var palette color.Palette
	for _, c := range often[:min(256, len(often))] {
		palette = append(palette, c)
	}
	index := map[color.RGBA]uint8{}
	for c := range count {
		index[c] = uint8(palette.Index(c)) //nolint:gosec // there are at most 256
	}
	to := image.NewPaletted(r, palette)
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			to.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	return to
}
