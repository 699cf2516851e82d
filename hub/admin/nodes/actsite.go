package nodes

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/eviction"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// SiteActions are what users can do to sites.
func SiteActions(now func() time.Time) []*frame.Action {
	all := []*frame.Action{
		{Name: "hold", Label: "Hold", Save: "Hold", Done: "holds its pods",
			Means: "When the whole site falls silent while another site answers, its pods stay: the site's link is more " +
				"likely cut than all devices broken.",
			Idle: func(o state.Object) string {
				return frame.If(o.(*fleet.Site).Spec.DisruptionPolicy == fleet.Hold, "holds already")
			}, Notes: holdNotes, Do: policyOf(fleet.Hold)},
		{Name: "evict", Label: "Release", Save: "Release", Done: "lets its pods move", Destroy: true,
			Means: "When the whole site falls silent while another site answers, its pods move to other sites, at the site's rate.",
			Idle: func(o state.Object) string {
				return frame.If(o.(*fleet.Site).Spec.DisruptionPolicy != fleet.Hold, "does not hold")
			}, Notes: releaseNotes, Do: policyOf(fleet.Evict)},
		{Name: "maintenance", Label: "Maintenance", Done: "is in maintenance",
			Means:  "No pod is evicted from the site until a chosen time, even if its nodes fall silent.",
			Fields: maintenanceFields,
			Parse:  func(form url.Values) (any, error) { return parseMaintenance(form, now()) },
			Check:  checkMaintenance, Do: maintain},
		{Name: "resume", Quick: true, Label: "End maintenance", Done: "is no longer in maintenance",
			Means: "Pods of nodes that are not ready are evicted again, at the site's rate.",
			Idle: func(o state.Object) string {
				return frame.If(o.(*fleet.Site).Spec.Maintenance == nil, "is not in maintenance")
			}, Do: maintain},
		{Name: "settings", Label: "Settings", Save: "Save", Done: "has new settings",
			Means:  "Settings of this site. An empty field means the hub's own setting.",
			Single: true, Fields: siteFields, Parse: parseSite, Check: checkSite, Do: setSite},
	}
	for _, a := range all {
		a.Kind, a.One, a.Verb, a.Resource = state.Sites, "site", "patch", "sites"
		a.List, a.Listed = "/sites", "Sites"
	}
	return all
}

// mostKept is how many workloads the preview of Hold names.
const mostKept = 8

// holdNotes returns which pods Hold would keep on each site now.
func holdNotes(s state.Snapshot, with []state.Object) []string { return keptNotes(s, with, "stay") }

// releaseNotes returns which pods would leave each released site now.
func releaseNotes(s state.Snapshot, with []state.Object) []string {
	return keptNotes(s, with, "move to other sites")
}

// keptNotes returns, for each site, which pods Hold affects and what happens to them.
func keptNotes(s state.Snapshot, with []state.Object, become string) (notes []string) {
	for _, site := range with {
		name, c := site.GetName(), s.Count(site.GetName())
		if !c.Full() {
			notes = append(notes, fmt.Sprintf("%s: nothing changes now, as %s ready. It takes effect when no node of the site is ready.",
				name, format.IsAre(c.Ready, "node")))
			continue
		}
		movable, others, gone := 0, 0, 0
		of := map[string]int{}
		for n := range s.NodesIn(name) {
			for p := range s.PodsOn(n.Name) {
				switch {
				case state.Terminated(p):
				case p.DeletionTimestamp != nil:
					gone++
				case !movesFrom(n, p):
					others++
				default:
					movable++
					by := state.Object(p)
					if owners := frame.OwnersOf(s, p); len(owners) > 0 {
						by = owners[len(owners)-1]
					}
					of[state.KindOf(by).Row().Name+" "+frame.ItemOf(by).String()]++
				}
			}
		}
		if movable == 0 {
			notes = append(notes, name+": no pod would have to move.")
		} else {
			names := slices.Collect(maps.Keys(of))
			sort.Slice(names, func(i, j int) bool {
				return of[names[i]] > of[names[j]] || of[names[i]] == of[names[j]] && names[i] < names[j]
			})
			for i, n := range names {
				names[i] = fmt.Sprintf("%d of %s", of[n], n)
			}
			notes = append(notes, fmt.Sprintf("%s: %s %s: %s.", name, format.Plural(movable, "pod"), become,
				format.List(names, mostKept)))
		}
		if others > 0 {
			notes = append(notes, fmt.Sprintf("%s: stay in any case, by their tolerations: %s.", name,
				format.Plural(others, "pod")))
		}
		if gone > 0 {
			notes = append(notes, fmt.Sprintf("%s: were told to leave already, and still leave: %s.", name,
				format.Plural(gone, "pod")))
		}
	}
	return notes
}

