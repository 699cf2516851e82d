package admin

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"flotilla.dev/hub/admin/admintest"
)

// An error in YAML has its line: in pasted text, also in its second document, and in the editor.
func TestErrorsInYAMLHaveTheirLine(t *testing.T) {
	srv := acting(t, admintest.Work(t))
	good := "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata: {}\n---\n"
	head := good + "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: shop\n"
	for _, c := range []struct{ text, want string }{
		{head + "spec:\n  replicas: three\n", "spec.replicas: expected a number, got &#34;three&#34; (line 12)"},
		{head + "spec:\n  replica: 3\n", "spec.replica: unknown field; did you mean replicas? (line 12)"},
		{head + "spec:\n\treplicas: 3\n", "Invalid YAML: line 12 is indented with a tab: YAML allows only spaces."},
		{head + "spec:\n  replicas: 3\n template: 5\n", "Invalid YAML: line 13 does not fit the lines above it"},
	} {
		_, body := srv.ask(t, "admin", "POST", "/yaml", url.Values{"text": {c.text}, "action": {"check"}, "csrf": {csrf}}, "Cookie", nameHeader+"=admin")
		if !strings.Contains(body, c.want) || strings.Contains(body, "Go struct") {
			t.Errorf("the page for pasting does not say %q: %s", c.want, wordsOf(body))
		}
	}
	edit := "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: shop\nspec:\n  replicas: three\n"
	path := "/yaml/apis/apps/v1/namespaces/default/deployments/shop"
	for _, c := range []struct{ text, want string }{
		{edit, "spec.replicas: expected a number, got &#34;three&#34; (line 6)"},
		{edit + "---\n" + edit, "This page is for one object"},
		{"spec:\n\treplicas: 3\n", "line 2 is indented with a tab"},
	} {
		_, body := srv.ask(t, "admin", "POST", path, url.Values{"text": {c.text}, "was": {srv.editing(t, path)}, "action": {"check"}, "csrf": {csrf}}, "Cookie", nameHeader+"=admin")
		if !strings.Contains(body, c.want) || strings.Contains(body, "Go struct") {
			t.Errorf("the editor does not say %q: %s", c.want, wordsOf(body))
		}
	}
}

var wasIn = regexp.MustCompile(`name="was" value="([^"]*)"`)

// editing opens an editor and returns the text in its hidden field.
func (s *server) editing(t testing.TB, path string) string {
	t.Helper()
	_, body := s.ask(t, "admin", "GET", path, nil, "Cookie", nameHeader+"=admin")
	m := wasIn.FindStringSubmatch(body)
	if m == nil {
		t.Fatalf("no editor: %s", wordsOf(body))
	}
	return html.UnescapeString(m[1])
}
