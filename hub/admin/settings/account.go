package settings

import (
	"cmp"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/store"
)

type accountData struct {
	User    access.User
	Means   string // what the role may do
	Done    string // what was just done
	Problem string
	Secret  string // a new API token, shown once
	File    string // file name of the token's kubeconfig
	Note    string // the note that the user typed
	Tokens  []apiTokenRow
	Lives   []frame.Option
}

var (
	// tokenLives are the choices of an API token's lifetime.
	tokenLives = [][2]string{{"168h", "7 days"}, {"720h", "30 days"}, {"2160h", "90 days"}, {"8760h", "a year"}}
	// accountDone says what each action has done, by its name in the address.
	accountDone = map[string]string{"password": "Your password is changed. Your other sessions have ended; your API " +
		"tokens have not.", "revoke": "The API token is revoked."}
	roleMeans = map[access.Role]string{access.Admin: "do everything",
		access.Operator: "look at all, and change workloads and nodes", access.Viewer: "look at all but secrets"}
)

const (
	errTwice   = frame.UserError("The two new passwords differ. Type the same one twice.")
	errMinting = frame.UserError("An API token cannot create API tokens or change the password; log in with your password.")
	errNotYour = frame.UserError("This API token is not yours.")
	errByCert  = frame.UserError(
		"A certificate cannot manage API tokens or the password; log in with your password and without the certificate.")
)

// Account is where users change their password and manage their API tokens.
func Account(c *frame.Call) error {
	return showAccount(c, http.StatusOK, accountData{Done: accountDone[c.QueryParam("done")]})
}

func showAccount(c *frame.Call, code int, d accountData) error {
	tokens, err := c.Accounts.APITokensOf(c.Request().Context(), c.User.Name)
	if err != nil {
		return c.Refuse("No account", err)
	}
	now := c.Now()
	d.User, d.Means, d.File = c.User, roleMeans[c.User.Role], kubeconfigFile(c.User.Name)
	d.Lives = frame.Options(cmp.Or(c.FormValue("life"), "720h"), tokenLives...)
	for _, t := range slices.Backward(tokens) {
		d.Tokens = append(d.Tokens, apiTokenRowOf(t, now))
	}
	return c.ShowPage(code, frame.Page{Template: "account", Title: "Your account", Data: d})
}

func apiTokenRowOf(t store.APIToken, now time.Time) apiTokenRow {
	r := apiTokenRow{ID: t.ID, User: t.User, Note: t.Note, Made: format.Time(t.Created, now),
		Ends: format.Time(t.Expires, now), Pill: frame.Pill{Kind: "ok", Text: "Good"}}
	if !now.Before(t.Expires) {
		r.Pill = frame.Pill{Kind: "idle", Text: "Ended"}
	}
	return r
}

// kubeconfigFile is the file name of a user's kubeconfig.
func kubeconfigFile(user string) string { return "flotilla-" + user + ".yaml" }

// ChangeAccount does the action of one of the account's forms.
func ChangeAccount(c *frame.Call) error {
	action := c.FormValue("action")
	if action == "kubeconfig" {
		return kubeconfig(c)
	}
	act, secret, err := changeAccount(c, action)
	if act.Verb == "" {
		return showAccount(c, http.StatusBadRequest, accountData{Problem: "There is no such action."})
	}
	act.Code = http.StatusOK
	d := accountData{Secret: secret}
	if err != nil {
		act.Code, act.Message = c.Tell(err)
		d.Problem = act.Message
	}
	if action == "create" && err != nil {
		d.Note = c.FormValue("note")
	}
	c.Record(act)
	if err == nil && secret == "" {
		return c.Redirect(http.StatusSeeOther, "/account?done="+action)
	}
	return showAccount(c, act.Code, d)
}

// changeAccount does one action and returns its audit record.
func changeAccount(c *frame.Call, action string) (act store.Audit, secret string, err error) {
	ctx, id := c.Request().Context(), c.FormValue("id")
	switch c.User.Via {
	case "token":
		err = errMinting
	case "certificate": // its name and role may differ from the account's
		err = errByCert
	}
	switch action {
	case "password":
		act = store.Audit{Verb: "update", Resource: "account", Message: "password"}
		if err == nil && c.FormValue("password") != c.FormValue("again") {
			err = errTwice
		}
		if err != nil {
			return act, "", err
		}
		cookie, err := c.Accounts.ChangePassword(ctx, access.PasswordChange{Name: c.User.Name, Old: c.FormValue("old"),
			New: c.FormValue("password"), Source: c.RealIP()})
		if err == nil {
			c.SetCookie(cookie)
		}
		return act, "", err
	case "create":
		note := strings.TrimSpace(c.FormValue("note"))
		act = store.Audit{Verb: "create", Resource: "apitokens", Name: note}
		if err == nil {
			life, _ := time.ParseDuration(c.FormValue("life"))
			secret, err = c.Tokens.CreateAPIToken(ctx, access.NewAPIToken{User: c.User.Name, Note: note, Life: life})
		}
		return act, secret, err
	case "revoke":
		act = store.Audit{Verb: "revoke", Resource: "apitokens", Name: id}
		if c.User.Via == "certificate" { // a token may revoke itself
			return act, "", err
		}
		return act, "", c.Accounts.RevokeAPITokenOf(ctx, c.User.Name, id)
	}
	return act, "", nil
}

// kubeconfig answers with the file for a new API token. The file can be made only while the page
// shows the token, because the hub stores only its hash.
func kubeconfig(c *frame.Call) error {
	token := c.FormValue("token")
	tokens, err := c.Accounts.APITokensOf(c.Request().Context(), c.User.Name)
	if err != nil {
		return c.Refuse("No kubeconfig", err)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 || !slices.ContainsFunc(tokens, func(t store.APIToken) bool { return t.ID == parts[1] }) {
		return showAccount(c, http.StatusConflict, accountData{Problem: errNotYour.Error()})
	}
	text, err := access.Kubeconfig{Server: "https://" + c.Request().Host, Others: c.JoinURLs(c.Request().Host),
		User: c.User.Name, CA: c.CA(), Token: token}.YAML()
	if err != nil {
		return c.Refuse("No kubeconfig", err)
	}
	c.Response().Header().Set("Content-Disposition",
		mime.FormatMediaType("attachment", map[string]string{"filename": kubeconfigFile(c.User.Name)}))
	return c.Blob(http.StatusOK, "application/yaml", text)
}
