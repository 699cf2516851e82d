package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// A typing mistake exits with code 2 before any directory is opened.
func TestTypingMistakesExitWithCodeTwo(t *testing.T) {
	none := " --data-dir " + t.TempDir() + "/none"
	for _, args := range []string{
		"profile render a.yaml b.yaml",
		"kubeconfig --ttl 8761h" + none, "kubeconfig --ttl -1h" + none, "kubeconfig --role boss" + none,
		"monitoring prometheus x --ttl 8761h" + none, "mqtt-observer --name x --out x --ttl 8761h" + none,
		"audit verify a b", "token revoke", "user create", "ca rotate" + none,
	} {
		var out bytes.Buffer
		root := Program{Stdout: &out, Stderr: &out}.Command()
		root.SetArgs(strings.Fields(args))
		err := root.Execute()
		if !errors.As(err, new(ErrUsage)) || strings.Contains(err.Error(), "no hub has run here") {
			t.Errorf("%s: %v, want ErrUsage before the directory is opened", args, err)
		}
	}
}

// The error about an unknown flag names the command. Only flags of serve are called settings.
func TestAnUnknownFlagNamesTheCommand(t *testing.T) {
	for args, want := range map[string]string{
		"token create --sites oslo":                "unknown flag: --sites: see `flotilla-hub token create --help`",
		"token create --ttl soon":                  "see `flotilla-hub token create --help`",
		"token create --site oslo --ttl 1d":        `--ttl "1d": write a number with its unit, h, m or s, such as 24h for a day`,
		"kubeconfig --ttl 30d":                     `--ttl "30d": write a number with its unit, h, m or s, such as 24h for a day`,
		"token create --uses many":                 `--uses "many": write a whole number`,
		"token create":                             "--site is missing; write the site of the devices, such as --site oslo",
		"token create --node pi-1":                 "--site is missing",
		"doctor --https-listen :443":               "unknown flag: --https-listen: see `flotilla-hub doctor --help`",
		"monitoring --data-dir x":                  "unknown flag: --data-dir: see `flotilla-hub monitoring --help`",
		"user list -q":                             "see `flotilla-hub user list --help`",
		"serve --leese-interval 3s":                "did you mean lease-interval?",
		"doctor -- --leese-interval 3s":            "did you mean lease-interval?",
		"support-bundle x.tar.gz -- --https-liste": "did you mean https-listen?",
	} {
		var out bytes.Buffer
		root := Program{Stdout: &out, Stderr: &out}.Command()
		root.SetArgs(strings.Fields(args))
		if err := root.Execute(); !errors.As(err, new(ErrUsage)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want ErrUsage with %q", args, err, want)
		}
	}
}
