package engine

import (
	"slices"
	"testing"
)

// Docker and Podman take the name of an AppArmor profile in the same form, also for a privileged
// container.
func TestAnAppArmorProfileIsSetByName(t *testing.T) {
	for _, name := range []string{"docker", "podman"} {
		for profile, want := range map[string]string{"web-strict": "apparmor=web-strict",
			"unconfined": "apparmor=unconfined"} {
			o, err := translate(Spec{Name: "c", AppArmor: profile, NoNewPrivs: true}, "image", Info{Name: name})
			if err != nil || !slices.Equal(o.HostConfig.SecurityOpt, []string{"no-new-privileges", want}) {
				t.Errorf("%s gets the security options %q, %v; want apparmor=%s among them", name, o.HostConfig.SecurityOpt, err,
					profile)
			}
		}
		if o, err := translate(Spec{Name: "c"}, "image", Info{Name: name}); err != nil || len(o.HostConfig.SecurityOpt) != 0 {
			t.Errorf("without a profile %s gets the security options %q, %v; want none", name, o.HostConfig.SecurityOpt, err)
		}
	}
}
