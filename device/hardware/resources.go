package hardware

import (
	"path"
	"slices"
	"sort"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/fleet"
)

// A Resource is an extended resource of the node and its devices.
type Resource struct {
	Name    corev1.ResourceName
	Devices []Device
	Sharing int64 // number of containers that may share one device
}

// Amount returns how many units the node offers.
func (r Resource) Amount() int64 { return int64(len(r.Devices)) * r.Sharing }

// Resources returns the resources that a node offers to pods, by name: its devices, with names and
// sharing from the board profile p (may be nil), and the connected peripherals. A missing
// peripheral of the profile has no devices. Internal devices are offered only by a name in the
// profile.
func Resources(devices []Device, p *fleet.BoardProfile, connected ...Device) []Resource {
	var named []fleet.Peripheral
	var sharing map[string]int64
	if p != nil {
		named, sharing = p.Spec.Peripherals, p.Spec.Resources.Sharing
	}
	var list []Resource
	add := func(name string, d ...Device) {
		i := slices.IndexFunc(list, func(r Resource) bool { return r.Name == fleet.ResourceName(name) })
		if i < 0 {
			i = len(list)
			list = append(list, Resource{Name: fleet.ResourceName(name), Sharing: max(sharing[name], 1)})
		}
		list[i].Devices = append(list[i].Devices, d...)
	}
	for _, p := range named {
		add(p.Name)
	}
	for _, d := range devices {
		if i := slices.IndexFunc(named, func(p fleet.Peripheral) bool { return isOne(d, p) }); i >= 0 {
			d.Resource = named[i].Name
		} else if d.Internal {
			continue
		}
		add(d.Resource, d)
	}
	for _, d := range connected {
		if slices.ContainsFunc(named, func(p fleet.Peripheral) bool { return p.Name == d.Resource }) {
			add(d.Resource, d)
		}
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// isOne reports whether a peripheral's id names the device. For a serial port of the board the
// kernel's name works too, since /dev/ttyAMA0 is the same port on all boards of a kind.
func isOne(d Device, p fleet.Peripheral) bool {
	ok, err := path.Match(p.ByID, d.ID)
	if !ok && d.Resource == "serial" {
		ok, err = path.Match(p.ByID, d.was())
	}
	return err == nil && ok && d.Resource == p.Type && p.ByID != ""
}
