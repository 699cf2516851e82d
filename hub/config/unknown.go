package config

import (
	"errors"
	"fmt"
	"strings"
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
	best, least := "", max(2, len(name)/5)+1
	names := []string{podEvictionTimeout, "config"}
	for _, s := range settings {
		names = append(names, s.name)
	}
	for _, n := range names {
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance is Levenshtein's: how many letters must be put in, taken out or changed.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := diagonal
			if a[i-1] != b[j-1] {
				change++
			}
			diagonal = row[j]
			row[j] = min(row[j]+1, row[j-1]+1, change)
		}
	}
	return row[len(b)]
}
