package finding

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/admintest"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/shared/fleet"
)

func TestWhyAPodDoesNotDoWhatItShould(t *testing.T) {
	s := admintest.New(admintest.Sample()...).Snapshot()
	waiting := func(reason, message string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "web",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}
		}
	}
	for _, c := range []struct {
		name, node string
		change     func(*corev1.Pod)
		want       string
	}{
		{"it runs and is ready", "pi-1", nil, ""},
		{"its container is being created", "pi-1", waiting("ContainerCreating", ""), ""},
		{"its image cannot be pulled", "pi-1", waiting("ImagePullBackOff", "no such image"),
			"Container web: ImagePullBackOff, no such image"},
		{"its node is silent", "pi-2", nil,
			"Its node does not answer."},
		{"its node does not exist", "gone", nil, "Its node gone does not exist."},
		{"it has failed", "pi-1", func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.Message = "Pod was rejected: OutOfmemory"
		}, "Pod was rejected: OutOfmemory"},
		{"it is deleted, within its grace period", "pi-1",
			func(p *corev1.Pod) { at := metav1.NewTime(admintest.Now.Add(time.Minute)); p.DeletionTimestamp = &at },
			""},
		{"it is deleted, after its grace period, on a silent node", "pi-2", func(p *corev1.Pod) {
			at := admintest.Ago(time.Minute)
			p.DeletionTimestamp = &at
			p.Status.Conditions = append(p.Status.Conditions,
				corev1.PodCondition{Type: corev1.DisruptionTarget, Status: "True",
					Message: "evict kiosk-2 from pi-2: tolerated node.kubernetes.io/unreachable until 12:05:41"})
		}, "evict kiosk-2 from pi-2: tolerated node.kubernetes.io/unreachable until 12:05:41; it stays Terminating until pi-2 comes back and confirms that it has stopped."},
		{"it has not been ready for long", "pi-1", func(p *corev1.Pod) {
			p.Status.Conditions[1].Status, p.Status.Conditions[1].Message = "False",
				"readiness probe: connection refused"
		}, "It runs but is not ready: readiness probe: connection refused"},
	} {
		if got, _ := PodTrouble(s, admintest.Pod("p", c.node, c.change), admintest.Now); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestWhatStandsBehindAPodOnASilentNode(t *testing.T) {
	given := metav1.NewTime(admintest.Now.Add(-time.Minute))
	limit := int64(300)
	for _, c := range []struct {
		name  string
		taint bool
		limit *int64
		site  fleet.SiteStatus
		want  string
	}{
		{"its tolerations end", true, &limit, fleet.SiteStatus{}, "It is evicted at " +
			format.Stamp(admintest.Now.Add(4*time.Minute)) + ": tolerated node.kubernetes.io/unreachable until"},
		{"its tolerations do not end", true, nil, fleet.SiteStatus{},
			"It stays: it tolerates the taints of its node without an end."},
		{"its site is in maintenance", false, &limit,
			fleet.SiteStatus{HeldReason: fleet.HeldForMaintenance, Held: "maintenance until noon"},
			"Node pi-2: Its pods stay: evictions on site oslo are held, maintenance until noon."},
		{"its node waits in the queue", false, &limit,
			fleet.SiteStatus{EvictionRate: "0.1", Waiting: 2,
				NextEviction: admintest.Moments(admintest.Now.Add(10 * time.Second))},
			"Node pi-2: Its pods stay for now: site oslo gives up one node every 10s, and it is number 2 of 2, at about " + format.Stamp(admintest.Now.Add(20*time.Second)) + "."},
		{"the site's rate is almost 0", false, &limit,
			fleet.SiteStatus{EvictionRate: "1e-10", Waiting: 2, NextEviction: admintest.Moments(admintest.Now)},
			"Node pi-2: Its pods stay for now: site oslo gives up one node every 36500 days, and it is number 2 of 2, at about " + format.Stamp(admintest.Now.Add(876000*time.Hour)) + "."},
	} {
		n := admintest.Node("pi-2", "oslo", admintest.Condition("Ready", "Unknown", "NodeStatusUnknown",
			"Kubelet stopped posting node status."))
		if c.taint {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: "NoExecute", TimeAdded: &given}}
		}
		p := admintest.Pod("p", "pi-2", func(p *corev1.Pod) {
			p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: "Exists",
				Effect: "NoExecute", TolerationSeconds: c.limit}}
		})
		before := admintest.Node("pi-1", "oslo", admintest.Condition("Ready", "Unknown", "NodeStatusUnknown", "x"))
		s := admintest.New(n, before, p,
			&fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"}, Status: c.site}).Snapshot()
		chain := PodChain(s, s.Pod("default", "p"), admintest.Now)
		if !slices.ContainsFunc(chain, func(line string) bool { return strings.HasPrefix(line, c.want) }) {
			t.Errorf("%s: %q, want %q", c.name, chain, c.want)
		}
	}
}

func TestHowOftenAContainerWasStarted(t *testing.T) {
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	ended := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	for _, c := range []struct {
		name   string
		status corev1.ContainerStatus
		want   string
	}{
		{"it waits for its image", corev1.ContainerStatus{State: waiting("ImagePullBackOff")},
			"Container web has not been started yet."},
		{"it ended once and waits", corev1.ContainerStatus{State: waiting("CrashLoopBackOff"),
			LastTerminationState: ended}, "Container web was started once."},
		{"it was restarted twice", corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: ended,
			RestartCount: 2}, "Container web was started 3 times."},
		{"how it ended is not known", corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), RestartCount: 2},
			"Container web was started 3 times."},
	} {
		p := admintest.Pod("p", "pi-1", func(p *corev1.Pod) {
			c.status.Name = "web"
			p.Status.ContainerStatuses = []corev1.ContainerStatus{c.status}
		})
		s := admintest.New(admintest.Node("pi-1", "oslo", nil), p).Snapshot()
		if chain := PodChain(s, s.Pod("default", "p"), admintest.Now); !slices.Contains(chain, c.want) {
			t.Errorf("%s: %q, want %q", c.name, chain, c.want)
		}
	}
}
