package admin

import (
	"fmt"
	"iter"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/admin/nodes"
	"flotilla.dev/hub/admin/workloads"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/web/manual"
)

const (
	maxAsked    = 100 // used bytes of a question
	mostFinds   = 20
	mostOfOne   = 8 // finds of one kind, so that many pods leave room for other kinds
	mostActedOn = 4 // objects for which one action is offered
)

// destinations are the fixed pages, with other words for them.
var destinations = []struct{ name, also, href string }{
	{"Overview", "home attention", "/"}, {"Incidents", "list of trouble alerts", "/incidents"},
	{"Nodes", "list of devices", "/nodes"}, {"Sites", "list", "/sites"},
	{"Workloads", "list of deployments, daemon sets, stateful sets, cron jobs", "/workloads"},
	{"Pods", "list of containers", "/pods"},
	{"Events", "history log list", "/events"}, {"Evictions", "pods that moved were evicted", "/events?q=evict"},
	{"Add a device", "join token new node", "/devices/add"},
	{"Devices that wait to join", "approve", frame.WaitingPath},
	{"Actions", "drain progress jobs", "/actions"}, {"Boards", "profiles", "/boards"},
	{"Audit log", "who changed what", "/audit"},
	{"Settings", "people users backup certificates webhook mail", "/settings"},
	{"Your account", "password api token kubeconfig", "/account"},
	{"Apply YAML", "paste manifest create", "/yaml"}, {"Manual", "help documentation", manual.Root},
}

// mayOpen tells whether the role may open a page.
func mayOpen(c *frame.Call, path string) bool {
	path, _, _ = strings.Cut(path, "?")
	for _, r := range c.Routes() {
		if r.Method == http.MethodGet && r.Path == path {
			return r.Verb == "" || c.Allow(c.User.Role, r.Verb, r.Resource)
		}
	}
	return false
}

// found lists what a question may mean, the best first, among what the role may see.
func found(a *frame.Request, question string, tokens []store.JoinToken, views []find,
	mayOpen func(path string) bool) []find {
	question = strings.ToValidUTF8(question[:min(len(question), maxAsked)], "")
	words := strings.Fields(strings.ToLower(question))
	if len(words) == 0 {
		return nil
	}
	words = words[:min(len(words), 8)]
	var f finds
	for _, v := range views {
		v.score = weigh(scored(words, "view", v.Name, v.Where), 6)
		f.add(v)
	}
	for _, p := range destinations {
		if score := scored(words, "page", p.name, p.also); score > 0 && mayOpen(p.href) {
			f.add(find{Kind: "Page", Name: p.name, Href: p.href, score: weigh(score, 9)})
		}
	}
	findLists(a, &f, words)
	findActions(a, &f, words)
	findObjects(a, &f, words)
	for _, t := range tokens {
		f.add(find{"Join token", t.ID, format.Join(t.Site, t.Node), "/settings#tokens",
			weigh(scored(words, "token", t.ID, t.Site, t.Node), 1)})
	}
	for _, h := range frame.Handbook().Find(question, 3) {
		of := h.Page
		if of == h.Title {
			of = ""
		}
		f.add(find{"Manual", h.Title, of, h.Href, 3})
	}
	return f.best()
}

