// Package firmwareconfigs holds the board profiles that come with Flotilla: how
// each kind of board is recognised, what is kept back on it for the system, and
// when it sends pods away. It reads profiles strictly and decides which one a
// board gets.
//
// It holds files and pure functions. It never talks to a device, and it does not
// remember which profile was chosen: the hub does, serves the defaults read-only
// and lets administrators apply changed copies. What is known of a board comes
// from package hardware on the device.
package firmwareconfigs

import (
	"embed"
	"errors"
	"fmt"
	"path"

	"flotilla.dev/shared/fleet"
)

//go:embed profiles/*.yaml
var files embed.FS

//go:embed systemd/flotilla-device.service systemd/flotilla-boot-*
var units embed.FS

// Units are the names of a device's units for systemd: the agent's, and those of its boot
// helper, which an administrator of the device enables.
func Units() (names []string) {
	entries, err := units.ReadDir("systemd")
	if err != nil {
		return nil // it is in the program
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Unit is the text of one of them; ok is false if it is none.
func Unit(name string) (text string, ok bool) {
	data, err := units.ReadFile(path.Join("systemd", name))
	return string(data), err == nil
}

//go:embed systemd/flotilla-hub.service
var hubUnit string

// HubUnit is the text of the hub's unit for systemd.
func HubUnit() string { return hubUnit }

// Defaults returns the profiles that come with this program, sorted by name. A
// file must be named like its profile, so that one can be found from the other.
func Defaults() ([]*fleet.BoardProfile, error) {
	entries, err := files.ReadDir("profiles")
	if err != nil {
		return nil, fmt.Errorf("list the default profiles: %w", err)
	}
	var profiles []*fleet.BoardProfile
	var errs []error
	for _, e := range entries {
		name := path.Join("profiles", e.Name())
		data, err := files.ReadFile(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", name, err))
			continue
		}
		p, err := Parse(data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			continue
		}
		if p.Name+".yaml" != e.Name() {
			errs = append(errs, fmt.Errorf("%s holds the profile %q: rename one of them", name, p.Name))
		}
		profiles = append(profiles, p)
	}
	return profiles, errors.Join(errs...)
}
