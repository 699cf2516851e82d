package admin

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/hub/admin/admintest"
)

// In a browser a pod without a node says why, and one of the proposed steps helps.
func TestAPodThatFindsNoPlaceInABrowser(t *testing.T) {
	t.Parallel()
	b := newKitOf(t, admintest.StuckFleet()...)
	admintest.StuckWorkload(t, b.fleet, "vision", func(p *corev1.PodSpec) { p.NodeSelector = map[string]string{"gpu": "true"} })
	admintest.StuckWorkload(t, b.fleet, "ledger", func(p *corev1.PodSpec) {
		p.Containers[0].Resources.Requests = corev1.ResourceList{"memory": resource.MustParse("64Gi"), "cpu": resource.MustParse("1")}
	})
	for _, name := range []string{"ledger", "vision"} {
		b.open("/pods/default/" + name + "-6f9c-x2x4z")
		b.says("None of the 24 nodes can take it.", "What would help", "Nodes that come nearest", "and 4 more")
		b.look("unplaced-" + name)
	}
	b.width(1280, false)
	b.says("Needs gpu=true: 22 of 24 nodes do not have it.", "kubectl uncordon brg-0003")
	if n := b.string(`String(document.querySelectorAll(".candidates tbody tr").length)`); n != "20" {
		t.Errorf("%s nodes are shown, want 20", n)
	}
	if href := b.string(`[...document.querySelectorAll(".fixes a.button")].find((e) => e.textContent.startsWith("Label")).getAttribute("href")`); !strings.HasPrefix(href, "/actions/nodes/label?") {
		t.Errorf("the label leads to %s", href)
	} else {
		b.open(href)
		if !b.eval(`document.querySelector("input[name=key]").value === "gpu" && document.querySelector("input[name=value]").value === "true"`) {
			t.Error("the form of the label is not filled in")
		}
	}
	b.open("/pods/default/vision-6f9c-x2x4z")
	b.press(`.fixes button[formaction="/actions/nodes/uncordon"]`)
	if b.fleet.Snapshot().Node("brg-0003").Spec.Unschedulable {
		t.Error("the node is still cordoned")
	}
	b.open("/pods/default/vision-6f9c-x2x4z")
	b.says("It is about to be placed")
}

func TestWhatTheSchedulerSaysIsADetail(t *testing.T) {
	const raw = "0/9 nodes are available: 9 of us."
	_, body := acting(t, admintest.Stuck(t)).ask(t, "viewer", "GET", "/", nil)
	if before, _, _ := strings.Cut(body, raw); !strings.HasSuffix(before, "<summary>Details</summary><p>") {
		t.Errorf("the scheduler's text is no detail: %.900s", before[max(0, len(before)-300):])
	}
}
