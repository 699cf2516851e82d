package config

import (
	"net/url"
	"strings"
)

// withoutPath is a URL as it may be shown: of many services, what stands behind the host is a
// secret.
func withoutPath(address string) string {
	u, err := url.Parse(address)
	switch {
	case address == "":
		return ""
	case err != nil || u.Host == "":
		return "no URL with a host"
	}
	return u.Scheme + "://" + u.Host + "/…"
}

// withoutPassword is the address of a database as it may be shown.
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
		if strings.Contains(name, "pass") { // password, sslpassword
			q.Set(name, "…")
		}
	}
	u.RawQuery = strings.ReplaceAll(q.Encode(), "%E2%80%A6", "…")
	return u.String()
}

// hasPassword tells whether an address holds one.
func hasPassword(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	_, has := u.User.Password()
	return has || u.Query().Has("password") || u.Query().Has("sslpassword")
}
