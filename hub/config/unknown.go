package config

import (
	"errors"
	"fmt"
	"strings"

	"flotilla.dev/shared/commands"
)

// unknown is the answer to a name that is no setting: why, or which one was meant.
func unknown(name string) error {
	if why := absent[name]; why != "" {
		return fmt.Errorf("%s does nothing here: %s", name, why)
	}
	if near := closest(name); near != "" {
		return fmt.Errorf("%s is no setting; did you mean %s?", name, near)
	}
	return fmt.Errorf("%s is no setting; `flotilla-hub serve --help` lists them", name)
}

// FlagError makes pflag's complaint about an unknown flag say what was meant;
// other errors pass as they are. It is made for cobra's SetFlagErrorFunc.
func FlagError(err error) error {
	if err == nil {
		return nil
	}
	_, name, ok := strings.Cut(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	return errors.New("--" + unknown(name).Error())
}

// closest is the setting whose name differs from one by a few letters; "": none does.
func closest(name string) string {
	names := []string{podEvictionTimeout, "config"}
	for _, s := range settings {
		names = append(names, s.name)
	}
	return commands.Closest(name, names)
}
