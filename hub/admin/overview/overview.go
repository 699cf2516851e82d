// Package overview shows the first page: tiles, the picture of the fleet and its replay, what is in
// progress, and incidents; and the list of events.
package overview

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/admin/finding"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/incidents"
	"flotilla.dev/hub/admin/nodes"
	"flotilla.dev/hub/admin/workloads"
	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A tile is one count of the overview.
type tile struct {
	Label, Value, Note, Href string
	Kind                     string // kind of a pill
	full                     bool
}

type overviewData struct {
	Tiles []tile
	incidents.Board
	Jobs    []frame.JobRow // actions in progress
	Goings  []nodes.Drain
	Picture fleetPicture
	Replay  replay
	Well    bool   // no incident is open and everything runs
	Yet     string // what is still starting
	Waiting int    // devices that wait for approval
	Empty   bool   // there is no node
	MayAdd  bool
	HubURL  string
}

// Show shows the overview.
func Show(a *frame.Request) (frame.Page, error) {
	d := overviewData{Waiting: nodes.WaitingCount(a), Empty: a.Len(state.Nodes) == 0,
		MayAdd: a.May("create", "jointokens"), HubURL: a.HubURL}
	var err error
	if d.Replay, err = replayOf(a); err != nil {
		return frame.Page{}, err
	}
	d.Picture = pictureOf(a, &d.Replay)
	d.Board = incidents.BoardOf(a)
	if d.Replay.Past {
		d.Tiles = tilesAt(&d.Picture)
		return frame.Page{Template: "overview", Title: "Overview at " + d.Replay.At, Tab: d.Tab.Kind, Poll: 60,
			Watch: []string{frame.IncidentsTopic}, Data: d}, nil
	}
	nodesUp, podsUp := nodeTile(a), podTile(a)
	d.Tiles = []tile{nodesUp, siteTile(a), workloadTile(a), podsUp}
	d.Well = nodesUp.full && podsUp.full && len(d.Cards) == 0
	d.Yet = fmt.Sprintf("%s nodes are ready, and %s pods run: the others are still starting.", nodesUp.Value,
		podsUp.Value)
	d.Goings = nodes.Drains(a)
	for _, r := range frame.JobRows(a) {
		if r.Took == "" {
			d.Jobs = append(d.Jobs, r)
		}
	}
	poll := 0
	if d.Provisional {
		poll = 10
	}
	return frame.Page{Template: "overview", Title: d.Tab.Title("Overview"), Tab: d.Tab.Kind, Poll: poll,
		Watch: []string{frame.IncidentsTopic, "nodes", "sites", "pods", "workloads", "requests", frame.JobsTopic},
		Data:  d}, nil
}

func siteTile(a *frame.Request) tile {
	total, normal := 0, 0
	for site := range state.Each[*fleet.Site](a.Snapshot, state.Sites, "") {
		total++
		if !diagnose.Disrupted(site) {
			normal++
		}
	}
	return countTile("Sites", "normal", "/sites", "bad", normal, total)
}

// countTile shows "good/all"; kind is the pill's kind unless all are good.
func countTile(label, note, href, kind string, good, all int) tile {
	t := tile{Label: label, Value: fmt.Sprintf("%d/%d", good, all), Note: note, Href: href, Kind: kind,
		full: good == all}
	if t.full {
		t.Kind = "ok"
	}
	return t
}

func nodeTile(a *frame.Request) tile {
	total, ready := 0, 0
	for n := range a.Nodes() {
		total++
		if state.ReadyOf(n) == corev1.ConditionTrue {
			ready++
		}
	}
	return countTile("Nodes", "ready", "/nodes", "bad", ready, total)
}

// podTile counts the pods that should run.
func podTile(a *frame.Request) tile {
	total, running := 0, 0
	kind := "ok"
	for p := range a.Pods("") {
		if !diagnose.ShouldRun(p) {
			continue
		}
		total++
		switch f := finding.PodFault(a.Snapshot, p, a.Now); {
		case f.Cause != "":
			if k := finding.PillKind(f); frame.Rank(k) < frame.Rank(kind) {
				kind = k
			}
		case p.Status.Phase == corev1.PodRunning:
			running++
		}
	}
	t := countTile("Pods", "running", "/pods", kind, running, total)
	t.Kind = kind // a starting pod is not trouble, a running one may be
	return t
}

func workloadTile(a *frame.Request) tile {
	total, good := 0, 0
	for _, l := range frame.ListedWorkloads {
		for o := range a.All(l.Kind, "") {
			stage := diagnose.ProgressOf(o).Stage
			if stage == "" || !frame.IsListed(o) {
				continue // a Job, or a ReplicaSet of a Deployment
			}
			if total++; !workloads.StagePill(stage).Troubled() {
				good++
			}
		}
	}
	return countTile("Workloads", "complete", "/workloads", "warn", good, total)
}
