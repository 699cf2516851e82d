package firmwareconfigs

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/shared/fleet"
)

// Allowed values of a profile. Programs are built only for these platforms.
var (
	arches    = []string{"amd64", "arm", "arm64"}
	platforms = []string{"linux/amd64", "linux/arm/v6", "linux/arm/v7", "linux/arm64"}
	effects   = []string{
		string(corev1.TaintEffectNoExecute), string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule),
	}
)

const (
	maxText = 128 // bytes of a title or a compatible name
	maxList = 64  // entries of a list or mapping
)

// A FieldError is a mistake in a field of a profile.
type FieldError struct{ Field, Detail string }

func (e *FieldError) Error() string { return e.Field + ": " + e.Detail }

type checker struct{ errs []*FieldError }

func (c *checker) wrong(path, format string, args ...any) {
	c.errs = append(c.errs, &FieldError{path, fmt.Sprintf(format, args...)})
}

// Validate returns every mistake in a profile's content.
func Validate(p *fleet.BoardProfile) []*FieldError {
	c := new(checker)
	if want := fleet.Group + "/" + fleet.Version; p.APIVersion != want {
		c.wrong("apiVersion", "is %q: write %s", p.APIVersion, want)
	}
	if p.Kind != "BoardProfile" {
		c.wrong("kind", "is %q: write BoardProfile", p.Kind)
	}
	if msgs := validation.IsDNS1123Subdomain(p.Name); len(msgs) > 0 {
		c.wrong("metadata.name", "is %q: %s", p.Name, strings.Join(msgs, "; "))
	}
	c.text("spec.title", p.Spec.Title)
	c.match(p.Spec.Match)
	c.oneOf("spec.platforms", p.Spec.Platforms, platforms)
	c.resources(p.Spec.Resources)
	c.soft(p.Spec.Resources)
	c.sharing(p.Spec.Resources.Sharing)
	c.peripherals(p.Spec.Peripherals)
	c.labels(p.Spec.Labels)
	c.taints(p.Spec.Taints)
	c.boot(p)
	return c.errs
}

// boot checks the boot configuration of the profile with its overlays, by the same rules as
// devices.
func (c *checker) boot(p *fleet.BoardProfile) {
	before := len(c.errs)
	c.oneOf("spec.extends", p.Spec.Extends, Overlays())
	if len(c.errs) > before {
		return
	}
	effective, err := Effective(p)
	if err != nil {
		c.wrong("spec.extends", "%v", err)
		return
	}
	b := effective.BootConfig()
	if b == nil {
		return
	}
	if p.Spec.Boot == nil || p.Spec.Boot.Backend == "" {
		c.wrong("spec.boot.backend", "is missing: use one of %s", strings.Join(fleet.BootBackends, ", "))
		return
	}
	judged := fleet.BootConfig{Profile: "x", Backend: b.Backend, Watchdog: b.Watchdog, Health: b.Health}
	// the check below reports the backend
	if b.Backend == fleet.BootNone || !slices.Contains(fleet.BootBackends, b.Backend) {
		judged.Backend = fleet.BootConfigTxt
	}
	c.each("spec", judged.Validate())
	b.Profile, b.Health = "x", fleet.BootHealth{}
	if b.Watchdog != nil {
		b.Watchdog = new(fleet.BootWatchdog)
	}
	c.each("spec.boot", b.Validate())
}

// each records the mistakes of a joined error, one by one.
func (c *checker) each(path string, err error) {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range several.Unwrap() {
			c.wrong(path, "%v", err)
		}
	} else if err != nil {
		c.wrong(path, "%v", err)
	}
}

func (c *checker) text(path, s string) {
	if len(s) > maxText {
		c.wrong(path, "has %d bytes: at most %d are allowed", len(s), maxText)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		c.wrong(path, "%q has a control character: remove it", s)
	}
}

func (c *checker) size(path string, n int) {
	if n > maxList {
		c.wrong(path, "has %d entries: at most %d are allowed", n, maxList)
	}
}

func (c *checker) oneOf(path string, list, allowed []string) {
	c.size(path, len(list))
	for i, s := range list {
		if !slices.Contains(allowed, s) {
			c.wrong(fmt.Sprintf("%s[%d]", path, i), "is %q: use one of %s", s, strings.Join(allowed, ", "))
		}
		if slices.Index(list, s) < i {
			c.wrong(fmt.Sprintf("%s[%d]", path, i), "repeats %q: remove it", s)
		}
	}
}

