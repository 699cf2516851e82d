package settings

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

type auditRow struct {
	When    *format.Moment
	Times   string // of one that stands for several: how many, and for how long; "": it is one
	Who     string
	From    string // how, and from which address
	Did     string
	Pill    frame.Pill
	Message string
}

type auditData struct {
	Search  string
	Filter  bool // something is left out
	Results []frame.Option
	Kinds   []frame.Option
	Sources []frame.Option
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
	{"page", "Page", []string{"page", "session", "password", "setup link"}},
	{"api", "API", []string{"API", "token", "certificate"}},
	{"command", "Command line", []string{"command line"}}, {"device", "Devices", []string{"join token"}},
}

// kinds are what somebody may look for.
var kinds = []struct {
	name, text                 string
	verbs, notVerbs, resources []string
}{
	{name: "change", text: "Changes", notVerbs: []string{"get", "list", "watch", "connect", "renew"}},
	{name: "secret", text: "Secrets read", verbs: []string{"get", "list", "watch"}, resources: []string{"secrets"}},
	{name: "enter", text: "Commands in pods", resources: []string{"pods/exec", "pods/attach", "pods/portforward"}},
	{name: "login", text: "Logins, people, tokens", resources: []string{"sessions", "users", "apitokens", "jointokens",
		"kubeconfigs", "clientcertificates", "account"}},
	{name: "device", text: "Joins and certificates", resources: []string{"enrolments", "jointokens", "authority"}},
	{name: "hub", text: "Backups and the hub", resources: []string{"backups", "audit", "settings", "authority"}},
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

// Audit lists who changed what, and what was refused, the newest first.
func Audit(c *frame.Call) error {
	search, result, from := strings.TrimSpace(c.QueryParam("q")), c.QueryParam("result"), c.QueryParam("from")
	q := store.AuditQuery{Words: strings.Fields(strings.ToLower(search)), Refused: result == "refused",
		Limit: auditRows + 1}
	q.Before, _ = strconv.ParseInt(c.QueryParam("before"), 10, 64)
	kind, kindChoices := c.QueryParam("kind"), [][2]string{{"", "Everything"}}
	for _, k := range kinds {
		kindChoices = append(kindChoices, [2]string{k.name, k.text})
		if k.name == kind {
			q.Verbs, q.NotVerbs, q.Resources = k.verbs, k.notVerbs, k.resources
		}
	}
	choices := [][2]string{{"", "Any source"}}
	for _, s := range sources {
		choices = append(choices, [2]string{s.name, s.text})
		if s.name == from {
			q.Via = s.via
		}
	}
	records, err := c.Archive.FindAudits(c.Request().Context(), q)
	if err != nil {
		return c.Refuse("No audit", err)
	}
	d := auditData{
		Search: search, Filter: search != "" || q.Refused || q.Via != nil || kind != "",
		Kinds: frame.Options(kind, kindChoices...), Sources: frame.Options(from, choices...),
		Results: frame.Options(result, [2]string{"", "All"}, [2]string{"refused", "Only what was refused"}),
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
		if kind != "" {
			v.Set("kind", kind)
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
	now := c.Now()
	for _, r := range records {
		d.Rows = append(d.Rows, auditRowOf(r, now))
	}
	return c.ShowPage(http.StatusOK, frame.Page{Template: "audit", Title: "Audit", Data: d})
}

func auditRowOf(r store.Audit, now time.Time) auditRow {
	row := auditRow{When: format.Time(r.At, now), Who: cmp.Or(r.Who, "nobody known"), From: sourceOf(r.Via),
		Did: deed(r), Message: r.Message, Pill: frame.Pill{Kind: "ok", Text: "Done"}}
	if r.Count > 1 {
		row.Times = fmt.Sprintf("%d times in %s", r.Count, format.Duration(r.Until.Sub(r.At)))
	}
	if r.Source != "" {
		row.From += ", " + r.Source
	}
	switch {
	case r.Code >= 500:
		row.Pill = frame.Pill{Kind: "bad", Text: "Failed"}
	case r.Code >= 400:
		row.Pill = frame.Pill{Kind: "warn", Text: "Refused"}
	}
	return row
}

// A phrase is what somebody did, and what somebody wanted to do.
type phrase struct{ did, do string }

var (
	verbs = map[string]phrase{
		"create": {"created", "create"}, "update": {"changed", "change"}, "patch": {"changed", "change"},
		"delete":           {"deleted", "delete"},
		"deletecollection": {"deleted every", "delete every"}, "revoke": {"revoked", "revoke"},
		"get": {"read", "read"}, "list": {"listed", "list"}, "watch": {"watched", "watch"},
		"restore": {"restored", "restore"}, "resume": {"resumed", "resume"},
		"renew": {"renewed", "renew"}, "connect": {"connected as", "connect as"}, "protect": {"protected", "protect"},
		"unprotect": {"unprotected", "unprotect"}, "rotate": {"rotated", "rotate"},
	}
	// deeds are what has a better word than its verb.
	deeds = map[string]phrase{
		"create sessions": {"logged in", "log in"}, "delete sessions": {"logged out", "log out"},
		"renew enrolments":          {"renewed the certificate of node", "renew the certificate of node"},
		"get audit":                 {"read the audit,", "read the audit,"},
		"begin audit":               {"began the chain of the audit", "begin the chain of the audit"},
		"list secrets":              {"read every secret", "read every secret"},
		"watch secrets":             {"watched every secret", "watch every secret"},
		"resume nodes":              {"resumed desired state", "resume desired state"},
		"restore backups":           {"restored the backup", "restore the backup"},
		"create enrolments":         {"joined as node", "join as node"},
		"create pods/exec":          {"ran a command in pod", "run a command in pod"},
		"create pods/attach":        {"attached to pod", "attach to pod"},
		"create pods/portforward":   {"forwarded a port to pod", "forward a port to pod"},
		"create pods/eviction":      {"evicted pod", "evict pod"},
		"create jointokens":         {"made a join token", "make a join token"},
		"create apitokens":          {"made an API token:", "make an API token:"},
		"update views":              {"saved view", "save view"},
		"update account":            {"changed their own password", "change their own password"},
		"create backups":            {"made a backup:", "make a backup:"},
		"create kubeconfigs":        {"made a kubeconfig of", "make a kubeconfig of"},
		"create clientcertificates": {"made a client certificate of", "make a client certificate of"},
	}
	things = map[string]string{"authority": "the certificate authority", "jointokens": "join token",
		"apitokens": "API token", string(state.JoinRequests): "request to join"}
)

// thingOf is how people call one object of a resource.
func thingOf(resource string) string {
	if name := state.Kind(resource).GroupVersionKind().Kind; name != "" && things[resource] == "" {
		return strings.ToLower(camel.ReplaceAllString(name, "$1 $2")) // config map
	}
	return cmp.Or(things[resource], strings.TrimSuffix(resource, "s"))
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// deed says what was done to what, or what somebody wanted to do.
func deed(r store.Audit) string {
	p, ok := deeds[r.Verb+" "+r.Resource]
	if !ok {
		if p, ok = verbs[r.Verb]; !ok {
			p = phrase{r.Verb, r.Verb}
		}
		resource, sub, _ := strings.Cut(r.Resource, "/")
		thing := thingOf(resource)
		if sub != "" {
			thing = sub + " of " + thing
		}
		p.did, p.do = p.did+" "+thing, p.do+" "+thing
	}
	text := p.did
	if r.Code >= 400 {
		text = "wanted to " + p.do
	}
	switch {
	case r.Namespace != "" && r.Name == "":
		text += " in " + r.Namespace
	case r.Namespace != "":
		text += " " + r.Namespace + "/" + r.Name
	case r.Name != "":
		text += " " + r.Name
	}
	return text
}
