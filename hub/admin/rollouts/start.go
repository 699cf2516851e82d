package rollouts

import (
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

type rolloutStartData struct {
	Name, Canary, From, To       string
	Profiles, Sites, Conditions  []frame.Option
	Batch, Unavailable           string
	Paused, Asked, None, MayBoth bool
	YAML                         string
	Ready                        string // profiles to start from, if none has a boot configuration
}

// Start is the form of a rollout. It leads to the page that checks and applies YAML, and changes
// nothing itself.
func Start(a *frame.Request) (frame.Page, error) {
	given := func(name, otherwise string) string {
		if v := strings.TrimSpace(a.Query(name)); v != "" {
			return v
		}
		return otherwise
	}
	d := rolloutStartData{
		Name: given("name", "memory-limits"), Canary: given("canary", ""), From: given("from", ""), To: given("to", ""),
		Batch: given("batch", "5"), Unavailable: given("unavailable", "1"),
		Asked: a.Query("name") != "", MayBoth: a.May("update", "deployments"),
	}
	d.Paused = !d.Asked || a.Query("paused") != ""
	var profiles [][2]string
	for p := range state.Each[*fleet.BoardProfile](a.Snapshot, state.BoardProfiles, "") {
		if p.Spec.Boot != nil && p.Spec.Boot.Backend != fleet.BootNone {
			profiles = append(profiles, [2]string{p.Name, p.Name})
		}
	}
	if d.None = len(profiles) == 0; d.None {
		d.Ready = readyProfiles(a)
		return frame.Page{Template: "rollout-start", Title: "Roll out a boot configuration", Data: d}, nil
	}
	sites := [][2]string{{"", "All sites"}}
	for name := range a.Counts() {
		sites = append(sites, [2]string{name, "Site " + name})
	}
	profile, site, condition := given("profile", profiles[0][0]), given("site", ""), given("condition", "")
	d.Profiles, d.Sites = frame.Options(profile, profiles...), frame.Options(site, sites...)
	d.Conditions = frame.Options(condition, [2]string{"", "All of them"},
		[2]string{fleet.ConditionMemoryLimits, "Only boards that cannot limit memory (MemoryLimits is False)"})
	if !d.Asked {
		return frame.Page{Template: "rollout-start", Title: "Roll out a boot configuration", Data: d}, nil
	}
	labels := frame.JSON{fleet.LabelProfile: profile}
	if site != "" {
		labels["topology.kubernetes.io/zone"] = site
	}
	spec := frame.JSON{"selector": frame.JSON{"matchLabels": labels}, "profile": profile,
		"batchSize": numberOr(d.Batch), "maxUnavailablePerSite": numberOr(d.Unavailable), "paused": d.Paused}
	if d.Canary != "" {
		spec["canary"] = d.Canary
	}
	if condition != "" {
		spec["condition"] = condition
	}
	if d.From != "" || d.To != "" {
		spec["window"] = frame.JSON{"from": d.From, "to": d.To}
	}
	out, err := yaml.Marshal(frame.JSON{"apiVersion": fleet.Group + "/" + fleet.Version, "kind": "FirmwareRollout",
		"metadata": frame.JSON{"name": d.Name}, "spec": spec})
	d.YAML = string(out)
	return frame.Page{Template: "rollout-start", Title: "Roll out a boot configuration", Data: d}, err
}

// readyProfiles returns board profiles that turn on memory limits on the fleet's Raspberry Pis. When
// applied, each adds to the existing profile.
func readyProfiles(a *frame.Request) string {
	names := map[string]bool{}
	for n := range a.Nodes() {
		if p := n.Labels[fleet.LabelProfile]; strings.HasPrefix(p, "raspberrypi-") {
			names[p] = true
		}
	}
	if len(names) == 0 {
		names["raspberrypi-4"] = true
	}
	var docs []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		docs = append(docs, "apiVersion: "+fleet.Group+"/"+fleet.Version+"\nkind: BoardProfile\nmetadata:\n  name: "+
			name+"\nspec:\n  boot:\n    backend: rpi-config-txt\n    cmdline:\n      add: [cgroup_enable=memory, "+
			"cgroup_memory=1]\n")
	}
	return strings.Join(docs, "---\n")
}

// numberOr returns the number in a text, or else the text, which the API refuses.
func numberOr(text string) any {
	var n int
	if err := yaml.Unmarshal([]byte(text), &n); err != nil {
		return text
	}
	return n
}
