package admin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/ask"
)

func TestTheLastLinesOfACrashAreAskedForOnce(t *testing.T) {
	m := admintest.New(append(admintest.Sample(), admintest.Crashed("oom", "pi-1", nil), admintest.Crashed("back", "pi-1", func(c *corev1.ContainerStatus) {
		c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: admintest.Ago(time.Minute)}}
	}))...)
	c := configOf(m)
	dev, _ := equip(&c)
	srv := start(t, c)
	var lines []string
	for i := range 30 {
		lines = append(lines, fmt.Sprintf("line %d \x1b[31m<b>%s</b>", i, strings.Repeat("x", 600)))
	}
	dev.log(lines...)
	end := func(pod string) string {
		st := m.Snapshot().Pod("default", pod).Status.ContainerStatuses[0]
		return "/pods/default/" + pod + "/logs/end?" + url.Values{"container": {"web"}, "of": {finding.CrashMark(st.LastTerminationState.Terminated)}}.Encode()
	}
	look := func(role, path string) (int, []string, string) {
		resp, body := srv.ask(t, role, "GET", path, nil)
		var a struct {
			Lines   []string
			Trouble string
		}
		if resp.StatusCode == http.StatusOK {
			if err := json.Unmarshal([]byte(body), &a); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
		}
		return resp.StatusCode, a.Lines, a.Trouble
	}
	dev.fail(ask.ErrOffline)
	if code, _, trouble := look("viewer", end("oom")); code != http.StatusOK || !strings.Contains(trouble, "is not connected to the hub") {
		t.Errorf("without its device: %d %q", code, trouble)
	}
	dev.fail(nil)
	for range 3 {
		code, got, trouble := look("viewer", end("oom"))
		if code != http.StatusOK || trouble != "" || len(got) != 10 || !strings.HasPrefix(got[9], "line 29 <b>xxx") || len([]rune(got[9])) != 400+1 {
			t.Fatalf("%d %q %q", code, got, trouble)
		}
	}
	if n := len(dev.asked); n != 2 { // the first request was not answered
		t.Errorf("the device was asked %d times, want 2", n)
	}
	if o := dev.asked[1]; o.Previous || *o.TailLines != 10 {
		t.Errorf("it was asked for %+v", o)
	}
	look("viewer", end("back"))
	if o := dev.asked[2]; !o.Previous {
		t.Error("for a running container the log of the previous instance is not requested")
	}
	if code, _, _ := look("viewer", strings.Replace(end("oom"), "of=", "of=7", 1)); code != http.StatusGone {
		t.Errorf("for another crash: %d, want 410", code)
	}
	if code, _, _ := look("viewer", strings.Replace(end("oom"), "web", "nobody", 1)); code != http.StatusNotFound {
		t.Errorf("for a missing container: %d, want 404", code)
	}
}

// Lines of a later instance do not belong to the crash.
func TestTheLastLinesEndWithTheCrash(t *testing.T) {
	p := admintest.Crashed("oom", "pi-1", func(c *corev1.ContainerStatus) {
		c.LastTerminationState.Terminated.FinishedAt = metav1.NewTime(stampOf(4).Add(-3 * time.Second))
	})
	m := admintest.New(append(admintest.Sample(), p)...)
	c := configOf(m)
	dev, _ := equip(&c)
	dev.log("a", "b", "c", "of the next one", "too")
	_, body := start(t, c).ask(t, "viewer", "GET", "/pods/default/oom/logs/end?container=web&of="+finding.CrashMark(p.Status.ContainerStatuses[0].LastTerminationState.Terminated), nil)
	if strings.Contains(body, "next") || !strings.Contains(body, `"c"`) {
		t.Errorf("%s", body)
	}
}

// In a browser a crash's last lines load by themselves, stay during updates, and change with the
// next crash.
func TestACrashInABrowser(t *testing.T) {
	t.Parallel()
	ended := metav1.NewTime(time.Now().Truncate(time.Second))
	justNow := func(c *corev1.ContainerStatus) { // independent of how long earlier tests took
		end := &c.LastTerminationState.Terminated.FinishedAt
		begin := &c.LastTerminationState.Terminated.StartedAt
		took := end.Sub(begin.Time)
		*end = ended
		*begin = metav1.NewTime(end.Add(-took))
	}
	k := newKitOf(t, append(admintest.Sample(), admintest.Crashed("oom-5c6b-x2x4z", "pi-1", func(c *corev1.ContainerStatus) {
		justNow(c)
		c.LastTerminationState.Terminated.Message = "out of memory: cannot allocate 64 MiB"
	}), admintest.Crashed("silent-5c6b-abcde", "pi-2", func(c *corev1.ContainerStatus) {
		justNow(c)
		c.LastTerminationState.Terminated.Message = "panic: no camera\n<script>alert(1)</script>"
	}))...)
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprintf("2026-11-23T01:24:%02dZ <b>frame</b> %d decoded", i, i))
	}
	k.device.log(lines...)
	k.open("/pods/default/oom-5c6b-x2x4z")
	k.says("web was killed because it used more memory than its limit of 256Mi", "after 12s", "started again 6 times", "at the latest", "Raise the limit", "out of memory: cannot allocate 64 MiB")
	k.awaits("<b>frame</b> 19 decoded")
	if k.eval(`document.querySelector("[data-fill]").textContent.includes(" 9 decoded")`) {
		t.Error("more than ten lines are shown")
	}
	k.look("crash")
	k.width(1280, false)
	k.open("/pods/default/oom-5c6b-x2x4z")
	k.awaits("<b>frame</b> 19 decoded")
	asks := func() (n int) {
		k.device.mu.Lock()
		defer k.device.mu.Unlock()
		return len(k.device.asked)
	}
	if n := asks(); n != 1 {
		t.Errorf("the device was asked %d times, want once", n)
	}
	k.fleet.Put(t, admintest.Crashed("oom-5c6b-x2x4z", "pi-1", func(c *corev1.ContainerStatus) { justNow(c); c.RestartCount = 7 }))
	k.awaits("started again 7 times")
	if !k.eval(`document.querySelector("[data-fill]").textContent.includes("19 decoded")`) {
		t.Error("the lines disappeared when the page was updated")
	}
	k.device.log("the next one's last line")
	k.fleet.Put(t, admintest.Crashed("oom-5c6b-x2x4z", "pi-1", func(c *corev1.ContainerStatus) {
		c.RestartCount, c.LastTerminationState.Terminated.FinishedAt = 8, metav1.NewTime(ended.Add(10*time.Second))
	}))
	k.awaits("the next one's last line")
	if n := asks(); n != 2 {
		t.Errorf("the device was asked %d times, want twice", n)
	}
	k.open("/pods/default/silent-5c6b-abcde")
	k.says("Its device does not answer", "panic: no camera <script>alert(1)</script>")
	k.look("crash-silent")
	k.script(false)
	k.open("/pods/default/oom-5c6b-x2x4z")
	k.says("Its whole log")
	if text := k.text(); strings.Contains(text, "last lines of its log") {
		t.Error("without scripts the page announces lines that never come")
	}
	k.script(true)
}
