package kubectltest

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every kubectl runs, prints its version, and sends requests to the server of the kubeconfig.
func TestEveryKubectlAsksItsServer(t *testing.T) {
	for _, minor := range Minors {
		t.Run(minor, func(t *testing.T) {
			kubectl := Build(t, minor)
			if again := Build(t, minor); again != kubectl {
				t.Errorf("two builds of one version differ: %s and %s", kubectl, again)
			}
			agent := ""
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				agent = r.UserAgent()
				_, _ = w.Write([]byte(`{"major":"1","minor":"37","gitVersion":"v1.37.0+test"}`))
			}))
			defer server.Close()
			config := filepath.Join(t.TempDir(), "config")
			if err := os.WriteFile(config, []byte("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '"+
				server.URL+
				"'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			out, errs, code := Run(t, kubectl, config, "version", "-o", "json")
			if code != 0 || !strings.Contains(out, "v1.37.0+test") || !strings.Contains(out, `"gitVersion": "v`+minor+".") ||
				!strings.HasPrefix(agent, "kubectl/v"+minor+".") {
				t.Errorf("exit code %d, user agent %q\n%s%s", code, agent, out, errs)
			}
			if _, errs, code := Run(t, kubectl, config, "no-such-command"); code != 1 ||
				!strings.Contains(errs, "unknown command") {
				t.Errorf("an unknown command has exit code %d, want 1: %q", code, errs)
			}
		})
	}
}

func TestAMissingModuleIsNamed(t *testing.T) {
	_, err := sourceOf("kubectl", "v1.12")
	if err == nil || !strings.Contains(err.Error(), "module kubectl/v1.12 not found") {
		t.Errorf("got %v", err)
	}
}
