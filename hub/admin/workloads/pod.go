package workloads

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// podHelp returns the manual's page about the reason in a pod's status.
func podHelp(p *corev1.Pod, status string) string {
	if c := state.PodCondition(p, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return frame.HelpURL("events", "FailedScheduling")
	}
	return frame.HelpURL("events", status)
}

type containerRow struct {
	Name, Image string
	Init        bool
	Pill        frame.Pill
	Detail      string
	Since       *format.Moment
	Restarts    int32
	CPU, Memory string // in use now; "": not measured
	Asks        string // requests and limits
}

type podData struct {
	PodRow
	Chain      []string
	Facts      []frame.Fact
	Conditions finding.ConditionRows
	Containers []containerRow
	Labels     []frame.Fact
	Events     []frame.EventRow
	YAML       string
	Logs       string
	Terminal   string
	Menu       frame.Menu
	Did        *frame.Done
	Help       string // the manual's page about the trouble
	Placement  *finding.Placement
	Crashes    []finding.Crash
	Images     []*finding.ImageTrouble
	Owners     []frame.OwnerLink
	Asks       []frame.Fact
	Volumes    []volumeRow
}

// Pod shows one pod, and why it does not do what it should.
func Pod(a *frame.Request) (frame.Page, error) {
	namespace, name := a.Param("namespace"), a.Param("name")
	p := a.Pod(namespace, name)
	if p == nil {
		return frame.Page{}, frame.MissingError(fmt.Sprintf("There is no pod %s in namespace %s.", name, namespace))
	}
	d := podData{PodRow: PodRowOf(a, p), Labels: frame.FactsOf(p.Labels), YAML: "/yaml" +
		frame.ObjectURL(state.Pods, p.Namespace, p.Name), Menu: frame.MenuOf(a, p), Did: frame.JustDone(a)}
	if a.May("get", "pods/log") && p.Spec.NodeName != "" {
		d.Logs = d.Href + "/logs"
	}
	if a.May("create", "pods/exec") && p.Status.Phase == corev1.PodRunning && finding.Reachable(a, p) {
		d.Terminal = d.Href + "/terminal"
	}
	if d.Why != "" {
		d.Chain, d.Help = finding.PodChain(a.Snapshot, p, a.Now), podHelp(p, d.Pill.Text)
	}
	if finding.WaitsForNode(p) {
		d.Placement = finding.PlacementOf(a, p)
		d.Why, d.Chain = d.Placement.Why, d.Placement.Needs
		if len(d.Placement.Rows) > 0 {
			d.Chain = append(d.Chain, "It is tried again whenever something changes that could help.")
		}
	}
	if d.Crashes = finding.CrashesOf(a, p); d.Why != "" && len(d.Crashes) > 0 && finding.Reachable(a, p) &&
		p.DeletionTimestamp == nil {
		d.Why = "Container " + d.Crashes[0].Container + " does not keep running."
	}
	if d.Images = finding.ImagesMissing(p); d.Why != "" && len(d.Images) > 0 && finding.Reachable(a, p) &&
		p.DeletionTimestamp == nil {
		d.Why = "Container " + d.Images[0].Container + ": " + d.Images[0].Cause + ", " + d.Images[0].Short
	}
	if d.Why == "" && p.DeletionTimestamp != nil {
		d.Why = "It was told to leave, and has until " + format.Stamp(p.DeletionTimestamp.Time) + " to stop."
	}
	for _, f := range []frame.Fact{
		{Name: "Namespace", Value: p.Namespace}, {Name: "Address", Value: p.Status.PodIP},
		{Name: "Restart policy", Value: string(p.Spec.RestartPolicy)},
		{Name: "Quality of service", Value: string(p.Status.QOSClass)},
		{Name: "Created", Value: format.Stamp(p.CreationTimestamp.Time)},
	} {
		if f.Value != "" {
			d.Facts = append(d.Facts, f)
		}
	}
	d.Owners, d.Asks, d.Volumes = frame.OwnerLinks(a.Snapshot, p), askFacts(p), volumesOf(a, p)
	for _, c := range p.Status.Conditions {
		kind := "idle"
		if (c.Status == corev1.ConditionTrue) == (c.Type != corev1.DisruptionTarget) {
			kind = "ok"
		} else if c.Status != corev1.ConditionFalse || c.Type != corev1.DisruptionTarget {
			kind = "warn"
		}
		d.Conditions = append(d.Conditions,
			finding.ConditionRow{Type: string(c.Type), Pill: frame.Pill{Kind: kind, Text: string(c.Status)},
				Reason: c.Reason, Message: c.Message, Since: format.Time(c.LastTransitionTime.Time, a.Now),
				Help: frame.HelpURL("conditions", "Pod", string(c.Type))})
	}
	d.Containers = append(containers(a, p.Spec.InitContainers, p.Status.InitContainerStatuses, true),
		containers(a, p.Spec.Containers, p.Status.ContainerStatuses, false)...)
	if p.Status.Phase == corev1.PodRunning && a.Liveness(p.Spec.NodeName).Connected {
		all := containersOf(a.Uses(p.Spec.NodeName), p.UID)
		for i, c := range d.Containers {
			if used, ok := all[c.Name]; ok {
				d.Containers[i].CPU, d.Containers[i].Memory = format.Amount(corev1.ResourceCPU,
					used[corev1.ResourceCPU]), format.Amount(corev1.ResourceMemory, used[corev1.ResourceMemory])
			}
		}
	}
	for _, e := range frame.EventsOf(a.Snapshot, "Pod", namespace, name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, frame.EventRowOf(a, e))
	}
	watch := []string{"pod/" + namespace + "/" + name}
	if p.Spec.NodeName != "" {
		watch = append(watch, "node/"+p.Spec.NodeName, frame.UsageTopic(p.Spec.NodeName))
	}
	return frame.Page{Template: "pod", Title: name, Watch: watch, Poll: 10, Data: d}, nil
}

