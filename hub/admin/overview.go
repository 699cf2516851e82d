package admin

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A tile is one count of the overview.
type tile struct {
	Label, Value, Note, Href string
	Kind                     string // of a pill
}

// A worry is something that needs attention.
type worry struct {
	Pill        pill
	Name, Where string
	Href        string
	Why         string
	Since       *moment
	since       time.Time
}

// worries of one kind; More is how many are not shown.
type worries struct {
	Title string
	Items []worry
	More  int
	Href  string
}

func (w *worries) add(v worry) { w.Items = append(w.Items, v) }

// few is how many worries of a kind the overview shows.
const few = 12

// settle puts the newest first and cuts the list short: what changed last is why
// somebody looks.
func (w worries) settle() worries {
	slices.SortStableFunc(w.Items, func(a, b worry) int {
		return cmp.Or(cmp.Compare(rank(a.Pill.Kind), rank(b.Pill.Kind)), b.since.Compare(a.since))
	})
	if len(w.Items) > few {
		w.More, w.Items = len(w.Items)-few, w.Items[:few]
	}
	return w
}

func rank(kind string) int { return slices.Index([]string{"bad", "warn", "idle", "ok"}, kind) }

type overviewData struct {
	Tiles   []tile
	Worries []worries
	Jobs    []jobRow // in progress
	Empty   bool     // no node yet
	MayAdd  bool
	HubURL  string
}

// overview shows first what needs attention.
func overview(a *ask) (page, error) {
	d := overviewData{Empty: a.Len(state.Nodes) == 0, MayAdd: a.may("create", "jointokens"), HubURL: a.hubURL}
	inSites, siteTile := siteWorries(a)
	inNodes, nodeTile := nodeWorries(a)
	inPods, podTile := podWorries(a)
	inWork, workTile := workloadWorries(a)
	d.Tiles = []tile{nodeTile, siteTile, workTile, podTile}
	for _, w := range []worries{inSites, inNodes, inWork, inPods} {
		if len(w.Items) > 0 {
			d.Worries = append(d.Worries, w.settle())
		}
	}
	for _, j := range a.jobs.all() {
		j.mu.Lock()
		if j.Ended.IsZero() {
			d.Jobs = append(d.Jobs, jobRowOf(j, a.now))
		}
		j.mu.Unlock()
	}
	return page{Template: "overview", Title: "Overview", Watch: []string{"nodes", "sites", "pods", "workloads", jobsTopic}, Data: d}, nil
}

func siteWorries(a *ask) (worries, tile) {
	w := worries{Title: "Sites", Href: "/sites"}
	total, normal := 0, 0
	for site := range state.Each[*fleet.Site](a.Snapshot, state.Sites, "") {
		total++
		st := site.Status
		if st.State == fleet.SiteNormal || st.State == "" {
			normal++
			if st.Held == "" && st.Waiting == 0 {
				continue
			}
		}
		v := worry{Pill: sitePill(site), Name: site.Name, Href: "/sites#" + url.PathEscape(site.Name), Why: siteWhy(site)}
		if v.Pill.Kind == "ok" {
			v.Pill = pill{"warn", "Evicting"}
			if st.Held != "" {
				v.Pill.Text = "Held"
			}
		}
		if st.Since != nil && st.State != fleet.SiteNormal {
			v.since, v.Since = st.Since.Time, at(st.Since.Time, a.now)
		}
		w.add(v)
	}
	t := tile{Label: "Sites", Value: fmt.Sprintf("%d/%d", normal, total), Note: "normal", Href: "/sites", Kind: "ok"}
	if normal < total {
		t.Kind = "bad"
	}
	return w, t
}

func nodeWorries(a *ask) (worries, tile) {
	w := worries{Title: "Nodes", Href: "/nodes?status=attention"}
	total, ready := 0, 0
	for n := range a.Nodes() {
		total++
		if state.ReadyOf(n) == corev1.ConditionTrue {
			ready++
			if len(unhealthy(n)) == 0 { // cordoned is what somebody wanted
				continue
			}
		}
		why, since := nodeWhy(a.Snapshot, n)
		w.add(worry{Pill: nodePill(n), Name: n.Name, Where: state.SiteOf(n), Href: nodeHref(n.Name), Why: why, since: since, Since: at(since, a.now)})
	}
	t := tile{Label: "Nodes", Value: fmt.Sprintf("%d/%d", ready, total), Note: "ready", Href: "/nodes", Kind: "ok"}
	if ready < total {
		t.Kind = "bad"
	}
	return w, t
}

func podWorries(a *ask) (worries, tile) {
	w := worries{Title: "Pods", Href: "/pods?status=attention"}
	total, running := 0, 0
	kind := "ok"
	for p := range a.Pods("") {
		if p.Status.Phase != corev1.PodSucceeded {
			total++
		}
		why, bad := podTrouble(a.Snapshot, p, a.now)
		if why == "" {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
			continue
		}
		if rank(bad) < rank(kind) {
			kind = bad
		}
		since := p.CreationTimestamp.Time
		w.add(worry{
			Pill: pill{bad, podLineOf(p, a.now).Status}, Name: state.Display(p), Where: p.Spec.NodeName, Href: podHref(p), Why: why, since: since, Since: at(since, a.now),
		})
	}
	return w, tile{Label: "Pods", Value: fmt.Sprintf("%d/%d", running, total), Note: "running", Href: "/pods", Kind: kind}
}

func workloadWorries(a *ask) (worries, tile) {
	w := worries{Title: "Workloads", Href: "/workloads"}
	total, good := 0, 0
	for d := range state.Each[*appsv1.Deployment](a.Snapshot, state.Deployments, "") {
		total++
		r := deploymentRow(d, a.now)
		if r.Pill.Kind == "ok" || r.Pill.Kind == "idle" {
			good++
		}
		if r.Why != "" && r.Pill.Kind == "bad" {
			w.add(worry{Pill: r.Pill, Name: r.Name, Href: r.Href, Why: r.Why, since: d.CreationTimestamp.Time, Since: r.Age})
		}
	}
	for d := range state.Each[*appsv1.DaemonSet](a.Snapshot, state.DaemonSets, "") {
		total++
		if r := daemonSetRow(d, a.now); r.Pill.Kind == "ok" || r.Pill.Kind == "idle" {
			good++
		}
	}
	t := tile{Label: "Workloads", Value: fmt.Sprintf("%d/%d", good, total), Note: "complete", Href: "/workloads", Kind: "ok"}
	if good < total {
		t.Kind = "warn"
	}
	return w, t
}
