package serve

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"flotilla.dev/web/manual/manualtest"
)

var updateManual = flag.Bool("update", false, "write the part of the manual that is generated")

// The manual lists every metric with its labels, in its own words.
func TestTheManualHasTheMetrics(t *testing.T) {
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "([^"]*)"(?:, unit: "[^"]*")?, constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)
	var rows []string
	for path, all := range map[string][]fmt.Stringer{"/metrics": stringers(allMetrics), nodeMetricsPath: stringers(allOfNode)} {
		for _, d := range all {
			m := form.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("the library says %s of itself", d)
			}
			labels := ""
			if m[3] != "" {
				labels = "`" + strings.ReplaceAll(m[3], ",", "`, `") + "`"
			}
			rows = append(rows, fmt.Sprintf("| `%s` | `%s` | %s | %s |", m[1], path, labels, m[2]))
		}
	}
	slices.Sort(rows)
	manualtest.Block(t, "../../web/manual/monitoring.md", "metrics", "\n| Metric | Where | Labels | What it is |\n|---|---|---|---|\n"+strings.Join(rows, "\n")+"\n\n", *updateManual)
}

func stringers[T fmt.Stringer](all []T) (out []fmt.Stringer) {
	for _, s := range all {
		out = append(out, s)
	}
	return out
}
