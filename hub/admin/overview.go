package admin

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A tile is one count of the overview.
type tile struct {
	Label, Value, Note, Href string
	Kind                     string // of a pill
}

// A problem is something that needs attention.
type problem struct {
	Pill        pill
	Name, Where string
	Href        string
	Why         string
	Since       *moment

	rank  int
	since time.Time
	tell  func(*problem) // the rest of it, once it is known to be shown
}

// problems of one kind; More is how many are not shown.
type problems struct {
	Title string
	Items []problem
	More  int
	Href  string
}

// few is how many problems of a kind the overview shows.
const few = 12

// add keeps a problem if it is among the few that are shown: the worst and of those
// the newest, since what changed last is why somebody looks. However many there are,
// only those are told of.
func (w *problems) add(kind string, since time.Time, tell func(*problem)) {
	v := problem{rank: rank(kind), since: since, tell: tell}
	i := len(w.Items)
	for i > 0 && (v.rank < w.Items[i-1].rank || v.rank == w.Items[i-1].rank && v.since.After(w.Items[i-1].since)) {
		i--
	}
	if len(w.Items) == few {
		w.More++
		if i == few {
			return
		}
		w.Items = w.Items[:few-1]
	}
	w.Items = slices.Insert(w.Items, i, v)
}

// told tells of those that are shown.
func (w problems) told(now time.Time) problems {
	for i := range w.Items {
		v := &w.Items[i]
		v.Since = at(v.since, now)
		v.tell(v)
	}
	return w
}

func rank(kind string) int { return slices.Index([]string{"bad", "warn", "idle", "ok"}, kind) }

type overviewData struct {
	Tiles    []tile
	Problems []problems
	Jobs     []jobRow // in progress
	Goings   []going
	Waiting  int  // devices that wait for approval
	Empty    bool // no node yet
	MayAdd   bool
	HubURL   string
}

// overview shows first what needs attention.
func overview(a *request) (page, error) {
	d := overviewData{Waiting: waitingCount(a), Empty: a.Len(state.Nodes) == 0, MayAdd: a.may("create", "jointokens"), HubURL: a.hubURL}
	inSites, siteTile := siteProblems(a)
	inNodes, nodeTile := nodeProblems(a)
	inPods, podTile := podProblems(a)
	inWork, workTile := workloadProblems(a)
	d.Tiles = []tile{nodeTile, siteTile, workTile, podTile}
	for _, w := range []problems{inSites, inNodes, inWork, inPods} {
		if len(w.Items) > 0 {
			d.Problems = append(d.Problems, w.told(a.now))
		}
	}
	d.Goings = goings(a)
	for _, j := range a.jobs.all() {
		j.mu.Lock()
		if j.Ended.IsZero() {
			d.Jobs = append(d.Jobs, jobRowOf(j, a.now))
		}
		j.mu.Unlock()
	}
	return page{Template: "overview", Title: "Overview", Watch: []string{"nodes", "sites", "pods", "workloads", "requests", jobsTopic}, Data: d}, nil
}

func siteProblems(a *request) (problems, tile) {
	w := problems{Title: "Sites", Href: "/sites"}
	total, normal := 0, 0
	for site := range state.Each[*fleet.Site](a.Snapshot, state.Sites, "") {
		total++
		st := site.Status
		if st.State == fleet.SiteNormal || st.State == "" {
			normal++
			if st.HeldReason == "" && st.Waiting == 0 {
				continue
			}
		}
		p := sitePill(site)
		if p.Kind == "ok" {
			p = pill{"warn", "Evicting"}
			if st.HeldReason != "" {
				p.Text = "Held"
			}
		}
		var since time.Time
		if st.Since != nil && st.State != fleet.SiteNormal {
			since = st.Since.Time
		}
		w.add(p.Kind, since, func(v *problem) {
			v.Pill, v.Name, v.Href, v.Why = p, site.Name, siteHref(site.Name), siteWhy(site)
		})
	}
	t := tile{Label: "Sites", Value: fmt.Sprintf("%d/%d", normal, total), Note: "normal", Href: "/sites", Kind: "ok"}
	if normal < total {
		t.Kind = "bad"
	}
	return w, t
}

