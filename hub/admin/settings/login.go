package settings

import (
	"net/http"
	"strings"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/frame"
)

type loginData struct {
	Name, Next, Problem string
	Empty               bool // there is no user yet
}

// LoginForm shows the login.
func LoginForm(c *frame.Call) error {
	if _, err := c.Sessions.Authenticate(c.Request()); err == nil {
		return c.Redirect(http.StatusSeeOther, frame.LocalPath(c.QueryParam("next")))
	}
	return askLogin(c, http.StatusOK, loginData{Next: frame.LocalPath(c.QueryParam("next"))})
}

func askLogin(c *frame.Call, code int, d loginData) error {
	users, err := c.People.Users(c.Request().Context())
	if err != nil {
		return c.Refuse("Out of order", err)
	}
	d.Empty = len(users) == 0
	return c.ShowPage(code, frame.Page{Template: "login", Title: "Log in", Data: d})
}

// maxName bounds the text that forms return to unauthenticated clients. Names and the secrets of links
// are shorter.
const maxName = 64

func clip(typed string) string { return strings.ToValidUTF8(typed[:min(len(typed), maxName)], "") }

// Login begins a session.
func Login(c *frame.Call) error {
	name := c.FormValue("name")
	d := loginData{Name: clip(name), Next: frame.LocalPath(c.FormValue("next"))}
	cookie, err := c.Logins.Login(c.Request().Context(), name, c.FormValue("password"), c.RealIP())
	if err != nil {
		var code int
		code, d.Problem = c.Explain(err)
		return askLogin(c, code, d)
	}
	c.SetCookie(cookie)
	return c.Redirect(http.StatusSeeOther, d.Next)
}

// Session tells the login form whether the browser has a session. A link from another site, such as
// an alert, comes without the cookie. An open form gets the present user and token.
func Session(c *frame.Call) error {
	u, err := c.Sessions.Authenticate(c.Request())
	if err != nil {
		u = access.User{}
	}
	return c.JSON(http.StatusOK, struct {
		In   bool   `json:"in"`
		Name string `json:"name"`
		CSRF string `json:"csrf"`
	}{err == nil, u.Name, u.CSRF})
}

// Logout ends a session.
func Logout(c *frame.Call) error {
	cookie, err := c.Sessions.Logout(c.Request().Context(), c.Request())
	if err != nil {
		return c.Refuse("Not logged out", err)
	}
	c.SetCookie(cookie)
	return c.Redirect(http.StatusSeeOther, "/login")
}

type setupData struct{ Secret, Name, Problem string }

// SetupForm asks for the first administrator's name and password.
func SetupForm(c *frame.Call) error {
	users, err := c.People.Users(c.Request().Context())
	switch {
	case err != nil:
		return c.Refuse("Out of order", err)
	case len(users) > 0:
		return c.Message(http.StatusGone, "Already set up",
			"This hub has an administrator. The setup link works once; log in instead.")
	case c.QueryParam("token") == "":
		return c.Message(http.StatusBadRequest, "Which setup link?",
			"Open the whole link that the hub printed when it started. It works once, for 30 minutes; a restart of the hub "+
				"prints another.")
	}
	return c.ShowPage(http.StatusOK, frame.Page{Template: "setup", Title: "Set up",
		Data: setupData{Secret: clip(c.QueryParam("token")), Name: "admin"}})
}

// Setup makes the first administrator.
func Setup(c *frame.Call) error {
	name := c.FormValue("name")
	d := setupData{Secret: clip(c.FormValue("token")), Name: clip(name)}
	ctx, in := c.Request().Context(), access.NewUser{Name: name, Password: c.FormValue("password"), Role: access.Admin}
	if in.Password != c.FormValue("again") {
		d.Problem = "The two passwords differ. Type the same one twice."
		return c.ShowPage(http.StatusBadRequest, frame.Page{Template: "setup", Title: "Set up", Data: d})
	}
	if err := c.Logins.Setup(ctx, c.FormValue("token"), in, c.RealIP()); err != nil {
		var code int
		code, d.Problem = c.Explain(err)
		return c.ShowPage(code, frame.Page{Template: "setup", Title: "Set up", Data: d})
	}
	cookie, err := c.Logins.Login(ctx, in.Name, in.Password, c.RealIP())
	if err != nil { // the account exists, and the user can log in
		return c.Redirect(http.StatusSeeOther, "/login")
	}
	c.SetCookie(cookie)
	return c.Redirect(http.StatusSeeOther, "/")
}
