package kube

import (
	"net/http"
	"strings"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/kube/write"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// audit keeps what somebody did to what the request is about, or was refused; note is
// what else there is to say of it. What changed something was remembered by itself: only
// that record of it may be a second late.
func (c *call) audit(note string, err error) {
	if c.Audit == nil {
		return
	}
	c.audited = true
	row := c.row(note, err)
	if c.sub != nil || c.verb == "get" || c.verb == "list" || c.verb == "watch" {
		c.Audit.Record(c.r.Context(), row)
		return
	}
	c.Audit.Note(row)
}

func (c *call) row(note string, err error) store.Audit {
	row := store.Audit{
		Who: c.who.Name, Via: "API", Source: access.Source(c.r), Verb: c.verb, Code: http.StatusOK,
		Resource: c.what(), Namespace: c.namespace, Name: c.name, Message: note,
	}
	if via := access.Via(c.r.Context()); via != "" {
		row.Via = via
	} else if c.who.Via != "" && c.who.Via != "session" { // a page's session in other hands is no page
		row.Via = c.who.Via
	}
	if err != nil {
		row.Code, row.Message = int(statusOf(err).Code), strings.TrimPrefix(note+": "+err.Error(), ": ")
	}
	return row
}

// what is what the request is about, as roles and the audit name it.
func (c *call) what() string {
	if c.sub != nil {
		return c.resource + "/" + c.sub.Name
	}
	return c.resource
}

// auditWrite keeps what was changed, or was not. A dry run changes nothing, but of a
// secret it answers what is in it.
func (c *call) auditWrite(dry bool, st write.Step, err error) {
	if dry && c.res.State != state.Secrets {
		return // a refusal is kept as such
	}
	about := *c
	if err == nil && st.Result != nil && c.verb == "create" && c.name == "" { // its name was made here
		about = *c.named(st.Result)
	}
	note := st.Audit
	if note != "" {
		note = "(" + note + ")"
	}
	if c.audited = c.Audit != nil; c.audited && dry { // nothing else is remembered of it
		c.Audit.Record(c.r.Context(), about.row(strings.TrimSpace(note+" dry run"), err))
		return
	}
	about.audit(note, err)
}

// auditReading keeps who reads which secrets, before they are answered.
func (c *call) auditReading() {
	if c.res.State != state.Secrets {
		return
	}
	switch c.verb {
	case "get":
		var err error
		if c.lookup(c.Fleet.Snapshot()) == nil {
			err = c.missing()
		}
		c.audit("", err)
	case "list", "watch":
		c.audit("", nil)
	}
}

// auditRefusal keeps what somebody was not allowed.
func (c *call) auditRefusal(err error) {
	if code := statusOf(err).Code; c.audited || code != http.StatusUnauthorized && code != http.StatusForbidden {
		return
	}
	if c.resource == "" && c.root == "" { // it was refused before anybody looked where it goes
		c.target, _ = parsePath(c.r.URL.EscapedPath())
	}
	if c.verb == "" {
		c.verb = map[string]string{
			http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create", http.MethodPut: "update",
			http.MethodPatch: "patch", http.MethodDelete: "delete",
		}[c.r.Method]
	}
	if c.resource == "" {
		c.resource = c.r.URL.Path
	}
	c.audit("", err)
}