func nodeProblems(a *request) (problems, tile) {
	w := problems{Title: "Nodes", Href: "/nodes?status=attention"}
	total, ready := 0, 0
	for n := range a.Nodes() {
		total++
		if state.ReadyOf(n) == corev1.ConditionTrue {
			ready++
			if len(unhealthy(n)) == 0 { // cordoned is what somebody wanted
				continue
			}
		}
		w.add(nodePill(n).Kind, nodeSince(n), func(v *problem) {
			v.Pill, v.Name, v.Where, v.Href = nodePill(n), n.Name, state.SiteOf(n), nodeHref(n.Name)
			v.Why, _ = nodeWhy(a.Snapshot, n)
		})
	}
	t := tile{Label: "Nodes", Value: fmt.Sprintf("%d/%d", ready, total), Note: "ready", Href: "/nodes", Kind: "ok"}
	if ready < total {
		t.Kind = "bad"
	}
	return w, t
}

func podProblems(a *request) (problems, tile) {
	w := problems{Title: "Pods", Href: "/pods?status=attention"}
	total, running := 0, 0
	kind := "ok"
	for p := range a.Pods("") {
		if p.Status.Phase != corev1.PodSucceeded {
			total++
		}
		f := podFaultOf(a.Snapshot, p, a.now)
		bad := f.kind
		if bad == "" {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
			continue
		}
		if rank(bad) < rank(kind) {
			kind = bad
		}
		w.add(bad, podSince(p, f.dark), func(v *problem) {
			v.Pill, v.Name, v.Where, v.Href = pill{bad, podLineOf(p, a.now).Status}, state.Display(p), p.Spec.NodeName, podHref(p)
			v.Why, _ = podTrouble(a.Snapshot, p, a.now)
		})
	}
	return w, tile{Label: "Pods", Value: fmt.Sprintf("%d/%d", running, total), Note: "running", Href: "/pods", Kind: kind}
}

func workloadProblems(a *request) (problems, tile) {
	w := problems{Title: "Workloads", Href: "/workloads"}
	total, good := 0, 0
	for d := range state.Each[*appsv1.Deployment](a.Snapshot, state.Deployments, "") {
		total++
		r := deploymentRow(d, a.now)
		if r.Pill.Kind == "ok" || r.Pill.Kind == "idle" {
			good++
		}
		if r.Why != "" && r.Pill.Kind == "bad" {
			w.add(r.Pill.Kind, d.CreationTimestamp.Time, func(v *problem) { v.Pill, v.Name, v.Href, v.Why = r.Pill, r.Name, r.Href, r.Why })
		}
	}
	for d := range state.Each[*appsv1.DaemonSet](a.Snapshot, state.DaemonSets, "") {
		total++
		if r := daemonSetRow(d, a.now); r.Pill.Kind == "ok" || r.Pill.Kind == "idle" {
			good++
		}
	}
	for o := range state.Each[*appsv1.StatefulSet](a.Snapshot, state.StatefulSets, "") {
		total++
		r := statefulSetRow(o, a.now)
		if r.Pill.Kind == "ok" || r.Pill.Kind == "idle" {
			good++
		}
		if r.Pill.Kind == "bad" {
			w.add(r.Pill.Kind, o.CreationTimestamp.Time, func(v *problem) { v.Pill, v.Name, v.Href, v.Why = r.Pill, r.Name, r.Href, r.Why })
		}
	}
	for j := range state.Each[*batchv1.Job](a.Snapshot, state.Jobs, "") {
		r := taskRowOf(j, a.now)
		if end := state.JobEnd(j); r.Pill.Kind == "bad" && (end == nil || a.now.Sub(end.LastTransitionTime.Time) < 24*time.Hour) {
			w.add(r.Pill.Kind, j.CreationTimestamp.Time, func(v *problem) { v.Pill, v.Name, v.Href, v.Why = r.Pill, r.Name, r.Href, r.Why })
		}
	}
	t := tile{Label: "Workloads", Value: fmt.Sprintf("%d/%d", good, total), Note: "complete", Href: "/workloads", Kind: "ok"}
	if good < total {
		t.Kind = "warn"
	}
	return w, t
}
