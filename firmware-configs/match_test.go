package firmwareconfigs

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/shared/fleet"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// fakeBoard returns the board that a device with this fake root directory would report.
func fakeBoard(t *testing.T, root, arch string) Board {
	t.Helper()
	b := Board{Arch: arch}
	if names, err := os.ReadFile(filepath.Join(root, "proc/device-tree/compatible")); err == nil {
		b.Compatible = strings.Split(strings.TrimSuffix(string(names), "\x00"), "\x00")
	}
	info, err := os.ReadFile(filepath.Join(root, "proc/meminfo"))
	if err != nil {
		t.Fatal(err)
	}
	kb, err := strconv.ParseInt(string(regexp.MustCompile(`MemTotal: +(\d+)`).FindSubmatch(info)[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	b.MemoryMiB = kb >> 10
	return b
}

func TestEveryFakeRootMatchesItsProfile(t *testing.T) {
	profiles, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	arches := map[string]string{
		"raspberrypi-zero2w": "arm64", "raspberrypi-3": "arm64", "raspberrypi-4": "arm64", "raspberrypi-5": "arm64",
		"raspberrypi-armv6": "arm", "beaglebone-black": "arm", "generic-x86-64": "amd64", "generic-arm64": "arm64",
	}
	if len(profiles) != len(arches) {
		t.Errorf("the test has %d boards for %d profiles, want one for each", len(arches), len(profiles))
	}
	for name, arch := range arches {
		t.Run(name, func(t *testing.T) {
			p, err := Match(profiles, fakeBoard(t, filepath.Join("testdata", name, "root"), arch))
			if err != nil || p == nil {
				t.Fatalf("the board matches %v, %v; want a profile", p, err)
			}
			got, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			file := filepath.Join("testdata", name, "sent.json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if p.Name != name || !bytes.Equal(got, want) {
				t.Errorf("the hub would send profile %s (if that is intended, rewrite %s with -update):\n%s", p.Name,
					file, got)
			}
		})
	}
}

// Every Raspberry Pi matches the profile of its chip, by the names in the vendor's and in the
// kernel's device trees.
func TestEveryRaspberryPiHasAProfile(t *testing.T) {
	profiles, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	own := &fleet.BoardProfile{Spec: fleet.BoardProfileSpec{Match: fleet.BoardMatch{Compatible: []string{"raspberrypi,2-model-b"}}}}
	own.Name = "of-somebodys-own"
	if p, err := Match(append(profiles, own), Board{Compatible: []string{"raspberrypi,2-model-b", "brcm,bcm2836"},
		Arch: "arm"}); err != nil || p != own {
		t.Errorf("a user's profile for a Pi 2 is not selected: %v (%v)", p, err)
	}
	for chip, boards := range map[string]struct{ profile, names, arch string }{
		"brcm,bcm2835": {"raspberrypi-armv6", "model-a model-a-plus model-b model-b-rev2 model-b-plus compute-module model-zero model-zero-w", "arm"},
		"brcm,bcm2836": {"raspberrypi-3", "2-model-b", "arm"},
		"brcm,bcm2837": {"raspberrypi-3", "2-model-b-rev2 3-model-b 3-model-a-plus 3-model-b-plus 3-compute-module", "arm arm64"},
		"brcm,bcm2711": {"raspberrypi-4", "4-model-b 400 4-compute-module 4-compute-module-s", "arm arm64"},
		"brcm,bcm2712": {"raspberrypi-5", "5-model-b 500 5-compute-module", "arm arm64"},
	} {
		for _, name := range strings.Fields(boards.names) {
			for _, arch := range strings.Fields(boards.arch) {
				if p, err := Match(profiles, Board{Compatible: []string{"raspberrypi," + name, chip}, Arch: arch,
					MemoryMiB: 500}); err != nil || p == nil || p.Name != boards.profile {
					t.Errorf("raspberrypi,%s with an agent of %s has the profile %v (%v), want %s", name, arch, p,
						err, boards.profile)
				}
			}
		}
	}
}

func TestMatch(t *testing.T) {
	profile := func(name string, m fleet.BoardMatch) *fleet.BoardProfile {
		p := &fleet.BoardProfile{Spec: fleet.BoardProfileSpec{Match: m}}
		p.Name = name
		return p
	}
	pi4 := Board{Compatible: []string{"raspberrypi,4-model-b", "brcm,bcm2711"}, Arch: "arm64", MemoryMiB: 3794}
	model := profile("model", fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"}})
	chip := profile("chip", fleet.BoardMatch{Compatible: []string{"x,y", "brcm,bcm2711"}, Arch: []string{"arm64"},
		MemoryMiB: &fleet.MiBBounds{Min: 1}})
	arm64 := profile("arm64", fleet.BoardMatch{Arch: []string{"arm64"}})
	arms := profile("arms", fleet.BoardMatch{Arch: []string{"arm", "arm64"}})
	big := profile("big", fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"},
		MemoryMiB: &fleet.MiBBounds{Min: 2000}})
	exact := profile("exact", fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"},
		MemoryMiB: &fleet.MiBBounds{Min: 3794, Max: 3794}})
	small := profile("small", fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"},
		MemoryMiB: &fleet.MiBBounds{Max: 3793}})
	other := profile("other", fleet.BoardMatch{Compatible: []string{"raspberrypi,5-model-b"}})
	only32 := profile("only32", fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"}})
	only32.Spec.Platforms = []string{"linux/arm/v7", "linux/arm/v6"}
	twin := profile("twin", fleet.BoardMatch{Compatible: []string{"raspberrypi,4-model-b"}})
	for _, tt := range []struct {
		name     string
		profiles []*fleet.BoardProfile
		board    Board
		want     string // expected profile; empty: none
		err      string
	}{
		{"no profile matches", []*fleet.BoardProfile{other}, pi4, "", ""},
		{"no profile exists", nil, pi4, "", ""},
		{"a match by board name wins over a match by chip with more criteria", []*fleet.BoardProfile{chip, model}, pi4, "model", ""},
		{"a name wins over an architecture", []*fleet.BoardProfile{arm64, chip}, pi4, "chip", ""},
		{"one architecture wins over two", []*fleet.BoardProfile{arms, arm64}, pi4, "arm64", ""},
		{"a memory bound wins over no memory bound", []*fleet.BoardProfile{model, big}, pi4, "big", ""},
		{"two memory bounds win over one, and both bounds are inclusive", []*fleet.BoardProfile{exact, big, model}, pi4, "exact", ""},
		{"all criteria must hold", []*fleet.BoardProfile{small, arm64}, pi4, "arm64", ""},
		{"the error of a tie names both profiles", []*fleet.BoardProfile{twin, arm64, model}, pi4, "", "model and twin match the board raspberrypi,4-model-b brcm,bcm2711 equally well"},
		{"a tie between less specific profiles is not an error", []*fleet.BoardProfile{twin, model, big}, pi4, "big", ""},
		{"a profile without the agent's platform does not match", []*fleet.BoardProfile{only32, arm64}, pi4, "arm64", ""},
		{"a platform of any ARM version matches an ARM agent", []*fleet.BoardProfile{only32, arms}, Board{Compatible: pi4.Compatible, Arch: "arm"}, "only32", ""},
		{"a board without a device tree matches by its architecture", []*fleet.BoardProfile{model, arms}, Board{Arch: "arm"}, "arms", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Match(tt.profiles, tt.board)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("the error is %v, want it to contain %q", err, tt.err)
				}
				return
			}
			got := ""
			if p != nil {
				got = p.Name
			}
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestBoardOf(t *testing.T) {
	status := corev1.NodeStatus{
		Capacity: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("3885396Ki")},
		NodeInfo: corev1.NodeSystemInfo{Architecture: "arm64"},
	}
	b := BoardOf(status, json.RawMessage(`{"board":{"compatible":["a","b"]},"more":1}`))
	if len(b.Compatible) != 2 || b.Arch != "arm64" || b.MemoryMiB != 3794 {
		t.Errorf("the board is %+v, want two names, arm64 and 3794 MiB", b)
	}
	for _, bad := range []string{"", "null", "[]", `{"board":{"compatible":"a"}}`} {
		if b := BoardOf(status, json.RawMessage(bad)); b.Arch != "arm64" || len(b.Compatible) != 0 {
			t.Errorf("hardware %q: the board is %+v, want only arm64", bad, b)
		}
	}
}