// findLists finds filtered lists, as in "unknown nodes" or "pending".
func findLists(a *frame.Request, f *finds, words []string) {
	for _, l := range []struct {
		kind    state.Kind
		title   string
		key     string // key of the filter in the address
		choices [][2]string
		count   func(choice string) int
	}{
		{state.Nodes, "Nodes", "status", frame.NodeStatuses, func(choice string) (n int) {
			for o := range a.Nodes() {
				if nodes.HasStatus(o, choice) {
					n++
				}
			}
			return n
		}},
		{state.Pods, "Pods", "status", frame.PodStatuses, func(choice string) (n int) {
			for p := range a.Pods("") {
				if workloads.PodHasStatus(a, p, choice) {
					n++
				}
			}
			return n
		}},
		{state.Sites, "Sites", "state", frame.SiteStates, func(choice string) (n int) {
			for s := range state.Each[*fleet.Site](a.Snapshot, state.Sites, "") {
				if nodes.SiteHasState(s, choice, a.Now) {
					n++
				}
			}
			return n
		}},
	} {
		if !a.May("list", string(l.kind)) {
			continue
		}
		list := strings.ToLower(l.title)
		rest := slices.DeleteFunc(slices.Clone(words),
			func(w string) bool { return w == list || w+"s" == list || w == "that" || w == "are" || w == "is" })
		asked := strings.Join(rest, " ")
		if len(asked) < 3 {
			continue
		}
		for _, c := range l.choices {
			if c[0] == "" || !strings.HasPrefix(strings.ToLower(c[1]), asked) && !strings.HasPrefix(c[0], asked) {
				continue
			}
			n, score := l.count(c[0]), 1200
			if len(rest) == len(words) { // the question does not name the list
				score = min(n, 1) * 500
			}
			f.add(find{"List", fmt.Sprintf("%s: %s (%d)", l.title, strings.ToLower(c[1]), n), "", "/" + list + "?" +
				url.Values{l.key: {c[0]}}.Encode(), score})
		}
	}
}

// findActions finds actions, as in "drain pi-3" or "hold site oslo". A find leads to the
// action's confirmation.
func findActions(a *frame.Request, f *finds, words []string) {
	for _, act := range a.Actions {
		label := strings.Fields(strings.ToLower(act.Label))
		n := 0
		for n < len(words) && n < len(label) && len(words[n]) > 1 && strings.HasPrefix(label[n], words[n]) {
			n++
		}
		if n == 0 || act.Aside || !a.May(act.Verb, act.Resource) {
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(words[n:]),
			func(w string) bool { return w == act.One || w == string(act.Kind) })
		if len(rest) == 0 {
			f.add(find{"Action", act.Label, "choose one in " + act.Listed, act.List, 400 + 10*n})
			continue
		}
		var best finds
		for o := range of(a, act.Kind) {
			if act.Idle != nil && act.Idle(o) != "" {
				continue
			}
			i := frame.ItemOf(o)
			best.add(find{"Action", act.Label + " " + i.String(), act.One, act.Path() + "?" +
				url.Values{"item": {i.Form()}}.Encode(), weigh(scored(rest, act.One, i.Name, i.Namespace), 9) + 100*n})
		}
		for _, one := range best.best()[:min(len(best.list), mostActedOn)] {
			if one.score > 100*n+9 {
				f.add(one)
			}
		}
	}
}

// of visits the objects of a kind that an action applies to.
func of(a *frame.Request, kind state.Kind) iter.Seq[state.Object] {
	if kind == state.JoinRequests {
		return slices.Values(frame.Objects(nodes.PendingRequests(a.Snapshot)))
	}
	return a.All(kind, "")
}

// foundIn tells whether objects of a kind are found by name. Secrets and objects with generated names
// are not.
func foundIn(a *frame.Request, row *state.Row) bool {
	return row.Group != nil && len(row.Verbs) > 0 && row.Kind != state.Secrets && row.Kind != state.Incidents &&
		!row.Expendable && !row.Conditional && a.May("list", string(row.Kind))
}

// isMade tells whether another object made this one. Such pods and jobs are still found.
func isMade(kind state.Kind, o state.Object) bool {
	return kind != state.Pods && kind != state.Jobs && metav1.GetControllerOf(o) != nil
}

// findPlace returns an object's page or editor, and its rank among equal matches.
func findPlace(kind state.Kind, o state.Object) (href string, rank int) {
	href = frame.ObjectHref(kind, frame.ItemOf(o))
	switch {
	case kind == state.Nodes || kind == state.Sites:
		return href, 8
	case kind == state.Pods:
		return href, 5
	case href != "":
		return href, 7
	case kind.Row().Template != nil || kind == state.CronJobs:
		rank = 2
	}
	return "/yaml" + frame.ObjectURL(kind, o.GetNamespace(), o.GetName()), 4 + rank
}

