package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Like the kubelet, the agent refuses to start with --fail-swap-on while swap is on. Swap on zram
// counts too.
func TestTheAgentRefusesSwap(t *testing.T) {
	for _, tt := range []struct{ name, swaps, want string }{
		{"a kernel without swap", "-", ""},
		{"none", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n", ""},
		{"a file and zram", "Filename Type Size Used Priority\n/var/swap file 102396 0 -2\n/dev/zram0 partition 204800 0 100\n", "/var/swap, /dev/zram0"},
	} {
		root := t.TempDir()
		if tt.swaps != "-" {
			if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, "proc/swaps"), []byte(tt.swaps), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := refuseSwap(root); (err == nil) != (tt.want == "") ||
			err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: the error is %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestInvalidLabelsAndTaintsAreRefusedOnTheCommandLine(t *testing.T) {
	for _, tt := range []struct {
		name  string
		label bool
		in    []string
		want  string // the parsed value, or a part of the error after "refused: "
	}{
		{"two labels", true, []string{"floor=2", "wing=b"}, "map[floor:2 wing:b]"},
		{"two labels separated by a comma", true, []string{"a=b,c=d"}, "map[a:b c:d]"},
		{"an empty value", true, []string{"a="}, "map[a:]"},
		{"a user's prefix", true, []string{"example.com/floor=2"}, "map[example.com/floor:2]"},
		{"no value", true, []string{"a"}, "refused: must be key=value"},
		{"an empty label after a comma", true, []string{"a=b,"}, "refused: must be key=value"},
		{"a space in the key", true, []string{"a b=c"}, "refused: name part must consist"},
		{"a value that is too long", true, []string{"a=" + strings.Repeat("x", 64)}, "refused: 63"},
		{"a value with a slash", true, []string{"a=b/c"}, "refused: a valid label must"},
		{"a key with two values", true, []string{"a=b", "a=c"}, "refused: give it once"},
		{"Kubernetes' own", true, []string{"node-restriction.kubernetes.io/a=b"}, "refused: reserved for Kubernetes"},
		{"a label that the hub sets", true, []string{"kubernetes.io/hostname=x"}, "refused: set by the hub"},
		{"the site", true, []string{"topology.kubernetes.io/zone=oslo"}, "refused: --site"},
		{"a taint", false, []string{"camera=true:NoSchedule"}, "[{camera true NoSchedule}]"},
		{"two taints separated by a comma, one without a value", false, []string{"a:NoExecute,b=c:PreferNoSchedule"}, "[{a  NoExecute} {b c PreferNoSchedule}]"},
		{"a key with two effects", false, []string{"a:NoExecute", "a:NoSchedule"}, "[{a  NoExecute} {a  NoSchedule}]"},
		{"no effect", false, []string{"a=b"}, "refused: must be key=value:Effect"},
		{"an unknown effect", false, []string{"a=b:NoRun"}, `refused: has the effect "NoRun"`},
		{"an invalid key", false, []string{"-a=b:NoSchedule"}, "refused: name part must consist"},
		{"an invalid value", false, []string{"a=b c:NoSchedule"}, "refused: a valid label must"},
		{"a second colon", false, []string{"a=b:c:NoSchedule"}, "refused: has the effect"},
		{"a repeated taint", false, []string{"a=b:NoSchedule", "a=c:NoSchedule"}, "refused: twice"},
		{"a taint of the hub", false, []string{"node.kubernetes.io/unreachable:NoExecute"}, "refused: reserved for Kubernetes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if tt.label {
				labels, err := parseLabels(tt.in)
				if got = fmt.Sprint(labels); err != nil {
					got = "refused: " + err.Error()
				}
			} else {
				taints, err := parseTaints(tt.in)
				var all []string
				for _, t := range taints {
					all = append(all, fmt.Sprintf("{%s %s %s}", t.Key, t.Value, t.Effect))
				}
				if got = fmt.Sprint(all); err != nil {
					got = "refused: " + err.Error()
				}
			}
			if words, refused := strings.CutPrefix(tt.want, "refused: "); refused != strings.HasPrefix(got,
				"refused: ") ||
				!strings.Contains(got, words) {
				t.Errorf("%v: %s, want %s", tt.in, got, tt.want)
			}
		})
	}
}