// match checks the criteria. A profile without a criterion would match every board.
func (c *checker) match(m fleet.BoardMatch) {
	if len(m.Compatible) == 0 && len(m.Arch) == 0 && m.MemoryMiB == nil {
		c.wrong("spec.match", "is empty and would match every board: name compatible, arch or memoryMiB")
	}
	c.size("spec.match.compatible", len(m.Compatible))
	for i, s := range m.Compatible {
		path := fmt.Sprintf("spec.match.compatible[%d]", i)
		c.text(path, s)
		if strings.TrimSpace(s) != s || s == "" {
			c.wrong(path, "is %q: write it as /proc/device-tree/compatible has it, such as raspberrypi,4-model-b", s)
		}
	}
	c.oneOf("spec.match.arch", m.Arch, arches)
	if b := m.MemoryMiB; b != nil {
		switch {
		case b.Min < 0 || b.Max < 0:
			c.wrong("spec.match.memoryMiB", "min %d, max %d: write amounts of MiB of 0 or more", b.Min, b.Max)
		case b.Min == 0 && b.Max == 0:
			c.wrong("spec.match.memoryMiB", "has no bound: give min or max, or omit it")
		case b.Max != 0 && b.Min > b.Max:
			c.wrong("spec.match.memoryMiB", "min %d is above max %d: no board can match", b.Min, b.Max)
		}
	}
}

func (c *checker) resources(r fleet.BoardResources) {
	for _, set := range []struct {
		path   string
		values map[string]string
		parse  func(k, v string) error
	}{
		{"spec.resources.systemReserved", r.SystemReserved, reserved},
		{"spec.resources.agentReserved", r.AgentReserved, reserved},
		{"spec.resources.evictionHard", r.EvictionHard, threshold},
	} {
		for _, k := range slices.Sorted(maps.Keys(set.values)) {
			if err := set.parse(k, set.values[k]); err != nil {
				c.wrong(set.path+"."+k, "%v", err)
			}
		}
	}
}

// maxPodGrace is the longest grace period that a profile can allow, in seconds.
const maxPodGrace = 3600

func (c *checker) soft(r fleet.BoardResources) {
	for _, k := range slices.Sorted(maps.Keys(r.EvictionSoft)) {
		at := "spec.resources.evictionSoft." + k
		soft, err := fleet.ParseSoft(k, r.EvictionSoft[k])
		if err != nil {
			c.wrong(at, "%v", err)
			continue
		}
		if hard, err := fleet.ParseThreshold(k, r.EvictionHard[k]); err == nil && !soft.Softer(hard) {
			c.wrong(at, "value: %s is not crossed before the %s of evictionHard: a soft threshold must be crossed first",
				r.EvictionSoft[k].Value, r.EvictionHard[k])
		}
	}
	if n := r.EvictionMaxPodGracePeriod; n < 0 || n > maxPodGrace {
		c.wrong("spec.resources.evictionMaxPodGracePeriod", "is %d: write seconds from 0 to %d", n, maxPodGrace)
	}
}

func reserved(k, v string) error { _, err := fleet.ParseReserved(k, v); return err }

func threshold(k, v string) error { _, err := fleet.ParseThreshold(k, v); return err }

// maxSharing is the highest number of containers that can share a device.
const maxSharing = 1000

func (c *checker) sharing(sharing map[string]int64) {
	c.size("spec.resources.sharing", len(sharing))
	for _, k := range slices.Sorted(maps.Keys(sharing)) {
		at := "spec.resources.sharing." + k
		if msgs := validation.IsQualifiedName(string(fleet.ResourceName(k))); len(msgs) > 0 {
			c.wrong(at, "cannot be a resource: write the part after %s/, such as i2c-1: %s", fleet.Group,
				strings.Join(msgs, "; "))
		}
		if n := sharing[k]; n < 1 || n > maxSharing {
			c.wrong(at, "is %d: write how many containers may share one device, 1 to %d", n, maxSharing)
		}
	}
}

// measured matches the names that devices have without a profile.
var measured = regexp.MustCompile(`^(gpiochip|serial|video|codec|render|i2c-\d+|spi\d+|v?x?can\d*|usb-.*)$`)

func (c *checker) peripherals(list []fleet.Peripheral) {
	c.size("spec.peripherals", len(list))
	seen := map[string]bool{}
	for i, p := range list {
		at := fmt.Sprintf("spec.peripherals[%d]", i)
		if msgs := validation.IsDNS1123Label(p.Name); len(msgs) > 0 {
			c.wrong(at+".name", "is %q: %s", p.Name, strings.Join(msgs, "; "))
		} else if measured.MatchString(p.Name) {
			c.wrong(at+".name",
				"is %q, a name that devices have already: use a name for the purpose, such as lorawan-gateway", p.Name)
		}
		if seen[p.Name] {
			c.wrong(at+".name", "repeats %q: remove it", p.Name)
		}
		seen[p.Name] = true
		c.peripheral(at, p)
	}
}

