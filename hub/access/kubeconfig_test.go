package access

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"flotilla.dev/shared/wire"
)

// A kubectl context has one server, so each hub of a database has a context. The first hub's
// context is the current one.
func TestAKubeconfigHasAContextForEachHub(t *testing.T) {
	text, err := Kubeconfig{Server: "https://hub:8443", Others: []string{"https://a:8443", "https://hub:8443",
		"https://b:8443"}, User: "ann", CA: []byte("ca"), Token: "t"}.YAML()
	if err != nil {
		t.Fatal(err)
	}
	var k struct {
		Current  string `json:"current-context"`
		Clusters []struct {
			Name    string
			Cluster struct {
				Server string
				CA     []byte `json:"certificate-authority-data"`
			}
		}
		Contexts []struct {
			Name    string
			Context struct{ Cluster, User string }
		}
	}
	if err := yaml.Unmarshal(text, &k); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"flotilla": "https://hub:8443", "flotilla@a:8443": "https://a:8443",
		"flotilla@b:8443": "https://b:8443"}
	if k.Current != "flotilla" || len(k.Clusters) != len(want) || len(k.Contexts) != len(want) {
		t.Fatalf("the kubeconfig is\n%s", text)
	}
	for i, c := range k.Clusters {
		x := k.Contexts[i]
		if want[c.Name] != c.Cluster.Server || string(c.Cluster.CA) != "ca" || x.Name != c.Name ||
			x.Context.Cluster != c.Name || x.Context.User != "ann" {
			t.Errorf("the cluster is %+v, the context %+v", c, x)
		}
	}
}

// The command names each hub once, in order, up to the device's limit.
func TestAJoinLineNamesEachHub(t *testing.T) {
	token := wire.JoinToken{Pin: strings.Repeat("0", 32), ID: "abc", Secret: "s3cret"}
	if got, want := JoinLine([]string{"https://b:1", "https://a:1", "https://b:1"}, token),
		"flotilla-device join https://b:1,https://a:1 --token "+token.Text(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var many []string
	for i := range 20 {
		many = append(many, "https://h"+strings.Repeat("x", i)+":1")
	}
	if n := strings.Count(JoinLine(many, token), "https://"); n != wire.MaxBrokers {
		t.Errorf("the line has %d addresses, but a device accepts %d", n, wire.MaxBrokers)
	}
}
