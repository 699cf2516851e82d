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

// masks replace text that looks like a secret. They replace too much rather than too little.
var masks = []struct {
	like *regexp.Regexp
	as   string
}{
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(-----END [A-Z ]+-----|$)`), "<PEM>"},
	{regexp.MustCompile(`\bLS0tLS1CRUdJTi[A-Za-z0-9+/=_-]*`), "<PEM>"}, // PEM in base64, as in a kubeconfig
	{regexp.MustCompile(`(?i)([a-z][a-z0-9+.-]*://)[^\s<>]*@`), "$1<login>@"},
	// Login in a URL, also after a mistyped scheme.
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
	{regexp.MustCompile(`\b[a-z0-9]{10}\.[a-z0-9]{20,}(\.[a-z0-9]+)*\b`), "<token>"}, // a token of Flotilla
	{regexp.MustCompile(`\b[a-z2-7]{26}\b`), "<token>"},                              // only the secret part of a token
}

const (
	// called matches the names of secrets in settings, headers, flags and environments.
	called = `[a-z0-9_.-]*(?:password|passwd|passphrase|\bpwd|pgpass|secret|token|api-?_?key|(?:access|private|account|shared|client|encryption|signing|master)[_-]?key|dockerconfig|credential|\bauth\b|signature)[a-z0-9_.-]*|(?:\b|[a-z0-9_.-]*[_.-])(?:pass|passcode|psk)`
	// quoted matches a quoted text, which may be inside of quotes itself.
	quoted = `\\+"(?:[^"\\]|\\[^"]|\\\\+")*?\\+"|"(?:[^"\\]|\\.)*"|'[^']*'`
)

// Mask replaces text that looks like a secret.
func Mask(text string) string {
	for _, m := range masks {
		text = m.like.ReplaceAllString(text, m.as)
	}
	return text
}

// secrets are texts to remove exactly.
type secrets []string

// secretsOf returns the secrets in the settings and in their files. It includes file names that
// users chose, because logs and errors may quote them.
func secretsOf(c config.Config) (all secrets) {
	line := func(file string) string {
		text, _ := os.ReadFile(file) // other programs could not quote an unreadable secret
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
	for _, address := range []string{c.IncidentWebhook, c.Inventory} { // many services put a secret into the path
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			continue
		}
		all = append(all, u.RequestURI())
		for _, part := range strings.FieldsFunc(u.RequestURI(), func(r rune) bool {
			return strings.ContainsRune("/?&=", r)
		}) {
			// lower-case words are not secrets
			if strings.ContainsFunc(part, func(r rune) bool { return r < 'a' && r != '.' && r != '-' && r != '_' }) {
				all = append(all, part)
			}
		}
	}
	all = append(all, othersIn(c.DataDir)...)
	// Shorter texts are ordinary words and stay readable. Longer secrets come first, because one
	// may contain another.
	all = slices.DeleteFunc(all, func(s string) bool { return len(s) < 6 })
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	return all
}

// mask removes the known secrets, and text that looks like a secret.
func (s secrets) mask(text string) string {
	for _, secret := range s {
		text = strings.ReplaceAll(text, secret, "<secret>")
	}
	return Mask(text)
}

// masked masks every text of a JSON value before the encoding escapes quotes.
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
