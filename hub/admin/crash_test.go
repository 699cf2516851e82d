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
	"flotilla.dev/hub/ask"
)

func TestAnExitCodeInWords(t *testing.T) {
	for _, c := range []struct {
		code   int32
		reason string
		limit  string
		how    string
	}{
		{0, "Completed", "", "ended by itself with exit code 0"},
		{1, "Error", "", "ended with exit code 1"},
		{2, "Error", "", "exit code 2: a Go program's panic"},
		{126, "Error", "", "exit code 126: its command is there, and cannot be run"},
		{127, "Error", "", "exit code 127: its command was not found"},
		{128, "StartError", "", "could not be started (exit code 128)"},
		{132, "Error", "", "SIGILL (exit code 132): its processor does not know an instruction"},
		{134, "Error", "", "SIGABRT (exit code 134)"},
		{137, "OOMKilled", "256Mi", "was killed because it used more memory than its limit of 256Mi (exit code 137, OOMKilled)"},
		{137, "OOMKilled", "", "it has no memory limit"},
		{137, "Error", "256Mi", "SIGKILL (exit code 137): it was killed"},
		{137, "ContainerStatusUnknown", "", "nobody knows how"},
		{139, "Error", "", "SIGSEGV (exit code 139): it touched memory that is not its own"},
		{143, "Error", "", "SIGTERM (exit code 143): it was told to stop, and did"},
		{129 + 35, "Error", "", "ended by signal 36 (exit code 164)"},
		{255, "Error", "", "exit code 255, often an error that it had no number for"},
		{42, "Error", "", "ended with exit code 42"},
	} {
		if e := exitOf(&corev1.ContainerStateTerminated{ExitCode: c.code, Reason: c.reason}, c.limit); !strings.Contains(e.How, c.how) {
			t.Errorf("%d %s: %q, want %q", c.code, c.reason, e.How, c.how)
		}
	}
}

func TestABackOffIsKubernetes(t *testing.T) {
	for restarts, want := range map[int32]time.Duration{0: 0, 1: 10 * time.Second, 2: 20 * time.Second, 5: 160 * time.Second, 6: 5 * time.Minute, 1 << 30: 5 * time.Minute} {
		if got := backOff(restarts); got != want {
			t.Errorf("after %d: %s, want %s", restarts, got, want)
		}
	}
}

func TestWhatACrashIsSaidToBe(t *testing.T) {
	began := func(ago time.Duration) func(*corev1.ContainerStatus) {
		return func(c *corev1.ContainerStatus) {
			c.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: admintest.Ago(ago)}}
		}
	}
	for _, c := range []struct {
		name  string
		pod   *corev1.Pod
		want  string // container, lasted, restarts, whether it is started again; "": none
		logs  string
		asked bool
	}{
		{"in its back-off", admintest.Crashed("p", "pi-1", nil), "web 12s started again 6 times again", "/pods/default/p/logs?container=web", true},
		{"its back-off is over", admintest.Crashed("p", "pi-1", func(c *corev1.ContainerStatus) { c.RestartCount = 2 }), "web 12s started again 2 times", "/pods/default/p/logs?container=web", true},
		{"it runs again", admintest.Crashed("p", "pi-1", began(time.Minute)), "web 12s started again 6 times", "/pods/default/p/logs?container=web&previous=1", true},
		{"it has run again for long", admintest.Crashed("p", "pi-1", began(20*time.Minute)), "", "", false},
		{"it ended well, and waits to be started again", admintest.Crashed("p", "pi-1", func(c *corev1.ContainerStatus) { c.LastTerminationState.Terminated.ExitCode = 0 }), "web 12s started again 6 times again", "/pods/default/p/logs?container=web", true},
		{"its device is silent", admintest.Crashed("p", "pi-2", nil), "web 12s started again 6 times", "/pods/default/p/logs?container=web", false},
		{"it has not crashed", admintest.Pod("p", "pi-1", nil), "", "", false},
	} {
		a := admintest.Ask(admintest.New(append(admintest.Sample(), c.pod)...).Snapshot(), admintest.Now, nil)
		a.May = func(string, string) bool { return true }
		got, logs, asked := "", "", false
		for _, d := range crashesOf(a, c.pod) {
			got = strings.Join([]string{d.Container, d.Lasted, d.Restarts}, " ")
			if d.Again != nil {
				got += " again"
			}
			logs, asked = d.Logs, d.Tail != ""
		}
		if got != c.want || logs != c.logs || asked != c.asked {
			t.Errorf("%s: %q %q %v, want %q %q %v", c.name, got, logs, asked, c.want, c.logs, c.asked)
		}
	}
}

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
		return "/pods/default/" + pod + "/logs/end?" + url.Values{"container": {"web"}, "of": {crashMark(st.LastTerminationState.Terminated)}}.Encode()
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
	if n := len(dev.asked); n != 2 { // the first time nobody answered
		t.Errorf("the device was asked %d times, want 2", n)
	}
	if o := dev.asked[1]; o.Previous || *o.TailLines != 10 {
		t.Errorf("it was asked for %+v", o)
	}
	look("viewer", end("back"))
	if o := dev.asked[2]; !o.Previous {
		t.Error("of what runs again the log of the instance before is meant")
	}
	if code, _, _ := look("viewer", strings.Replace(end("oom"), "of=", "of=7", 1)); code != http.StatusGone {
		t.Errorf("of another crash: %d, want 410", code)
	}
	if code, _, _ := look("viewer", strings.Replace(end("oom"), "web", "nobody", 1)); code != http.StatusNotFound {
		t.Errorf("of no container: %d, want 404", code)
	}
}

// What an instance logs that was started since is not of the crash.
func TestTheLastLinesAreOfWhatHasEnded(t *testing.T) {
	p := admintest.Crashed("oom", "pi-1", func(c *corev1.ContainerStatus) {
		c.LastTerminationState.Terminated.FinishedAt = metav1.NewTime(stampOf(4).Add(-3 * time.Second))
	})
	m := admintest.New(append(admintest.Sample(), p)...)
	c := configOf(m)
	dev, _ := equip(&c)
	dev.log("a", "b", "c", "of the next one", "too")
	_, body := start(t, c).ask(t, "viewer", "GET", "/pods/default/oom/logs/end?container=web&of="+crashMark(p.Status.ContainerStatuses[0].LastTerminationState.Terminated), nil)
	if strings.Contains(body, "next") || !strings.Contains(body, `"c"`) {
		t.Errorf("%s", body)
	}
}

// TestACrashInABrowser looks at a crash: its last lines come by themselves, stay while the page
// changes, and are those of the next crash after it.
func TestACrashInABrowser(t *testing.T) {
	t.Parallel()
	ended := metav1.NewTime(time.Now().Truncate(time.Second))
	justNow := func(c *corev1.ContainerStatus) { // however long the tests before have taken
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
		t.Error("the lines went as something else changed")
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
		t.Error("without scripts lines are promised that never come")
	}
	k.script(true)
}