var (
	family   = regexp.MustCompile(`^[0-9a-f]{2}$`)
	lineName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/+ -]{0,31}$`)
)

// peripheral checks that a peripheral has the keys that identify its type, and no others.
func (c *checker) peripheral(at string, p fleet.Peripheral) {
	says := map[string]bool{"byID": p.ByID != "", "bus": p.Bus != nil, "address": p.Address != 0,
		"family": p.Family != "", "line": p.Line != "", "pull": p.Pull != ""}
	by, known := fleet.PeripheralBy[p.Type]
	if !known {
		c.wrong(at+".type", "is %q: use one of %s", p.Type, strings.Join(fleet.PeripheralTypes(), ", "))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(says)) {
		if says[key] && !slices.Contains(by, key) {
			c.wrong(at+"."+key, "does not belong to the type %s, which is identified by %s: remove it", p.Type,
				strings.Join(by, " and "))
		}
	}
	c.text(at+".byID", p.ByID)
	for _, key := range by {
		switch key {
		case "byID":
			if _, err := path.Match(p.ByID, ""); err != nil || p.ByID == "" {
				c.wrong(at+".byID",
					"is %q: write the id that flotilla-device probe prints, with the wildcards * and ?", p.ByID)
			}
		case "bus":
			if p.Bus == nil || *p.Bus < 0 || *p.Bus > 255 {
				c.wrong(at+".bus", "is missing or not the number of a bus: write it, such as 1 for i2c-1")
			}
		case "address":
			if p.Address < 0x08 || p.Address > 0x77 {
				c.wrong(at+".address", "is %#x: write the 7-bit address of the chip, 0x08 to 0x77", p.Address)
			}
		case "family":
			if !family.MatchString(p.Family) {
				c.wrong(at+".family", "is %q: write the two hex digits with which the ids of the chip begin, such as \"28\"",
					p.Family)
			}
		case "line":
			if !lineName.MatchString(p.Line) {
				c.wrong(at+".line", "is %q: write the line's name as gpioinfo prints it, such as GPIO17", p.Line)
			}
		case "pull":
			if p.Pull != "" && !slices.Contains(fleet.Pulls, p.Pull) {
				c.wrong(at+".pull", "is %q: use one of %s, or omit it", p.Pull, strings.Join(fleet.Pulls, ", "))
			}
		}
	}
}

func (c *checker) labels(labels map[string]string) {
	c.size("spec.labels", len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		path := "spec.labels." + k
		if strings.Contains(k, "/") {
			c.wrong(path, "has a slash: write only the part after %s", fleet.LabelBoardPrefix)
		} else if msgs := validation.IsQualifiedName(fleet.LabelBoardPrefix + k); len(msgs) > 0 {
			c.wrong(path, "cannot be a label: %s", strings.Join(msgs, "; "))
		}
		if msgs := validation.IsValidLabelValue(labels[k]); len(msgs) > 0 {
			c.wrong(path, "has the value %q: %s", labels[k], strings.Join(msgs, "; "))
		}
	}
}

// taints checks the taints. Taints with a kubernetes.io key say what the hub has observed, so a
// profile may not set them.
func (c *checker) taints(taints []corev1.Taint) {
	c.size("spec.taints", len(taints))
	seen := map[string]bool{}
	for i, t := range taints {
		path := fmt.Sprintf("spec.taints[%d]", i)
		if msgs := validation.IsQualifiedName(t.Key); len(msgs) > 0 {
			c.wrong(path+".key", "is %q: %s", t.Key, strings.Join(msgs, "; "))
		}
		if domain, _, ok := strings.Cut(t.Key, "/"); ok &&
			(domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")) {
			c.wrong(path+".key", "%s belongs to the hub: use a key of your own", t.Key)
		}
		if msgs := validation.IsValidLabelValue(t.Value); len(msgs) > 0 {
			c.wrong(path+".value", "is %q: %s", t.Value, strings.Join(msgs, "; "))
		}
		if !slices.Contains(effects, string(t.Effect)) {
			c.wrong(path+".effect", "is %q: use one of %s", t.Effect, strings.Join(effects, ", "))
		}
		id := t.Key + ":" + string(t.Effect)
		if seen[id] {
			c.wrong(path, "repeats %s: key and effect identify a taint", id)
		}
		seen[id] = true
	}
}
