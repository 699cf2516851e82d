package config

import (
	"fmt"
	"strings"

	"flotilla.dev/shared/commands"
)

// unknown is the error about a name that is not a setting. A flag's name is printed with dashes.
func unknown(dashes, name string) error {
	if why := absent[name]; why != "" {
		return fmt.Errorf("%s%s does nothing here: %s", dashes, name, why)
	}
	if near := closest(name); near != "" {
		return fmt.Errorf("unknown setting %s%s; did you mean %s?", dashes, name, near)
	}
	return fmt.Errorf("unknown setting %s%s; `flotilla-hub serve --help` lists them", dashes, name)
}

// FlagError adds the closest setting to pflag's error about an unknown flag. It is for cobra's
// SetFlagErrorFunc.
func FlagError(err error) error {
	if err == nil {
		return nil
	}
	_, name, ok := strings.Cut(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	return unknown("--", name)
}

// closest returns the setting whose name differs from name by a few letters, or "".
func closest(name string) string {
	names := []string{podEvictionTimeout, "config"}
	for _, s := range settings {
		names = append(names, s.name)
	}
	return commands.Closest(name, names)
}