// movesFrom tells whether a pod has to leave its node once the node is given up.
func movesFrom(n *corev1.Node, p *corev1.Pod) bool {
	if state.NoExecuteOf(n) == nil {
		n = state.Fork(n)
		n.Spec.Taints = append(slices.Clip(n.Spec.Taints),
			corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
	}
	return eviction.LeaveBy(n, p).Must
}

func policyOf(p fleet.DisruptionPolicy) func(context.Context, *frame.Worker, state.Object) (frame.Undo, error) {
	return func(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
		return frame.SetSpec(ctx, w, o, frame.JSON{"disruptionPolicy": p})
	}
}

// localTime is the format of a browser's date field; the form says that it is UTC.
const localTime = "2006-01-02T15:04"

func maintenanceFields(_ state.Snapshot, with []state.Object) []frame.Field {
	return []frame.Field{
		{Name: "for", Label: "For", Type: "select", Options: frame.Options("2h", [2]string{"30m", "30 minutes"},
			[2]string{"2h", "2 hours"}, [2]string{"8h", "8 hours"},
			[2]string{"24h", "1 day"}, [2]string{"168h", "1 week"}, [2]string{"until", "until the moment below"})},
		{Name: "until", Label: "Until", Hint: "in UTC; only with “until the moment below”", Type: "datetime-local"},
		{Name: "reason", Label: "Reason", Hint: "shown beside the site", Type: "text"},
	}
}

func parseMaintenance(form url.Values, now time.Time) (any, error) {
	m := &fleet.Maintenance{Reason: strings.TrimSpace(form.Get("reason"))}
	if form.Get("for") != "until" {
		d, err := time.ParseDuration(form.Get("for"))
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("%q is not a duration; use for example 2h", form.Get("for"))
		}
		m.Until = metav1.NewTime(now.Add(d).UTC().Truncate(time.Second))
		return m, nil
	}
	until, err := time.Parse(localTime, form.Get("until"))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is not a time; use for example 2026-11-03T18:00, in UTC", form.Get("until"))
	case !until.After(now):
		return nil, fmt.Errorf("%s is in the past", format.Stamp(until))
	}
	m.Until = metav1.NewTime(until)
	return m, nil
}

func maintain(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	m, _ := w.Given.(*fleet.Maintenance)
	return frame.SetSpec(ctx, w, o, maintenanceOf(m))
}

// maintenanceOf returns the merge patch of a maintenance.
func maintenanceOf(m *fleet.Maintenance) frame.JSON {
	if m == nil {
		return frame.JSON{"maintenance": nil}
	}
	reason := any(m.Reason)
	if m.Reason == "" {
		reason = nil // a merge would keep the last reason
	}
	return frame.JSON{"maintenance": frame.JSON{"until": m.Until, "reason": reason}}
}

func checkMaintenance(ctx context.Context, w *frame.Worker, o state.Object) error {
	return wouldSet(ctx, w, o, maintenanceOf(w.Given.(*fleet.Maintenance)))
}

// ---- settings of a site

// A setting is a number or a duration in a site's spec.
type setting struct {
	name, label, hint string
	get               func(*fleet.SiteSpec) string
	parse             func(string) (any, error)
}

