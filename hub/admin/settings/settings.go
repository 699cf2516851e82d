// Package settings shows the hub's settings and users: login, accounts, tokens, the audit, backups
// and certificates.
package settings

import (
	"cmp"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/store"
)

type personRow struct {
	Name, Role string
	Since      *format.Moment
	Me         bool
	Roles      []frame.Option
}

type joinTokenRow struct {
	ID, Site, Node, By string
	Uses, Used         int
	Pill               frame.Pill
	Ends               *format.Moment
	Coming             bool // when it expires
	Open               bool // the token can still be used
	Approval           bool
}

type apiTokenRow struct {
	ID, User, Note string
	Pill           frame.Pill
	Made, Ends     *format.Moment
}

type certificateRow struct {
	Of, Renewal string
	Until       string
	Ends        *format.Moment
	Pill        frame.Pill
}

type backupRow struct {
	File, Size string
	At         *format.Moment
}

type settingsData struct {
	CSRF         string
	Done         string // what was just done
	Problem      string
	People       []personRow
	Name         string // the typed name of a user to add
	Role         string
	Roles        []frame.Option
	JoinTokens   []joinTokenRow
	APITokens    []apiTokenRow
	Certificates []certificateRow
	Backups      []backupRow
	NextBackup   *format.Moment
	Facts, Kept  []frame.Fact
	Settings     []config.Shown
	Told         []frame.Told
	Hubs         []frame.MemberRow
}

var roles = [][2]string{{"viewer", "viewer: sees all but secrets"}, {"operator", "operator: workloads and nodes"},
	{"admin", "admin: everything"}}

// settled says what each action has done, by its name in the address.
var settled = map[string]string{
	"user-create": "The person can now log in.", "user-password": "The password is changed; their sessions have ended.",
	"user-role":   "The role is changed.",
	"user-delete": "The user is deleted, with their sessions, API tokens and certificates.",
	"join-revoke": "The join token is revoked; devices that joined with it stay.",
	"api-revoke":  "The API token is revoked.", "backup": "A backup has been written.",
	"notify-test": "The test message was accepted; check that it arrived.",
}

// Show shows the hub's settings, users and tokens.
func Show(c *frame.Call) error {
	return showSettings(c, http.StatusOK, settingsData{Done: settled[c.QueryParam("done")]})
}

func showSettings(c *frame.Call, code int, d settingsData) error {
	if err := fillSettings(c, &d); err != nil {
		return c.Refuse("No settings", err)
	}
	return c.ShowPage(code, frame.Page{Template: "settings", Title: "Settings", Data: d})
}

// fillSettings reads what the page shows.
func fillSettings(c *frame.Call, d *settingsData) error {
	ctx, now := c.Request().Context(), c.Now()
	about, err := c.About()
	if err != nil {
		return err
	}
	people, err := c.People.Users(ctx)
	if err != nil {
		return err
	}
	joins, err := c.Tokens.JoinTokens(ctx)
	if err != nil {
		return err
	}
	tokens, err := c.Tokens.APITokens(ctx)
	if err != nil {
		return err
	}
	copies, next, err := c.Archive.Copies()
	if err != nil {
		return err
	}
	d.CSRF, d.Settings, d.Roles, d.NextBackup = c.User.CSRF, about.Settings,
		frame.Options(cmp.Or(d.Role, "operator"), roles...), format.Time(next, now)
	d.Facts, d.Kept = about.Facts, about.Kept
	d.Hubs = frame.MemberRows(c.Members(ctx), now)
	if c.Told != nil {
		d.Told = c.Told()
	}
	for _, p := range people {
		d.People = append(d.People, personRow{p.Name, p.Role, format.Time(p.Created, now), p.Name == c.User.Name,
			frame.Options(p.Role, roles...)})
	}
	for _, t := range slices.Backward(joins) {
		d.JoinTokens = append(d.JoinTokens, joinTokenRowOf(t, now))
	}
	for _, t := range slices.Backward(tokens) {
		d.APITokens = append(d.APITokens, apiTokenRowOf(t, now))
	}
	for _, cert := range about.Certificates {
		d.Certificates = append(d.Certificates, certificateRowOf(cert, now))
	}
	for _, b := range copies {
		d.Backups = append(d.Backups, backupRow{filepath.Base(b.File), format.Bytes(b.Bytes), format.Time(b.At, now)})
	}
	return nil
}

