package admin

import (
	"cmp"
	"net/http"
	"strings"
	"time"
)

type personRow struct {
	Name, Role string
	Since      *moment
	Me         bool
	Roles      []option
}

type joinTokenRow struct {
	ID, Site, Node, By string
	Uses, Used         int
	Pill               pill
	Ends               *moment
	Coming             bool // its end
	Open               bool // it can still be used
}

type apiTokenRow struct {
	ID, User, Note string
	Pill           pill
	Made, Ends     *moment
}

type certificateRow struct {
	Of, Renewal string
	Until       string
	Ends        *moment
	Pill        pill
}

type backupRow struct {
	File, Size string
	At         *moment
}

type settingsData struct {
	CSRF         string
	Done         string // what has just been done
	Problem      string
	People       []personRow
	Roles        []option
	JoinTokens   []joinTokenRow
	APITokens    []apiTokenRow
	Certificates []certificateRow
	Backups      []backupRow
	NextBackup   *moment
	Facts, Kept  []fact
	Settings     []Setting
}

var roles = [][2]string{{"viewer", "viewer: sees all but secrets"}, {"operator", "operator: workloads and nodes"}, {"admin", "admin: everything"}}

// settled says what an action has done, by its name in the address.
var settled = map[string]string{
	"user-create": "The person can log in now.", "user-password": "The password is changed; their sessions have ended.", "user-role": "The role is changed.",
	"user-delete": "The person is gone, with their sessions, API tokens and certificates.", "join-revoke": "The join token is revoked; devices that joined with it stay.",
	"api-revoke": "The API token is revoked.", "backup": "A backup has been written.",
}

func (c *call) settings() error {
	return c.showSettings(http.StatusOK, settingsData{Done: settled[c.QueryParam("done")]})
}

func (c *call) showSettings(code int, d settingsData) error {
	st, err := c.House.State(c.Request().Context())
	if err != nil {
		return c.refuse("No settings", err)
	}
	now := time.Now()
	d.CSRF, d.Settings, d.Roles = c.user.CSRF, st.Settings, options("operator", roles...)
	for _, p := range st.People {
		d.People = append(d.People, personRow{p.Name, p.Role, at(p.Created, now), p.Name == c.user.Name, options(p.Role, roles...)})
	}
	for _, t := range st.JoinTokens {
		d.JoinTokens = append(d.JoinTokens, joinTokenRowOf(t, now))
	}
	for _, t := range st.APITokens {
		d.APITokens = append(d.APITokens, apiTokenRowOf(t, now))
	}
	for _, cert := range st.Certificates {
		d.Certificates = append(d.Certificates, certificateRowOf(cert, now))
	}
	for _, b := range st.Backups {
		d.Backups = append(d.Backups, backupRow{b.File, bytesOf(b.Bytes), at(b.At, now)})
	}
	d.NextBackup = at(st.NextBackup, now)
	for _, f := range st.Facts {
		d.Facts = append(d.Facts, fact(f))
	}
	for _, f := range st.Kept {
		d.Kept = append(d.Kept, fact(f))
	}
	return c.plain(code, page{Template: "settings", Title: "Settings", Data: d})
}

func joinTokenRowOf(t JoinToken, now time.Time) joinTokenRow {
	r := joinTokenRow{ID: t.ID, Site: t.Site, Node: t.Node, By: t.By, Uses: t.Uses, Used: t.Used, Ends: at(t.Expires, now), Coming: t.Expires.After(now)}
	switch {
	case !t.Revoked.IsZero():
		r.Pill = pill{"idle", "Revoked"}
	case !now.Before(t.Expires):
		r.Pill = pill{"idle", "Ended"}
	case t.Used >= t.Uses:
		r.Pill = pill{"idle", "Used up"}
	default:
		r.Pill, r.Open = pill{"ok", "Good"}, true
	}
	return r
}

// certificateSoon is when an end is near enough to say so.
const certificateSoon = 30 * 24 * time.Hour

func certificateRowOf(c Certificate, now time.Time) certificateRow {
	r := certificateRow{Of: c.Of, Renewal: c.Renewal, Until: c.Until.UTC().Format(time.DateOnly), Ends: at(c.Until, now), Pill: pill{"ok", "Good"}}
	switch left := c.Until.Sub(now); {
	case left <= 0:
		r.Pill = pill{"bad", "Ended"}
	case left < certificateSoon:
		r.Pill = pill{"warn", "Ends soon"}
	}
	return r
}

// What nobody may do to themselves here: an administrator must remain, and a
// password is changed by who knows the old one.
const (
	errSelf = errTold("You cannot take your own role or account away; another administrator can.")
	errOwn  = errTold("Change your own password in Your account.")
)

// settingsAction does what one of the settings' forms asks for.
func (c *call) settingsAction() error {
	action := c.FormValue("action")
	act, err := c.settle(action)
	if act.Verb == "" {
		return c.showSettings(http.StatusBadRequest, settingsData{Problem: "There is no such action."})
	}
	act.User, act.Code = c.user, http.StatusOK
	if err != nil {
		act.Code, act.Message = c.tell(err)
	}
	c.Audit(c.Request().Context(), act)
	if err != nil {
		return c.showSettings(act.Code, settingsData{Problem: act.Message})
	}
	return c.Redirect(http.StatusSeeOther, "/settings?done="+action)
}

// settle does one action, and says what it was for the audit.
func (c *call) settle(action string) (Act, error) {
	ctx, name, id := c.Request().Context(), strings.TrimSpace(c.FormValue("name")), c.FormValue("id")
	var mine error // what stands against doing it to oneself
	if name == c.user.Name {
		mine = errSelf
	}
	switch action {
	case "user-create":
		return Act{Verb: "create", Resource: "users", Name: name}, c.People.CreateUser(ctx, NewPerson{name, c.FormValue("password"), c.FormValue("role")})
	case "user-password":
		act := Act{Verb: "update", Resource: "users", Name: name, Message: "password"}
		if mine != nil {
			return act, errOwn
		}
		return act, c.People.ChangeUser(ctx, NewPerson{Name: name, Password: cmp.Or(c.FormValue("password"), "-")})
	case "user-role":
		act := Act{Verb: "update", Resource: "users", Name: name, Message: "role " + c.FormValue("role")}
		if mine != nil {
			return act, mine
		}
		return act, c.People.ChangeUser(ctx, NewPerson{Name: name, Role: cmp.Or(c.FormValue("role"), "-")})
	case "user-delete":
		act := Act{Verb: "delete", Resource: "users", Name: name}
		if mine != nil {
			return act, mine
		}
		return act, c.People.DeleteUser(ctx, name)
	case "join-revoke":
		return Act{Verb: "revoke", Resource: "jointokens", Name: id}, c.Tokens.RevokeJoinToken(ctx, id)
	case "api-revoke":
		return Act{Verb: "revoke", Resource: "apitokens", Name: id}, c.Tokens.RevokeAPIToken(ctx, id)
	case "backup":
		file, err := c.House.BackUp(ctx)
		return Act{Verb: "create", Resource: "backups", Name: file}, err
	}
	return Act{}, nil
}
