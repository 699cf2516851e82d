// Package firmwareconfigs has Flotilla's board profiles: how each kind of board is recognised, what
// is reserved for its system, and when it evicts pods. It parses profiles strictly and selects the
// profile of a board.
//
// It has files and pure functions, and never connects to a device. The hub calls it, stores the
// selected profile, serves the defaults read-only and lets administrators apply changed copies.
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

// Units returns the names of a device's systemd units: those of the agent and of the boot helper.
// The device's administrator enables them.
func Units() (names []string) {
	entries, err := units.ReadDir("systemd")
	if err != nil {
		return nil // cannot happen: the directory is embedded
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Unit returns the text of a unit. ok is false for an unknown name.
func Unit(name string) (text string, ok bool) {
	data, err := units.ReadFile(path.Join("systemd", name))
	return string(data), err == nil
}

//go:embed systemd/flotilla-hub.service
var hubUnit string

// HubUnit returns the text of the hub's systemd unit.
func HubUnit() string { return hubUnit }

// Defaults returns the built-in profiles, sorted by name. Each file is named like its profile.
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
			errs = append(errs, fmt.Errorf("%s contains the profile %q: rename one of them", name, p.Name))
		}
		profiles = append(profiles, p)
	}
	return profiles, errors.Join(errs...)
}
