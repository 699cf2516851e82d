package admin

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

type auditRow struct {
	When    *moment
	Who     string
	From    string // how, and from which address
	Did     string
	Pill    pill
	Message string
}

type auditData struct {
	Search  string
	Filter  bool // something is left out
	Results []option
	Sources []option
	Rows    []auditRow
	Older   string // address of what was before; "": nothing
	Newest  string // address of the first page; "": this is it
}

const auditRows = 50

// sources are where changes come from, with how the records say it: those of the
// page also as hubs before said it, by its session.
var sources = []struct {
	name, text string
	via        []string
}{
	{"page", "Page", []string{"page", "session", "password", "setup link"}}, {"api", "API", []string{"API", "token", "certificate"}},
	{"command", "Command line", []string{"command line"}}, {"device", "Devices", []string{"join token"}},
}

// sourceOf says where a change comes from.
func sourceOf(via string) string {
	switch via {
	case "session":
		return "page"
	case "password", "setup link":
		return "page, " + via
	case "token", "certificate":
		return "API, " + via
	case "join token":
		return "device, " + via
	}
	return via
}

// auditView lists who changed what, and what was refused, the newest first.
func (c *call) auditView() error {
	search, result, from := strings.TrimSpace(c.QueryParam("q")), c.QueryParam("result"), c.QueryParam("from")
	q := AuditQuery{Words: strings.Fields(strings.ToLower(search)), Refused: result == "refused", Limit: auditRows + 1}
	q.Before, _ = strconv.ParseInt(c.QueryParam("before"), 10, 64)
	choices := [][2]string{{"", "Any source"}}
	for _, s := range sources {
		choices = append(choices, [2]string{s.name, s.text})
		if s.name == from {
			q.Via = s.via
		}
	}
	records, err := c.House.Audits(c.Request().Context(), q)
	if err != nil {
		return c.refuse("No audit", err)
	}
	d := auditData{
		Search: search, Filter: search != "" || q.Refused || q.Via != nil, Sources: options(from, choices...),
		Results: options(result, [2]string{"", "All"}, [2]string{"refused", "Only what was refused"}),
	}
	address := func(before int64) string {
		v := url.Values{}
		if search != "" {
			v.Set("q", search)
		}
		if result != "" {
			v.Set("result", result)
		}
		if from != "" {
			v.Set("from", from)
		}
		if before > 0 {
			v.Set("before", strconv.FormatInt(before, 10))
		}
		return "/audit?" + v.Encode()
	}
	if q.Before > 0 {
		d.Newest = address(0)
	}
	if len(records) > auditRows {
		records = records[:auditRows]
		d.Older = address(records[auditRows-1].ID)
	}
	now := time.Now()
	for _, r := range records {
		d.Rows = append(d.Rows, auditRowOf(r, now))
	}
	return c.plain(http.StatusOK, page{Template: "audit", Title: "Audit", Data: d})
}

func auditRowOf(r AuditRecord, now time.Time) auditRow {
	row := auditRow{When: at(r.At, now), Who: or(r.Who, "nobody known"), From: sourceOf(r.Via), Did: deed(r.Verb, r.What, r.Code >= 400), Message: r.Message, Pill: pill{"ok", "Done"}}
	if r.Source != "" {
		row.From += ", " + r.Source
	}
	switch {
	case r.Code >= 500:
		row.Pill = pill{"bad", "Failed"}
	case r.Code >= 400:
		row.Pill = pill{"warn", "Refused"}
	}
	return row
}

// A phrase is what somebody did, and what somebody wanted to do.
type phrase struct{ did, do string }

var (
	verbs = map[string]phrase{
		"create": {"created", "create"}, "update": {"changed", "change"}, "patch": {"changed", "change"}, "delete": {"deleted", "delete"},
		"deletecollection": {"deleted every", "delete every"}, "revoke": {"revoked", "revoke"},
	}
	// deeds are what has a better word than its verb.
	deeds = map[string]phrase{
		"create sessions": {"logged in", "log in"}, "create enrolments": {"joined as node", "join as node"}, "create pods/exec": {"ran a command in pod", "run a command in pod"},
		"create pods/attach": {"attached to pod", "attach to pod"}, "create pods/portforward": {"forwarded a port to pod", "forward a port to pod"},
		"create pods/eviction": {"evicted pod", "evict pod"}, "create jointokens": {"made a join token", "make a join token"}, "create apitokens": {"made an API token:", "make an API token:"},
		"update account": {"changed their own password", "change their own password"}, "create backups": {"made a backup:", "make a backup:"}, "create kubeconfigs": {"made a kubeconfig of", "make a kubeconfig of"},
	}
	things = map[string]string{"jointokens": "join token", "apitokens": "API token", "boardprofiles": "board profile", "daemonsets": "daemon set", "replicasets": "replica set", "configmaps": "config map"}
)

// deed says what was done to what, or what somebody wanted to do.
func deed(verb, what string, refused bool) string {
	resource, rest, _ := strings.Cut(what, " ")
	p, ok := deeds[verb+" "+resource]
	if !ok {
		if p, ok = verbs[verb]; !ok {
			p = phrase{verb, verb}
		}
		resource, sub, _ := strings.Cut(resource, "/")
		thing := or(things[resource], strings.TrimSuffix(resource, "s"))
		if sub != "" {
			thing = sub + " of " + thing
		}
		p.did, p.do = p.did+" "+thing, p.do+" "+thing
	}
	text := p.did
	if refused {
		text = "wanted to " + p.do
	}
	return strings.TrimSpace(text + " " + rest)
}
