package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/changes"
	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/rollouts"
	"flotilla.dev/hub/admin/workloads"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// nodeHelp is the manual's page about a node's trouble.
func nodeHelp(n *corev1.Node, told corev1.NodeConditionType) string {
	if told == "" && state.ReadyOf(n) == corev1.ConditionTrue {
		return ""
	}
	return frame.HelpURL("conditions", "Node", cmp.Or(string(told), string(corev1.NodeReady)))
}

type taintRow struct {
	Text   string
	Since  *format.Moment
	Remove string // the address that removes it; "": the hub set it, or the role may not
}

type nodeData struct {
	Name, Href string
	Pill       frame.Pill
	Why        string
	Help       string // the manual's page about it
	Since      *format.Moment
	Chain      []string
	Site       string
	Facts      []frame.Fact
	Heard      *format.Moment
	Link       frame.Pill
	Conditions finding.ConditionRows
	Shares     []share
	Taints     []taintRow
	Labels     []frame.Fact
	Pods       []workloads.PodRow
	Events     []frame.EventRow
	Hardware   []section
	Timeline   timeline
	Charts     charts
	Logs       string // "": the role may not read them
	Menu       frame.Menu
	Did        *frame.Done
	Going      *Drain
	DrainEnd   string
	Boot       *rollouts.NodeBoot
	Changes    changes.Shown
}

// Node shows one node.
func Node(a *frame.Request) (frame.Page, error) {
	name := a.Param("name")
	n := a.Node(name)
	if n == nil {
		return frame.Page{}, frame.MissingError(fmt.Sprintf("There is no node %s.", name))
	}
	if span := a.Query("span"); span != "" && !slices.ContainsFunc(lookbacks,
		func(l lookback) bool { return l.name == span }) {
		return frame.Page{}, frame.InputError(fmt.Sprintf("The span “%s” does not exist. Use 1h, 6h, 24h, 7d or 30d.",
			bound.Text(span, 60)))
	}
	_, told := finding.NodeWhy(n)
	live := a.Liveness(name)
	d := nodeData{
		Name: name, Href: frame.NodeHref(name), Pill: finding.NodePill(n), Why: finding.NodeSentence(a, n),
		Since: format.Time(diagnose.FirstOf(n).Since, a.Now), Chain: finding.NodeChain(a.Snapshot, n, a.Now),
		Site: state.SiteOf(n), Facts: nodeFacts(a, n, live), Heard: format.Time(live.Seen, a.Now),
		Link: frame.Pill{Kind: "idle", Text: "No connection"},
		Help: nodeHelp(n, told), Timeline: timelineOf(a, n), Charts: chartsOf(a, name), Menu: frame.MenuOf(a, n),
		Did: frame.JustDone(a), Going: goingOn(a, n), DrainEnd: drainEnd(n),
		Changes: changes.Show(a, changes.NodeSubject(a.Snapshot, n)),
	}
	if a.May("get", "nodes/proxy") {
		d.Logs = d.Href + "/logs"
	}
	if live.Connected {
		d.Link = frame.Pill{Kind: "ok", Text: "Connected"}
	}
	for _, c := range n.Status.Conditions {
		d.Conditions = append(d.Conditions, finding.ConditionRow{
			Type: string(c.Type), Pill: frame.Pill{Kind: finding.ConditionKind(c), Text: string(c.Status)},
			Reason: c.Reason, Message: c.Message, Since: format.Time(c.LastTransitionTime.Time, a.Now),
			Help: frame.HelpURL("conditions", "Node", string(c.Type)),
		})
	}
	sort.SliceStable(d.Conditions, func(i, j int) bool {
		x, y := d.Conditions[i], d.Conditions[j]
		return cmp.Or(cmp.Compare(frame.Rank(x.Pill.Kind), frame.Rank(y.Pill.Kind)),
			cmp.Compare(isReady(y), isReady(x)), cmp.Compare(x.Type, y.Type)) < 0
	})
	u, used := a.Usage(name), wire.Usage{}
	if live.Connected {
		used = a.Uses(name)
	}
	for _, r := range resourceNames(n) {
		d.Shares = append(d.Shares, shareOf(r, u, n).uses(r, used, n))
	}
	for _, t := range n.Spec.Taints {
		row := taintRow{Text: t.ToString()}
		if t.TimeAdded != nil {
			row.Since = format.Time(t.TimeAdded.Time, a.Now)
		}
		if !strings.HasPrefix(t.Key, "node.kubernetes.io/") && t.Key != fleet.TaintFlapping && a.May("patch", "nodes") {
			row.Remove = "/actions/nodes/taint?" + url.Values{"item": {frame.ItemOf(n).Form()}, "key": {t.Key},
				"value": {t.Value}, "effect": {string(t.Effect)}, "how": {"remove"}}.Encode()
		}
		d.Taints = append(d.Taints, row)
	}
	d.Labels = frame.FactsOf(n.Labels)
	for p := range a.PodsOn(name) {
		d.Pods = append(d.Pods, workloads.PodRowOf(a, p))
	}
	for _, e := range frame.EventsOf(a.Snapshot, "Node", "default", name) {
		if len(d.Events) == 20 {
			break
		}
		d.Events = append(d.Events, frame.EventRowOf(a, e))
	}
	raw := live.Hardware
	if raw == nil {
		raw = a.Report(name).Text()
	}
	d.Hardware, d.Boot = hardware(raw), rollouts.NodeBootOf(a, name)
	return frame.Page{Template: "node", Title: name, Watch: []string{"node/" + name, frame.UsageTopic(name)}, Poll: 10,
		Data: d}, nil
}

