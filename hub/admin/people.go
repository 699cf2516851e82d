package admin

import (
	"net/http"
)

type loginData struct {
	Name, Next, Problem string
	Empty               bool // there is no user yet
}

func (c *call) loginForm() error {
	if _, err := c.Sessions.Authenticate(c.Request()); err == nil {
		return c.Redirect(http.StatusSeeOther, local(c.QueryParam("next")))
	}
	return c.askLogin(http.StatusOK, loginData{Next: local(c.QueryParam("next"))})
}

func (c *call) askLogin(code int, d loginData) error {
	empty, err := c.Entrance.Empty(c.Request().Context())
	if err != nil {
		return c.refuse("Out of order", err)
	}
	d.Empty = empty
	return c.plain(code, page{Template: "login", Title: "Log in", Data: d})
}

func (c *call) login() error {
	d := loginData{Name: c.FormValue("name"), Next: local(c.FormValue("next"))}
	cookie, err := c.Entrance.Login(c.Request().Context(), Credential{Name: d.Name, Password: c.FormValue("password"), Source: c.RealIP()})
	if err != nil {
		var code int
		code, d.Problem = c.explain(err)
		return c.askLogin(code, d)
	}
	c.SetCookie(cookie)
	return c.Redirect(http.StatusSeeOther, d.Next)
}

// session tells the login form whether this browser is logged in after all:
// coming from another site, as by a link in an alert, it keeps its cookie to itself.
func (c *call) session() error {
	_, err := c.Sessions.Authenticate(c.Request())
	return c.JSON(http.StatusOK, map[string]bool{"in": err == nil})
}

func (c *call) logout() error {
	cookie, err := c.Sessions.Logout(c.Request().Context(), c.Request())
	if err != nil {
		return c.refuse("Not logged out", err)
	}
	c.SetCookie(cookie)
	return c.Redirect(http.StatusSeeOther, "/login")
}

type setupData struct{ Secret, Name, Problem string }

func (c *call) setupForm() error {
	empty, err := c.Entrance.Empty(c.Request().Context())
	switch {
	case err != nil:
		return c.refuse("Out of order", err)
	case !empty:
		return c.message(http.StatusGone, "Already set up", "This hub has an administrator. The setup link works once; log in instead.")
	case c.QueryParam("token") == "":
		return c.message(http.StatusBadRequest, "Which setup link?",
			"Open the whole link that the hub printed when it started. It works once, for 30 minutes; a restart of the hub prints another.")
	}
	return c.plain(http.StatusOK, page{Template: "setup", Title: "Set up", Data: setupData{Secret: c.QueryParam("token"), Name: "admin"}})
}

func (c *call) setup() error {
	d := setupData{Secret: c.FormValue("token"), Name: c.FormValue("name")}
	ctx, in := c.Request().Context(), Credential{Name: d.Name, Password: c.FormValue("password"), Source: c.RealIP()}
	if in.Password != c.FormValue("again") {
		d.Problem = "The two passwords differ. Type the same one twice."
		return c.plain(http.StatusBadRequest, page{Template: "setup", Title: "Set up", Data: d})
	}
	if err := c.Entrance.Setup(ctx, d.Secret, in); err != nil {
		var code int
		code, d.Problem = c.explain(err)
		return c.plain(code, page{Template: "setup", Title: "Set up", Data: d})
	}
	cookie, err := c.Entrance.Login(ctx, in)
	if err != nil { // the account is there: the login form will tell
		return c.Redirect(http.StatusSeeOther, "/login")
	}
	c.SetCookie(cookie)
	return c.Redirect(http.StatusSeeOther, "/")
}
