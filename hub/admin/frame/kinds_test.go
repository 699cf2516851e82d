package frame

import (
	"slices"
	"testing"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

// yamlOnly are the kinds that the page shows only as YAML, by choice.
var yamlOnly = []state.Kind{
	state.ConfigMaps, state.ControllerRevisions, state.DeviceReports, state.Endpoints, state.EndpointSlices,
	state.Leases, state.LimitRanges, state.Namespaces,
	state.PodDisruptionBudgets, state.PodTemplates, state.PriorityClasses, state.Claims, state.Volumes,
	state.ResourceQuotas, state.RuntimeClasses, state.Secrets,
	state.ServiceAccounts, state.Services, state.StorageClasses,
}

func TestThePageForgetsNoKindThatTheAPIServes(t *testing.T) {
	for _, k := range state.Kinds() {
		row, how := k.Row(), shownAs(k)
		if row.Group == nil {
			continue
		}
		if (how.topic == "") != slices.Contains(yamlOnly, k) {
			t.Errorf("%s: the page watches %q for it; is it shown as YAML alone by choice: %v", k, how.topic,
				slices.Contains(yamlOnly, k))
		}
		if (how.list == "") != (how.statuses == nil) {
			t.Errorf("%s: its row lacks a part", k)
		}
		if !diagnose.IsWork(k) {
			continue
		}
		if how.list != search.Workloads || how.href(Item{Namespace: "a", Name: "b"}) == "" {
			t.Errorf("%s makes pods, and is not among the workloads", k)
		}
		n := 0
		for _, l := range ListedWorkloads {
			if l.Kind == k {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is %d times in the list of workloads", k, n)
		}
	}
}