// isReady is 1 for the condition Ready, which stands first among equally bad ones.
func isReady(c finding.ConditionRow) int {
	if c.Type == string(corev1.NodeReady) {
		return 1
	}
	return 0
}

func resourceNames(n *corev1.Node) []corev1.ResourceName {
	usual := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
		corev1.ResourcePods}
	for _, name := range slices.Sorted(maps.Keys(n.Status.Capacity)) {
		if !slices.Contains(usual, name) {
			usual = append(usual, name)
		}
	}
	return usual
}

func nodeFacts(a *frame.Request, n *corev1.Node, live frame.Liveness) (facts []frame.Fact) {
	add := func(name, value string) {
		if value != "" {
			facts = append(facts, frame.Fact{Name: name, Value: value})
		}
	}
	info := n.Status.NodeInfo
	add("Board", cmp.Or(n.Labels[fleet.LabelBoard], "unknown"))
	add("Board profile", cmp.Or(n.Labels[fleet.LabelProfile], "none fits"))
	add("System", format.Join(info.OSImage, info.OperatingSystem+"/"+info.Architecture))
	add("Kernel", info.KernelVersion)
	add("Engine", info.ContainerRuntimeVersion)
	add("Agent", info.KubeletVersion)
	for _, addr := range n.Status.Addresses {
		add(string(addr.Type), addr.Address)
	}
	add("Pod network", n.Spec.PodCIDR)
	add("Machine", info.MachineID)
	add("Joined", format.Stamp(n.CreationTimestamp.Time))
	switch {
	case live.Wanted > live.Stored && live.Seen.IsZero(): // only a lease says which generation the device has
		add("Desired state", fmt.Sprintf("generation %d; the device has not yet said which one it has",
			live.Wanted))
	case live.Wanted > live.Stored:
		add("Desired state", fmt.Sprintf("generation %d; the device has %d", live.Wanted, live.Stored))
	case live.Wanted > 0:
		add("Desired state", fmt.Sprintf("generation %d, stored by the device", live.Wanted))
	}
	if rec := a.Record(n.Name); rec != nil && rec.Paused {
		add("Paused", "the hub was restored from a backup; resume with `flotilla-hub resume`")
	}
	if skew := live.Skew.Round(time.Second); skew > 2*time.Second || skew < -2*time.Second {
		add("Clock", fmt.Sprintf("differs from the hub's by %s", skew))
	}
	return facts
}
