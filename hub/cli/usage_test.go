package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// What is typed wrong is a mistake of usage (exit code 2), found before any directory is opened.
func TestWhatIsTypedWrongIsAMistakeOfUsage(t *testing.T) {
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
			t.Errorf("%s: %v", args, err)
		}
	}
}
