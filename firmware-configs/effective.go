package firmwareconfigs

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

//go:embed overlays/*.yaml
var overlayFiles embed.FS

// overlays returns the built-in overlays by name.
var overlays = sync.OnceValues(func() (map[string]*fleet.BoardProfile, error) {
	entries, err := overlayFiles.ReadDir("overlays")
	if err != nil {
		return nil, fmt.Errorf("list the overlays: %w", err)
	}
	all := map[string]*fleet.BoardProfile{}
	var errs []error
	for _, e := range entries {
		name := path.Join("overlays", e.Name())
		data, err := overlayFiles.ReadFile(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", name, err))
			continue
		}
		o, err := parse(data, overlay)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		case o.Name+".yaml" != e.Name() || o.Kind != "BoardOverlay":
			errs = append(errs, fmt.Errorf("%s contains the %s %q: rename one of them", name, o.Kind, o.Name))
		default:
			all[o.Name] = o
		}
	}
	return all, errors.Join(errs...)
})

// Overlays returns the names of the overlays that a profile can extend, sorted.
func Overlays() []string {
	all, _ := overlays()
	return slices.Sorted(maps.Keys(all))
}

// Effective returns a profile merged with its overlays: a later overlay overrides an earlier one,
// and the profile overrides all overlays. Lists are merged by the subject of their entries: device
// tree parameters and overlays by name, taints by key and effect, words of the command line by the
// effective word. Overlays extend nothing, so there are no cycles.
func Effective(p *fleet.BoardProfile) (*fleet.BoardProfile, error) {
	if len(p.Spec.Extends) == 0 {
		return p, nil
	}
	all, err := overlays()
	if err != nil {
		return nil, err
	}
	out := p.DeepCopy()
	out.Spec.Extends = nil
	base := fleet.BoardProfileSpec{}
	for _, name := range p.Spec.Extends {
		o := all[name]
		if o == nil {
			return nil, fmt.Errorf("spec.extends: unknown overlay %q: use some of %s", name, strings.Join(Overlays(), ", "))
		}
		base = over(base, o.DeepCopy().Spec)
	}
	s := over(base, out.Spec)
	out.Spec.Labels, out.Spec.Taints, out.Spec.Boot = s.Labels, s.Taints, s.Boot
	out.Spec.Resources.SystemReserved, out.Spec.Resources.AgentReserved,
		out.Spec.Resources.EvictionHard = s.Resources.SystemReserved, s.Resources.AgentReserved, s.Resources.EvictionHard
	out.Spec.Resources.EvictionSoft = s.Resources.EvictionSoft
	return out, nil
}

// over returns a with b applied, for the fields that an overlay can have.
func over(a, b fleet.BoardProfileSpec) fleet.BoardProfileSpec {
	a.Labels = merged(a.Labels, b.Labels)
	a.Taints = lists(a.Taints, b.Taints, taintKey)
	a.Resources.SystemReserved = merged(a.Resources.SystemReserved, b.Resources.SystemReserved)
	a.Resources.AgentReserved = merged(a.Resources.AgentReserved, b.Resources.AgentReserved)
	a.Resources.EvictionHard = merged(a.Resources.EvictionHard, b.Resources.EvictionHard)
	a.Resources.EvictionSoft = merged(a.Resources.EvictionSoft, b.Resources.EvictionSoft)
	if b.Boot == nil {
		return a
	}
	boot := *b.Boot
	if x := a.Boot; x != nil {
		boot.Config.All = merged(x.Config.All, boot.Config.All)
		boot.Config.DTParam = lists(x.Config.DTParam, boot.Config.DTParam, parameter)
		boot.Config.DTOverlay = lists(x.Config.DTOverlay, boot.Config.DTOverlay, fleet.OverlayOf)
		add, remove := boot.Cmdline.Add, boot.Cmdline.Remove
		boot.Cmdline.Add = lists(without(x.Cmdline.Add, remove), add, itself)
		boot.Cmdline.Remove = lists(without(x.Cmdline.Remove, add), remove, itself)
	}
	a.Boot = &boot
	return a
}

func taintKey(t corev1.Taint) string { return t.Key + ":" + string(t.Effect) }

func itself(s string) string { return s }

// parameter returns the name of a dtparam, for example i2c_arm of i2c_arm=on.
func parameter(s string) string {
	name, _, _ := strings.Cut(s, "=")
	return name
}

func without(list, gone []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(gone, s) })
}

// merged returns a with b applied.
func merged[T any](a, b map[string]T) map[string]T {
	if len(a) == 0 {
		return b
	}
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// lists returns a with b applied: an entry of b replaces the entries of a with the same subject.
func lists[T any](a, b []T, about func(T) string) (out []T) {
	placed := make([]bool, len(b))
	for _, x := range a {
		i := slices.IndexFunc(b, func(y T) bool { return about(x) == about(y) })
		switch {
		case i < 0:
			out = append(out, x)
		case !placed[i]:
			out, placed[i] = append(out, b[i]), true
		}
	}
	for i, x := range b {
		if !placed[i] {
			out = append(out, x)
		}
	}
	return out
}

// Render returns the boot configuration of a profile's boards: the exact bytes to sign, and the
// decoded configuration. It returns an error for a profile without spec.boot.
func Render(p *fleet.BoardProfile) ([]byte, *fleet.BootConfig, error) {
	effective, err := Effective(p)
	if err != nil {
		return nil, nil, err
	}
	c := effective.BootConfig()
	if c == nil {
		return nil, nil, errors.New("it has no boot configuration: add spec.boot")
	}
	if err := c.Validate(); err != nil {
		return nil, nil, err
	}
	document, err := c.Encode()
	if err != nil {
		return nil, nil, err
	}
	if len(document) > fleet.MaxBootConfig {
		return nil, nil, fmt.Errorf("its boot configuration has %d bytes: at most %d are allowed", len(document),
			fleet.MaxBootConfig)
	}
	return document, c, nil
}
