package agent

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/shared/wire"
)

// byHand calls the engine's API like its command line, without the agent.
func byHand(t *testing.T, socket, path string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	r, err := c.Post("http://engine/v1.41"+path, "application/json", nil)
	must(t, err)
	must(t, r.Body.Close())
	if r.StatusCode >= 300 {
		t.Fatalf("POST %s: %s", path, r.Status)
	}
}

func TestRealEngineARenamedContainerStillBelongsToTheAgent(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		pod := makePod("web", "wait", "wait")
		pod.UID = types.UID("uid-web-" + d.node)
		pod.Spec.TerminationGracePeriodSeconds = new(int64)
		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: []corev1.Pod{pod}}))
		d.await("the pod runs", func() bool { return ready(d.pod("web")) })
		for i, c := range d.list() { // rename app containers and the sandbox
			byHand(t, socket, "/containers/"+c.ID+"/rename?name="+d.node+"-"+string(rune('a'+i)))
		}
		d.end()
		d.start()
		d.await("the next agent has adopted the pod", func() bool { return ready(d.pod("web")) })
		if list := d.list(); len(list) != 3 {
			t.Errorf("the engine has %d containers: %+v", len(list), list)
		}
		must(t, d.agent.Store(wire.Desired{Generation: 2, Hub: "h"}))
		d.await("no container is left", func() bool { return len(d.list()) == 0 })
	})
}

// The kernel accepts connections for a paused container, so a TCP probe alone would never fail.
func TestRealEngineRestartsAPausedContainerByItsLivenessProbe(t *testing.T) {
	t.Parallel()
	realEngines(t, func(t *testing.T, socket string) {
		d := newRealDevice(t, socket)
		defer func() { d.end() }()
		every := func(h corev1.ProbeHandler) *corev1.Probe {
			return &corev1.Probe{PeriodSeconds: 1, TimeoutSeconds: 30, ProbeHandler: h}
		}
		tcp, exec := makePod("tcp", "serve :8080"), makePod("exec", "wait")
		tcp.Spec.Containers[0].LivenessProbe = every(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}})
		exec.Spec.Containers[0].LivenessProbe = every(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/tool", "print", "x"}}})
		pods := []corev1.Pod{tcp, exec, makePod("bare", "wait")}
		for i := range pods {
			pods[i].UID = types.UID("uid-" + pods[i].Name + "-" + d.node)
			pods[i].Spec.TerminationGracePeriodSeconds = new(int64)
		}
		must(t, d.agent.Store(wire.Desired{Generation: 1, Hub: "h", Pods: pods}))
		for _, pod := range pods {
			d.await(pod.Name+" runs", func() bool { return ready(d.pod(pod.Name)) })
		}
		for _, c := range d.list() {
			byHand(t, socket, "/containers/"+c.ID+"/pause")
		}
		d.await("the pod without a probe is not ready", func() bool { return !ready(d.pod("bare")) })
		for _, name := range []string{"tcp", "exec"} {
			d.await(name+" has been restarted", func() bool {
				return ready(d.pod(name)) && d.pod(name).ContainerStatuses[0].RestartCount == 1
			})
		}
		if _, _, err := d.agent.running(t.Context(), pods[2].UID, "c0"); err == nil ||
			!strings.Contains(err.Error(), "is paused") {
			t.Errorf("a command in the restarted container: %v", err)
		}
	})
}
