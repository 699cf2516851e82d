package doctor

import (
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"flotilla.dev/hub/config"
)

// masks are what secrets look like, with what stands in their place. They rather take too
// much than too little.
var masks = []struct {
	like *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)`), "<PEM>"},
	{regexp.MustCompile(`\bLS0tLS1CRUdJTi[A-Za-z0-9+/=_-]*`), "<PEM>"}, // in base64, as in a kubeconfig
	{regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://)[^\s<>]*@`), "$1<login>@"},
	// mistyped
	{regexp.MustCompile(`(?i)\b((?:postgres(?:ql)?|mqtts?|smtps?|https?|amqps?|wss?):/?)[^\s/<>][^\s<>]*@`), "$1<login>@"},
	{regexp.MustCompile(`(?i)(https?://[^/?\s"'<>]+)[^\s"'<>]*[?&=][^\s"'<>]*`), "$1/<query>"},
	{regexp.MustCompile(`(?i)(https?://(?:[a-z0-9.-]*\.)?(?:hooks?|webhooks?|api\.telegram|discord(?:app)?|webhook\.office)\.[^/\s"'<>]+/)[^\s"'<>…]+`), "$1<path>"},
	{regexp.MustCompile(`(?i)((?:proxy-)?authorization\\*"?\s*[=:]\s*)[^\r\n]+`), "$1<secret>"},
	{regexp.MustCompile(`(?i)((?:set-)?cookie\\*"?\s*:\s*)[^\r\n]+`), "$1<secret>"},
	{regexp.MustCompile(`(?i)((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{6,}`), "$1<token>"},
	{regexp.MustCompile(`(?i)((?:` + called + `)\\*"?\s*[=:]\s*)(` + quoted + `|[^\r\n;"']+)`), "$1<secret>"},
	{regexp.MustCompile(`(?i)(--(?:` + called + `)\s+)(` + quoted + `|[^\s"']+)`), "$1<secret>"},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]*)?`), "<token>"},
	{regexp.MustCompile(`\b(gh[opsur]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA)[A-Za-z0-9_-]{10,}`), "<token>"},
	{regexp.MustCompile(`\b[a-z0-9]{10}\.[a-z0-9]{20,}(\.[a-z0-9]+)*\b`), "<token>"}, // of ours
	{regexp.MustCompile(`\b[a-z2-7]{26}\b`), "<token>"},                              // ours, without what goes before
}

const (
	// called is a name that a secret goes by, in settings, headers, flags and environments.
	called = `[a-z0-9_.-]*(?:password|passwd|passphrase|\bpwd|pgpass|secret|token|api-?_?key|(?:access|private|account|shared|client|encryption|signing|master)[_-]?key|dockerconfig|credential|\bauth\b|signature)[a-z0-9_.-]*|(?:\b|[a-z0-9_.-]*[_.-])(?:pass|passcode|psk)`
	// quoted is a text in quotes, which may stand in a text in quotes themselves.
	quoted = `\\+"(?:[^"\\]|\\[^"]|\\\\+")*?\\+"|"(?:[^"\\]|\\.)*"|'[^']*'`
)

// Mask takes what looks like a secret out of a text.
func Mask(text string) string {
	for _, m := range masks {
		text = m.like.ReplaceAllString(text, m.as)
	}
	return text
}

// secrets are known to the letter.
type secrets []string

// secretsOf are those that the settings hold or name, and names that people gave files: what
// logs and errors may quote.
func secretsOf(c config.Config) (all secrets) {
	line := func(file string) string {
		text, _ := os.ReadFile(file) // who cannot read it cannot quote it
		first, _, _ := strings.Cut(string(text), "\n")
		return strings.TrimSpace(first)
	}
	for _, file := range []string{c.IncidentWebhookSecretFile, c.IncidentMailPasswordFile} {
		if file != "" {
			all = append(all, line(file))
		}
	}
	for _, address := range []string{c.Database, line(filepath.Join(c.DataDir, "database"))} {
		if address != "" && !strings.Contains(address, "://") {
			address = line(address)
		}
		u, err := url.Parse(address)
		if err != nil {
			continue
		}
		if password, ok := u.User.Password(); ok {
			_, escaped, _ := strings.Cut(u.User.String(), ":")
			all = append(all, password, escaped)
		}
		for name, values := range u.Query() {
			if strings.Contains(name, "pass") {
				all = append(all, values...)
			}
		}
	}
	for _, address := range []string{c.IncidentWebhook, c.Inventory} { // of many services, the path is the secret
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			continue
		}
		all = append(all, u.RequestURI())
		for _, part := range strings.FieldsFunc(u.RequestURI(), func(r rune) bool {
			return strings.ContainsRune("/?&=", r)
		}) {
			// others are words
			if strings.ContainsFunc(part, func(r rune) bool { return r < 'a' && r != '.' && r != '-' && r != '_' }) {
				all = append(all, part)
			}
		}
	}
	all = append(all, othersIn(c.DataDir)...)
	// Shorter ones are words, which would say what they are by being left away. The longest first:
	// one may be in another.
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) < 6 })
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// mask takes those out of a text, and what looks like one.
func (s secrets) mask(text string) string {
	for _, secret := range s {
		text = strings.ReplaceAll(text, secret, "<secret>")
	}
	return Mask(text)
}

// masked is a JSON value with each of its texts masked: in JSON, quotes look otherwise.
func masked(v any, mask func(string) string) any {
	switch v := v.(type) {
	case string:
		return mask(v)
	case []any:
		for i := range v {
			v[i] = masked(v[i], mask)
		}
	case map[string]any:
		for key := range v {
			v[key] = masked(v[key], mask)
		}
	}
	return v
}
