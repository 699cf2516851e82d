package admin

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/state"
)

// shifts adds up layout shifts without input, as browsers measure them; from 0.1 on they disturb
// users.
const shifts = `window.shifted = 0, window.jumps = [], new PerformanceObserver((list) => {
	for (const each of list.getEntries()) {
		if (each.hadRecentInput) continue;
		window.shifted += each.value;
		window.jumps.push(each.value.toFixed(3) + ": " + each.sources.slice(0, 3).map((s) => (s.node?.outerHTML ?? s.node?.textContent ?? "").slice(0, 70)).join(" | "));
	}
}).observe({type: "layout-shift"}), true`

// frames waits for two frames: then all shifts are known.
const frames = `new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn("")))).then((x) => x + window.shifted)`

// Nothing moves on open pages while counts, labels, times and the connection change.
func TestUpdatesMoveNothing(t *testing.T) {
	t.Parallel()
	k := newKit(t, toolObjects()...)
	k.width(360, false)
	restart := func() {
		p := k.fleet.Snapshot().Pod("default", "two-7d9f").DeepCopy()
		p.Status.ContainerStatuses[0].RestartCount = 12345
		k.fleet.Put(t, p)
	}
	label := func() {
		n := k.fleet.Snapshot().Node("pi-1").DeepCopy()
		n.Labels["colour"] = "darkgreen"
		k.fleet.Put(t, n)
	}
	for _, v := range []struct {
		path   string
		change func()
		shows  string
	}{
		{"/pods", restart, "12345"},
		{"/pods/default/two-7d9f", func() { k.fleet.Put(t, admintest.Pod("two-7d9f", "pi-1", nil)); restart() }, "12345"},
		{"/nodes/pi-1", label, "darkgreen"},
		{"/workloads/deployments/default/kiosk", func() {
			d := k.fleet.Snapshot().Get(state.Key{Kind: state.Deployments, Namespace: "default", Name: "kiosk"}).DeepCopyObject().(*appsv1.Deployment)
			d.Status.UpdatedReplicas = 12345
			k.fleet.Put(t, d)
		}, "12345"},
		{"/actions", nil, ""},
	} {
		k.open(v.path)
		k.unfold()
		k.eval(shifts)
		if v.change != nil {
			v.change()
			k.awaits(v.shows)
		}
		const sentence = "Connection to the hub lost. This is what was known at 12:05:41; trying again…"
		for _, text := range []string{sentence, ""} {
			k.eval(`document.body.classList.toggle("is-lost", ` + quote(text) + ` !== ""), document.getElementById("lost").textContent = ` + quote(text) + `, true`)
			k.string(frames)
		}
		if !k.eval("window.shifted < 0.1") {
			t.Errorf("%s moves: %s", v.path, k.string(`window.jumps.join("; ")`))
		}
	}
	k.eval(`document.getElementById("main").style.marginTop = "300px", true`)
	k.string(frames)
	if k.eval("window.shifted < 0.1") {
		t.Error("a shift by 300 pixels is not measured: the test cannot fail")
	}
}

// The script shows the check box for all rows where the page has kept room for it.
func TestAListDoesNotMoveWhileItLoads(t *testing.T) {
	t.Parallel()
	k := newKit(t)
	k.width(360, false)
	for _, path := range []string{"/nodes", "/workloads", "/pods", "/sites", "/incidents"} {
		k.open(path)
		k.await(`document.documentElement.matches(".is-live, :has(.is-live)")`)
		k.eval(strings.Replace(shifts, `"layout-shift"`, `"layout-shift", buffered: true`, 1))
		k.string(frames)
		if !k.eval("window.shifted <= 0.01") {
			t.Errorf("%s moves: %s", path, k.string(`window.jumps.join("; ")`))
		}
	}
}