func joinTokenRowOf(t store.JoinToken, now time.Time) joinTokenRow {
	r := joinTokenRow{ID: t.ID, Site: t.Site, Node: t.Node, By: t.CreatedBy, Uses: t.Uses, Used: t.Used,
		Ends: format.Time(t.Expires, now), Coming: t.Expires.After(now), Approval: t.Approval}
	switch {
	case !t.Revoked.IsZero():
		r.Pill = frame.Pill{Kind: "idle", Text: "Revoked"}
	case !now.Before(t.Expires):
		r.Pill = frame.Pill{Kind: "idle", Text: "Ended"}
	case t.Used >= t.Uses:
		r.Pill = frame.Pill{Kind: "idle", Text: "Used up"}
	default:
		r.Pill, r.Open = frame.Pill{Kind: "ok", Text: "Good"}, true
	}
	return r
}

// certificateSoon is how long before its end a certificate is marked.
const certificateSoon = 30 * 24 * time.Hour

func certificateRowOf(c frame.Certificate, now time.Time) certificateRow {
	r := certificateRow{Of: c.Of, Renewal: c.Renewal, Until: c.Until.UTC().Format(time.DateOnly),
		Ends: format.Time(c.Until, now), Pill: frame.Pill{Kind: "ok", Text: "Good"}}
	switch left := c.Until.Sub(now); {
	case left <= 0:
		r.Pill = frame.Pill{Kind: "bad", Text: "Ended"}
	case left < certificateSoon:
		r.Pill = frame.Pill{Kind: "warn", Text: "Ends soon"}
	}
	return r
}

// Users cannot change their own role or account here: an administrator must remain, and a password
// is changed with the old one.
const (
	errSelf = frame.UserError("You cannot take your own role or account away; another administrator can.")
	errOwn  = frame.UserError("Change your own password in Your account.")
)

// Change does the action of one of the settings' forms.
func Change(c *frame.Call) error {
	action := c.FormValue("action")
	act, err := settle(c, action)
	if act.Verb == "" {
		return showSettings(c, http.StatusBadRequest, settingsData{Problem: "There is no such action."})
	}
	act.Code = http.StatusOK
	if err != nil {
		act.Code, act.Message = c.Tell(err)
	}
	c.Record(act)
	if err != nil {
		d := settingsData{Problem: act.Message}
		if action == "user-create" {
			d.Name, d.Role = c.FormValue("name"), c.FormValue("role")
		}
		return showSettings(c, act.Code, d)
	}
	return c.Redirect(http.StatusSeeOther, "/settings?done="+action)
}

// settle does one action and returns its audit record.
func settle(c *frame.Call, action string) (store.Audit, error) {
	ctx, name, id := c.Request().Context(), strings.TrimSpace(c.FormValue("name")), c.FormValue("id")
	var mine error // why users cannot do this to themselves
	if name == c.User.Name {
		mine = errSelf
	}
	switch action {
	case "user-create":
		return store.Audit{Verb: "create", Resource: "users", Name: name},
			c.People.CreateUser(ctx, access.NewUser{Name: name, Password: c.FormValue("password"),
				Role: access.Role(c.FormValue("role"))})
	case "user-password":
		act := store.Audit{Verb: "update", Resource: "users", Name: name, Message: "password"}
		if mine != nil {
			return act, errOwn
		}
		return act, c.People.SetPassword(ctx, name, c.FormValue("password"))
	case "user-role":
		act := store.Audit{Verb: "update", Resource: "users", Name: name, Message: "role " + c.FormValue("role")}
		if mine != nil {
			return act, mine
		}
		return act, c.People.SetRole(ctx, name, access.Role(c.FormValue("role")))
	case "user-delete":
		act := store.Audit{Verb: "delete", Resource: "users", Name: name}
		if mine != nil {
			return act, mine
		}
		return act, c.People.DeleteUser(ctx, name)
	case "join-revoke":
		return store.Audit{Verb: "revoke", Resource: "jointokens", Name: id}, c.Tokens.RevokeJoinToken(ctx, id)
	case "api-revoke":
		return store.Audit{Verb: "revoke", Resource: "apitokens", Name: id}, c.Tokens.RevokeAPIToken(ctx, id)
	case "notify-test":
		act := store.Audit{Verb: "create", Resource: "notifications", Name: name}
		if c.TestTold == nil {
			return act, frame.UserError(
				"No one is notified of incidents: set incident-webhook or incident-mail-server in the hub's configuration.")
		}
		if err := c.TestTold(ctx, name); err != nil {
			return act, frame.UserError("The test message was not accepted: " + err.Error())
		}
		return act, nil
	case "backup":
		file, err := c.Archive.BackUpNow(ctx)
		return store.Audit{Verb: "create", Resource: "backups", Name: file}, err
	}
	return store.Audit{}, nil
}
