package config

import (
	"net/url"
	"strings"
)

// withoutPath returns a URL for display. It omits the path, because some services put a secret
// there.
func withoutPath(address string) string {
	u, err := url.Parse(address)
	switch {
	case address == "":
		return ""
	case err != nil || u.Host == "":
		return "not a URL with a host"
	}
	return u.Scheme + "://" + u.Host + "/…"
}

// withoutPassword returns a database's URL for display.
func withoutPassword(address string) string {
	if !strings.Contains(address, "://") && !strings.Contains(address, "=") {
		return address
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme == "" {
		return "no URL"
	}
	if u.User != nil {
		u.User = url.User(u.User.Username())
	}
	q := u.Query()
	for name := range q {
		if strings.Contains(name, "pass") { // such as password and sslpassword
			q.Set(name, "…")
		}
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "%E2%80%A6", "…")
	return u.String()
}

// hasPassword reports whether a database URL has a password.
func hasPassword(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	_, has := u.User.Password()
	return has || u.Query().Has("password") || u.Query().Has("sslpassword")
}
