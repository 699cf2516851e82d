package admin

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

type containerRow struct {
	Name, Image string
	Init        bool
	Pill        pill
	Detail      string
	Since       *moment
	Restarts    int32
	CPU, Memory string // that it uses now; "": not measured
	Asks        string // what it requests, and its limits
}

type podData struct {
	podRow
	Chain      []string
	Facts      []Fact
	Conditions conditionRows
	Containers []containerRow
	Labels     []Fact
	Events     []eventRow
	YAML       string
	Logs       string
	Terminal   string
	Menu       menu
	Did        *done
	Help       string // where the manual tells of what is wrong
	Placement  *placement
	Crashes    []crash
	Images     []*imageTrouble
	Owners     []ownerLink
	Asks       []Fact
	Volumes    []volumeRow
}

// pod shows one pod, and why it does not do what it should.
func pod(a *request) (page, error) {
	namespace, name := a.param("namespace"), a.param("name")
	p := a.Pod(namespace, name)
	if p == nil {
		return page{}, errMissing(fmt.Sprintf("There is no pod %s in namespace %s.", name, namespace))
	}
	d := podData{podRow: podRowOf(a, p), Labels: factsOf(p.Labels), YAML: "/yaml" + objectURL(state.Pods, p.Namespace, p.Name), Menu: menuOf(a, p), Did: justDone(a)}
	if a.may("get", "pods/log") && p.Spec.NodeName != "" {
		d.Logs = d.Href + "/logs"
	}
	if a.may("create", "pods/exec") && p.Status.Phase == corev1.PodRunning && reachable(a, p) {
		d.Terminal = d.Href + "/terminal"
	}
	if d.Why != "" {
		d.Chain, d.Help = podChain(a.Snapshot, p, a.now), podHelp(p, d.Pill.Text)
	}
	if waitsForNode(p) {
		d.Placement = placementOf(a, p)
		d.Why, d.Chain = d.Placement.Why, d.Placement.Needs
		if len(d.Placement.Rows) > 0 {
			d.Chain = append(d.Chain, "It is tried again whenever something changes that could help.")
		}
	}
	if d.Crashes = crashesOf(a, p); d.Why != "" && len(d.Crashes) > 0 && reachable(a, p) && p.DeletionTimestamp == nil {
		d.Why = "Container " + d.Crashes[0].Container + " does not keep running."
	}
	if d.Images = imagesMissing(p); d.Why != "" && len(d.Images) > 0 && reachable(a, p) && p.DeletionTimestamp == nil {
		d.Why = "Container " + d.Images[0].Container + ": " + d.Images[0].Cause + ", " + d.Images[0].short
	}
	if d.Why == "" && p.DeletionTimestamp != nil {
		d.Why = "It was asked to leave, and has until " + stamp(p.DeletionTimestamp.Time) + " to stop."
	}
	for _, f := range []Fact{
		{"Namespace", p.Namespace}, {"Address", p.Status.PodIP}, {"Restart policy", string(p.Spec.RestartPolicy)},
		{"Quality of service", string(p.Status.QOSClass)}, {"Created", stamp(p.CreationTimestamp.Time)},
	} {
		if f.Value != "" {
			d.Facts = append(d.Facts, f)
		}
	}
	d.Owners, d.Asks, d.Volumes = ownerLinks(a.Snapshot, p), askFacts(p), volumesOf(a, p)
	for _, c := range p.Status.Conditions {
		kind := "idle"
		if (c.Status == corev1.ConditionTrue) == (c.Type != corev1.DisruptionTarget) {
			kind = "ok"
		} else if c.Status != corev1.ConditionFalse || c.Type != corev1.DisruptionTarget {
			kind = "warn"
		}
		d.Conditions = append(d.Conditions, conditionRow{string(c.Type), pill{kind, string(c.Status)}, c.Reason, c.Message, at(c.LastTransitionTime.Time, a.now), helpURL("conditions", "Pod", string(c.Type))})
	}
	d.Containers = append(containers(a, p.Spec.InitContainers, p.Status.InitContainerStatuses, true),
		containers(a, p.Spec.Containers, p.Status.ContainerStatuses, false)...)
	if p.Status.Phase == corev1.PodRunning && a.liveness(p.Spec.NodeName).Connected {
		all := containersOf(a.uses(p.Spec.NodeName), p.UID)
		for i, c := range d.Containers {
			if used, ok := all[c.Name]; ok {
				d.Containers[i].CPU, d.Containers[i].Memory = amount(corev1.ResourceCPU, used[corev1.ResourceCPU]), amount(corev1.ResourceMemory, used[corev1.ResourceMemory])
			}
		}
	}
	for _, e := range eventsOf(a.Snapshot, "Pod", namespace, name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, eventRowOf(a, e))
	}
	watch := []string{"pod/" + namespace + "/" + name}
	if p.Spec.NodeName != "" {
		watch = append(watch, "node/"+p.Spec.NodeName, usageTopic(p.Spec.NodeName))
	}
	return page{Template: "pod", Title: name, Watch: watch, Poll: 10, Data: d}, nil
}

func containers(a *request, specs []corev1.Container, have []corev1.ContainerStatus, init bool) (rows []containerRow) {
	for _, spec := range specs {
		r := containerRow{Name: spec.Name, Image: spec.Image, Init: init, Pill: pill{"idle", "Not started"}, Asks: asksText(spec)}
		for _, st := range have {
			if st.Name != spec.Name {
				continue
			}
			r.Restarts = st.RestartCount
			switch {
			case st.State.Running != nil && (st.Ready || init):
				r.Pill, r.Since = pill{"ok", "Running"}, at(st.State.Running.StartedAt.Time, a.now)
			case st.State.Running != nil:
				r.Pill, r.Since = pill{"warn", "Running, not ready"}, at(st.State.Running.StartedAt.Time, a.now)
			case st.State.Terminated != nil && st.State.Terminated.ExitCode == 0:
				r.Pill, r.Since = pill{"idle", "Completed"}, at(st.State.Terminated.FinishedAt.Time, a.now)
			case st.State.Terminated != nil:
				r.Pill, r.Detail, r.Since = pill{"bad", "Failed"}, end(diagnose.EndOf(st.State.Terminated)), at(st.State.Terminated.FinishedAt.Time, a.now)
			case st.State.Waiting != nil:
				r.Pill, r.Detail = pill{waitingKind(st.State.Waiting.Reason), cmp.Or(st.State.Waiting.Reason, "Waiting")}, st.State.Waiting.Message
				if t := st.LastTerminationState.Terminated; t != nil {
					r.Detail = join(r.Detail, "last "+end(diagnose.EndOf(t)))
				}
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// waitingKind tells starting, which is usual, from what keeps a container from it.
func waitingKind(reason string) string {
	if diagnose.IsStarting(reason) {
		return "idle"
	}
	return "bad"
}

// reachable tells whether a pod's device answers: a terminal there would wait for nothing.
func reachable(a *request, p *corev1.Pod) bool {
	n := a.Node(p.Spec.NodeName)
	return n != nil && state.ReadyOf(n) != corev1.ConditionUnknown
}