func findObjects(a *frame.Request, f *finds, words []string) {
	address, isAddress := addressIn(words)
	for _, k := range state.Kinds() {
		row := k.Row()
		if !foundIn(a, row) {
			continue
		}
		kind := strings.ToLower(row.Name)
		also := strings.Join(row.Short, " ")
		for o := range a.All(row.Kind, "") {
			where, score := "", 0
			switch o := o.(type) {
			case *corev1.Node:
				where = state.SiteOf(o)
			case *corev1.Pod:
				where = o.Spec.NodeName
			}
			if isAddress {
				if hasAddress(o, address) {
					score = 100
				}
			} else {
				score = scored(words, kind, o.GetName(), o.GetNamespace(), where, also)
			}
			if score == 0 || isMade(row.Kind, o) {
				continue
			}
			if ns := o.GetNamespace(); ns != "default" {
				where = format.Join(where, ns)
			}
			href, rank := findPlace(row.Kind, o)
			f.add(find{row.Name, o.GetName(), where, href, weigh(score, rank)})
		}
	}
	if a.May("list", string(state.Incidents)) {
		for i := range state.Each[*fleet.Incident](a.Snapshot, state.Incidents, "") {
			where := "over"
			if i.State == fleet.IncidentOpen {
				where = "open"
			}
			// a sentence has many words, so it ranks lower
			f.add(find{"Incident", i.Message, where, frame.IncidentHref(i.Name),
				weigh(scored(words, "incident", i.Message, i.Name, where, string(i.Cause)), 2) / 4})
		}
	}
}

// addressIn returns the search for an IP address, if the question is an address.
func addressIn(words []string) (t search.Term, ok bool) {
	if _, err := netip.ParseAddr(words[0]); err != nil || len(words) != 1 {
		return t, false
	}
	q := search.Parse(search.Nodes, "ip:"+words[0], nil)
	if len(q.Terms) != 1 { // an IPv6 zone may contain any character, such as a quote
		return t, false
	}
	return q.Terms[0], true
}

// hasAddress tells whether an object has the term's address.
func hasAddress(o state.Object, t search.Term) bool {
	switch o := o.(type) {
	case *corev1.Node:
		return nodes.Finder.Has["ip"](nil, t)(o, t)
	case *corev1.Pod:
		return t.Is(o.Status.PodIP)
	}
	return false
}

type findData struct {
	Asked string
	Found []find
}

// findPage shows the finds of a question, or returns them as JSON.
func findPage(c *frame.Call) error {
	a, asked := c.Ask(), strings.TrimSpace(c.QueryParam("q"))
	var tokens []store.JoinToken
	if asked != "" && a.May("list", "jointokens") {
		var err error
		if tokens, err = c.Tokens.JoinTokens(c.Request().Context()); err != nil {
			return c.Refuse("Nothing found", err)
		}
	}
	found := found(a, asked, tokens, viewFinds(c, asked), func(path string) bool { return mayOpen(c, path) })
	if strings.Contains(c.Request().Header.Get("Accept"), frame.PlainJSON) {
		if found == nil {
			found = []find{}
		}
		c.Response().Header().Set("Vary", "Accept")
		return c.JSON(http.StatusOK, found)
	}
	return c.ShowPage(http.StatusOK, frame.Page{Template: "find", Title: "Find",
		Data: findData{asked[:min(len(asked), maxAsked)], found}})
}

// viewFinds returns the user's saved views as finds.
func viewFinds(c *frame.Call, asked string) (all []find) {
	if asked == "" {
		return nil
	}
	for _, v := range c.OwnViews() {
		path, _, _ := strings.Cut(v.Href, "?")
		all = append(all, find{Kind: "View", Name: v.Name, Where: strings.TrimPrefix(path, "/"), Href: v.Href})
	}
	return all
}
