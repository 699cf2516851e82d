package finding

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/admintest"
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
		{137, "ContainerStatusUnknown", "", "in an unknown way"},
		{139, "Error", "", "SIGSEGV (exit code 139): it touched memory that is not its own"},
		{143, "Error", "", "SIGTERM (exit code 143): it was stopped"},
		{129 + 35, "Error", "", "ended by signal 36 (exit code 164)"},
		{255, "Error", "", "exit code 255, often an error without a code of its own"},
		{42, "Error", "", "ended with exit code 42"},
	} {
		if e := exitOf(&corev1.ContainerStateTerminated{ExitCode: c.code, Reason: c.reason},
			c.limit); !strings.Contains(e.How, c.how) {
			t.Errorf("%d %s: %q, want %q", c.code, c.reason, e.How, c.how)
		}
	}
}

func TestABackOffIsKubernetes(t *testing.T) {
	for restarts, want := range map[int32]time.Duration{0: 0, 1: 10 * time.Second, 2: 20 * time.Second,
		5: 160 * time.Second, 6: 5 * time.Minute, 1 << 30: 5 * time.Minute} {
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
		want  string // container, run time, restarts, whether it starts again; "": none
		logs  string
		asked bool
	}{
		{"it waits for its restart", admintest.Crashed("p", "pi-1", nil), "web 12s started again 6 times again",
			"/pods/default/p/logs?container=web", true},
		{"its back-off is over", admintest.Crashed("p", "pi-1", func(c *corev1.ContainerStatus) { c.RestartCount = 2 }),
			"web 12s started again 2 times", "/pods/default/p/logs?container=web", true},
		{"it runs again", admintest.Crashed("p", "pi-1", began(time.Minute)), "web 12s started again 6 times",
			"/pods/default/p/logs?container=web&previous=1", true},
		{"it has run for long since", admintest.Crashed("p", "pi-1", began(20*time.Minute)), "", "", false},
		{"it ended with 0 and waits for its restart",
			admintest.Crashed("p", "pi-1",
				func(c *corev1.ContainerStatus) { c.LastTerminationState.Terminated.ExitCode = 0 }),
			"web 12s started again 6 times again", "/pods/default/p/logs?container=web", true},
		{"its device is silent", admintest.Crashed("p", "pi-2", nil), "web 12s started again 6 times",
			"/pods/default/p/logs?container=web", false},
		{"it has not crashed", admintest.Pod("p", "pi-1", nil), "", "", false},
	} {
		a := admintest.Ask(admintest.New(append(admintest.Sample(), c.pod)...).Snapshot(), admintest.Now, nil)
		a.May = func(string, string) bool { return true }
		got, logs, asked := "", "", false
		for _, d := range CrashesOf(a, c.pod) {
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
