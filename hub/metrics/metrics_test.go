package metrics

import (
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/web/manual/manualtest"
)

var updateManual = flag.Bool("update", false, "write the part of the manual that is generated")

// The manual lists every metric with its labels and help.
func TestTheManualHasTheMetrics(t *testing.T) {
	form := regexp.MustCompile(`^Desc\{fqName: "([^"]*)", help: "([^"]*)"(?:, unit: "[^"]*")?, constLabels: \{\}, variableLabels: \{([^}]*)\}\}$`)
	rows := func(all []fmt.Stringer) string {
		var rows []string
		for _, d := range all {
			m := form.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("the description %s cannot be parsed", d)
			}
			labels := ""
			if m[3] != "" {
				labels = "`" + strings.ReplaceAll(m[3], ",", "`, `") + "`"
			}
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |\n", m[1], labels, m[2]))
		}
		slices.Sort(rows)
		return "\n| Metric | Labels | What it is |\n|---|---|---|\n" + strings.Join(rows, "")
	}
	text := rows(stringers(allMetrics)) + "\nAt `" + NodesPath + "`, for each node:\n" +
		strings.ReplaceAll(rows(stringers(allOfNode)), " `node`, `site` |", "  |")
	manualtest.Block(t, "../../web/manual/monitoring.md", "metrics", text+"\n", *updateManual)
}

func stringers[T fmt.Stringer](all []T) (out []fmt.Stringer) {
	for _, s := range all {
		out = append(out, s)
	}
	return out
}

// A pod with a scheduling gate has no events and may wait for days, so the metric does not count
// it. An alert on the metric tells the operator to look for the reason in the pods' events.
func TestAGatedPodDoesNotWaitForANode(t *testing.T) {
	var changes []state.Change
	for name, change := range map[string]func(*corev1.Pod){
		"waits":  func(*corev1.Pod) {},
		"gated":  func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/queue"}} },
		"ended":  func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"placed": func(p *corev1.Pod) { p.Spec.NodeName = "pi-1" },
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		change(p)
		changes = append(changes, state.Put(p, ""))
	}
	s, _ := state.Apply(state.Empty("x", time.Now()), changes)
	got := map[*prometheus.Desc]float64{}
	hubCollector{}.sendWork(s, func(d *prometheus.Desc, _ prometheus.ValueType, v float64, _ ...string) { got[d] += v })
	if got[metricUnplaced] != 1 || got[metricPods] != 4 {
		t.Errorf("the metrics count %v of %v pods as waiting for a node, want 1 of 4", got[metricUnplaced], got[metricPods])
	}
}
