package firmwareconfigs

import (
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
)

// Every shipped profile accepts every overlay for its boards, and its rendered configuration has
// the overlay's changes. A board without config.txt refuses overlays that change config.txt.
func TestShippedProfilesAcceptTheOverlays(t *testing.T) {
	profiles, err := Defaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range profiles {
		backend := fleet.BootGrub
		switch {
		case strings.HasPrefix(p.Name, "raspberrypi-"):
			backend = fleet.BootConfigTxt
		case p.Name == "beaglebone-black":
			backend = fleet.BootUEnv
		}
		for _, extends := range append([][]string{{}, Overlays()}, each(Overlays())...) {
			q := p.DeepCopy()
			q.Spec.Extends = extends
			q.Spec.Boot = &fleet.BoardBoot{Backend: backend, Cmdline: fleet.BootCmdline{Add: []string{"psi=1"}}}
			document, c, err := Render(q)
			if refused := backend != fleet.BootConfigTxt && len(extends) > 0; refused {
				if err == nil || !strings.Contains(err.Error(), "settings of config.txt") {
					t.Errorf("%s with %v: %v, want it refused", p.Name, extends, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s with %v: %v", p.Name, extends, err)
				continue
			}
			if parsed, err := fleet.ParseBootConfig(document); err != nil || parsed.Profile != p.Name ||
				len(c.Config.DTOverlay) < len(extends)/3 {
				t.Errorf("%s with %v: %+v, %v", p.Name, extends, parsed, err)
			}
		}
	}
}

func each(list []string) (out [][]string) {
	for _, s := range list {
		out = append(out, []string{s})
	}
	return out
}