var siteSettings = []setting{
	{"leaseInterval", "Devices say that they live every",
		"whole seconds up to 5m, such as 60s; a silent node is unknown after four of them at least",
		func(s *fleet.SiteSpec) string { return durationText(s.LeaseInterval) }, durationValue},
	{"nodeMonitorGracePeriod", "A silent node is unknown after", "40s or more, such as 2m",
		func(s *fleet.SiteSpec) string { return durationText(s.NodeMonitorGracePeriod) }, durationValue},
	{"nodeStartupGracePeriod", "A new node is unknown after", "40s or more, such as 5m",
		func(s *fleet.SiteSpec) string { return durationText(s.NodeStartupGracePeriod) }, durationValue},
	{"nodeEvictionRate", "Nodes tainted per second", "such as 0.1: one every 10 seconds",
		func(s *fleet.SiteSpec) string { return numberText(s.NodeEvictionRate) }, numberValue},
	{"secondaryNodeEvictionRate", "The same in partial disruption", "such as 0.01; 0 for none",
		func(s *fleet.SiteSpec) string { return numberText(s.SecondaryNodeEvictionRate) }, numberValue},
	{"unhealthyZoneThreshold", "Partially disrupted from", "a share of its nodes from 0 to 1, such as 0.55",
		func(s *fleet.SiteSpec) string { return numberText(s.UnhealthyZoneThreshold) }, numberValue},
	{"largeClusterSizeThreshold", "Large with more nodes than", "in partial disruption only large sites evict",
		func(s *fleet.SiteSpec) string { return numberText(s.LargeClusterSizeThreshold) },
		func(text string) (any, error) {
			n, err := strconv.ParseInt(text, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%q is not a whole number", text)
			}
			return n, nil
		}},
}

func durationText(d *metav1.Duration) string {
	if d == nil {
		return ""
	}
	return d.Duration.String()
}

func durationValue(text string) (any, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a duration; use for example 40s or 5m", text)
	}
	return d.String(), nil
}

func numberText[N int32 | float64](n *N) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}

func numberValue(text string) (any, error) {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return nil, fmt.Errorf("%q is not a number", text)
	}
	return n, nil
}

func siteFields(_ state.Snapshot, with []state.Object) []frame.Field {
	var s fleet.SiteSpec
	if len(with) == 1 {
		s = with[0].(*fleet.Site).Spec
	}
	fields := []frame.Field{
		{Name: "description", Label: "Description", Type: "text", Value: s.Description},
		{Name: "location", Label: "Location", Type: "text", Value: s.Location},
		{Name: "disruptionPolicy", Label: "When the whole site falls silent", Type: "select",
			Value: string(s.DisruptionPolicy), Options: frame.Options(string(s.DisruptionPolicy),
				[2]string{"", "as the hub is set"},
				[2]string{string(fleet.Evict), "Evict: its pods move to other sites"},
				[2]string{string(fleet.Hold), "Hold: its pods stay"})},
	}
	for _, x := range siteSettings {
		fields = append(fields, frame.Field{Name: x.name, Label: x.label, Hint: x.hint, Type: "text", Value: x.get(&s)})
	}
	for i := range fields {
		f := &fields[i]
		// a browser's text field has one line
		f.Value = strings.NewReplacer("\r", "", "\n", "").Replace(f.Value)
		f.Was, f.Changes = f.Value, true
	}
	return fields
}

// parseSite returns the fields that the user has changed, so that two users with the form open do
// not revert each other's changes.
func parseSite(form url.Values) (any, error) {
	spec := frame.JSON{}
	for _, name := range []string{"description", "location", "disruptionPolicy"} {
		if frame.Unchanged(form, name) {
			continue
		}
		spec[name] = nil
		if v := strings.TrimSpace(form.Get(name)); v != "" {
			spec[name] = v
		}
	}
	for _, x := range siteSettings {
		if frame.Unchanged(form, x.name) {
			continue
		}
		spec[x.name] = nil
		if text := strings.TrimSpace(form.Get(x.name)); text != "" {
			v, err := x.parse(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.label, err)
			}
			spec[x.name] = v
		}
	}
	return spec, nil
}

func setSite(ctx context.Context, w *frame.Worker, o state.Object) (frame.Undo, error) {
	return frame.SetSpec(ctx, w, o, w.Given.(frame.JSON))
}

func checkSite(ctx context.Context, w *frame.Worker, o state.Object) error {
	return wouldSet(ctx, w, o, w.Given.(frame.JSON))
}

// wouldSet asks the API whether it would accept the fields, so that the user can correct the form.
func wouldSet(ctx context.Context, w *frame.Worker, o state.Object, fields frame.JSON) error {
	q := frame.APICall{Method: http.MethodPatch, Path: frame.ObjectURL(state.Sites, "", o.GetName()),
		Media: frame.MergePatch, Query: url.Values{"dryRun": {"All"}}}
	return w.Send(ctx, q, frame.JSON{"spec": fields})
}
