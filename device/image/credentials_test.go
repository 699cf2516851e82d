package image

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/podspec"
)

// pullSecret is a secret with logins: "server=user".
func pullSecret(name string, servers ...string) corev1.Secret {
	var entries []string
	for _, s := range servers {
		server, user, _ := strings.Cut(s, "=")
		entries = append(entries, fmt.Sprintf(`%q:{"username":%q,"password":"p"}`, server, user))
	}
	var s corev1.Secret
	s.Name, s.Namespace = name, "default"
	s.Data = map[string][]byte{corev1.DockerConfigJsonKey: []byte(`{"auths":{` + strings.Join(entries, ",") + `}}`)}
	return s
}

// The logins for an image, and their order, follow Kubernetes' rules for config.json.
func TestCredentialsOfAnImage(t *testing.T) {
	for _, c := range []struct {
		name, image string
		secrets     [][]string // of the pod, in order
		want        string     // users
	}{
		{"of its registry", "reg.test/web:1", [][]string{{"reg.test=a", "other.test=b"}}, "a"},
		{"of none", "reg.test/web:1", [][]string{{"other.test=b"}}, ""},
		{"by a URL", "reg.test/web:1", [][]string{{"https://reg.test/v2/=a"}}, "a"},
		{"of its path, not another one", "reg.test/team-b/web:1", [][]string{{"reg.test/team-a=a", "reg.test/team-b=b"}}, "b"},
		{"the longest path first", "reg.test/team/web:1", [][]string{{"reg.test=r", "reg.test/team/web=w", "reg.test/team=t"}}, "w t r"},
		{"of another path", "reg.test/web:1", [][]string{{"reg.test/team=a"}}, ""},
		{"several secrets in their order", "reg.test/web:1", [][]string{{"reg.test=a"}, {"reg.test=b"}}, "a b"},
		{"of a name with *", "eu.reg.test/web:1", [][]string{{"*.reg.test=a"}}, "a"},
		{"* stands for one label only", "a.b.reg.test/web:1", [][]string{{"*.reg.test=a"}}, ""},
		{"of its port", "reg.test:5000/web:1", [][]string{{"reg.test=a", "reg.test:5000=b", "*.test:5000=c"}}, "b c"},
		{"of Docker Hub, by each name", "web:1", [][]string{{"https://index.docker.io/v1/=a"}, {"docker.io=b"}, {"registry-1.docker.io=c"}}, "a b c"},
		{"of a path at Docker Hub", "team/web:1", [][]string{{"docker.io/other=a", "docker.io/team=b"}}, "b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var pod corev1.Pod
			pod.Namespace = "default"
			src := podspec.Sources{Pod: &pod}
			for i, servers := range c.secrets {
				name := fmt.Sprint("s", i)
				src.Secrets = append(src.Secrets, pullSecret(name, servers...))
				pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
			}
			for range 20 { // the order of a map is random
				var users []string
				for _, a := range credentials(src, c.image) {
					users = append(users, a.Username)
				}
				if got := strings.Join(users, " "); got != c.want {
					t.Fatalf("%q, want %q", got, c.want)
				}
			}
		})
	}
}