func containers(a *frame.Request, specs []corev1.Container, have []corev1.ContainerStatus,
	init bool) (rows []containerRow) {
	for _, spec := range specs {
		r := containerRow{Name: spec.Name, Image: spec.Image, Init: init,
			Pill: frame.Pill{Kind: "idle", Text: "Not started"}, Asks: asksText(spec)}
		for _, st := range have {
			if st.Name != spec.Name {
				continue
			}
			r.Restarts = st.RestartCount
			switch {
			case st.State.Running != nil && (st.Ready || init):
				r.Pill, r.Since = frame.Pill{Kind: "ok", Text: "Running"},
					format.Time(st.State.Running.StartedAt.Time, a.Now)
			case st.State.Running != nil:
				r.Pill, r.Since = frame.Pill{Kind: "warn", Text: "Running, not ready"},
					format.Time(st.State.Running.StartedAt.Time, a.Now)
			case st.State.Terminated != nil && st.State.Terminated.ExitCode == 0:
				r.Pill, r.Since = frame.Pill{Kind: "idle", Text: "Completed"},
					format.Time(st.State.Terminated.FinishedAt.Time, a.Now)
			case st.State.Terminated != nil:
				r.Pill, r.Detail, r.Since = frame.Pill{Kind: "bad", Text: "Failed"},
					finding.EndText(diagnose.EndOf(st.State.Terminated)),
					format.Time(st.State.Terminated.FinishedAt.Time, a.Now)
			case st.State.Waiting != nil:
				r.Pill, r.Detail = frame.Pill{Kind: waitingKind(st.State.Waiting.Reason),
					Text: cmp.Or(st.State.Waiting.Reason, "Waiting")}, st.State.Waiting.Message
				if t := st.LastTerminationState.Terminated; t != nil {
					r.Detail = format.Join(r.Detail, "last "+finding.EndText(diagnose.EndOf(t)))
				}
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// waitingKind returns the pill's kind of a waiting container: starting is normal, any other reason is
// trouble.
func waitingKind(reason string) string {
	if diagnose.IsStarting(reason) {
		return "idle"
	}
	return "bad"
}

// containersOf returns what each container of a pod uses, as the device measured it.
func containersOf(u wire.Usage, pod types.UID) map[string]corev1.ResourceList {
	used := map[string]corev1.ResourceList{}
	for _, p := range u.Pods {
		if p.UID == pod {
			for _, c := range p.Containers {
				used[c.Name] = c.Usage
			}
		}
	}
	return used
}
