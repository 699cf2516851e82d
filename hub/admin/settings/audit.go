package settings

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/hub/admin/changes"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/bound"
)

type auditRow struct {
	When    *format.Moment
	Times   string // of a record that stands for several: how many, and in which time; "": it is a single one
	Who     string
	From    string // through which interface, and from which address
	Did     string
	Pill    frame.Pill
	Message string
}

type auditData struct {
	Search  string
	Filter  bool // a filter is set
	Results []frame.Option
	Kinds   []frame.Option
	Sources []frame.Option
	Rows    []auditRow
	Older   string // address of the older records; "": there are none
	Newest  string // address of the first page; "": this is it
}

const auditRows = 50

// sources are the choices of the filter by source, with the words in the records, also those of
// earlier versions.
var sources = []struct {
	name, text string
	via        []string
}{
	{"page", "Page", []string{"page", "session", "password", "setup link"}},
	{"api", "API", []string{"API", "token", "certificate"}},
	{"command", "Command line", []string{"command line"}}, {"device", "Devices", []string{"join token"}},
}

// kinds are the choices of the filter by kind.
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

// sourceOf names the interface that a change came through.
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

// Audit lists changes and refusals, newest first.
func Audit(c *frame.Call) error {
	search, result, from := strings.TrimSpace(c.QueryParam("q")), c.QueryParam("result"), c.QueryParam("from")
	q := store.AuditQuery{Words: strings.Fields(strings.ToLower(search)), Refused: result == "refused",
		Limit: auditRows + 1}
	if text := c.QueryParam("before"); text != "" {
		var err error
		if q.Before, err = strconv.ParseInt(text, 10, 64); err != nil || q.Before < 1 {
			return c.Refuse("Not understood", wrongFilter("record", text))
		}
	}
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
	for _, f := range []struct {
		param, value string
		known        bool
	}{{"kind", kind, chosen(kind, kindChoices)},
		{"source", from, chosen(from, choices)}, {"result", result, result == "" || q.Refused}} {
		if !f.known {
			return c.Refuse("Not understood", wrongFilter(f.param, f.value))
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
		Did: changes.Deed(r), Message: r.Message, Pill: frame.Pill{Kind: "ok", Text: "Done"}}
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

// chosen tells whether a value is one of the choices.
func chosen(value string, choices [][2]string) bool {
	return slices.ContainsFunc(choices, func(c [2]string) bool { return c[0] == value })
}

// wrongFilter returns the refusal of a filter's value.
func wrongFilter(param, value string) error {
	return frame.InputError(fmt.Sprintf("The filter's %s “%s” does not exist.", param, bound.Text(value, 60)))
}
