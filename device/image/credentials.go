package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"path"
	"sort"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/signature"
)

// maxCredentials limits the logins that are tried for one image.
const maxCredentials = 16

// A login is an entry of a pull secret.
type login struct{ Username, Password, Auth string }

// credentials returns the logins of the pod's pull secrets that match an image, as Kubernetes reads
// config.json: a server may have a path, and * for one label of its host. The longest path comes
// first, then the first secret.
func credentials(s podspec.Sources, image string) (all []*engine.RegistryAuth) {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return nil
	}
	pathLen := map[*engine.RegistryAuth]int{}
	for _, p := range s.Pod.Spec.ImagePullSecrets {
		sec, err := s.Secret(p.Name)
		if sec == nil || err != nil {
			continue
		}
		logins := map[string]login{}
		if raw := podspec.SecretData(sec)[corev1.DockerConfigJsonKey]; raw != nil {
			var c struct{ Auths map[string]login }
			if json.Unmarshal(raw, &c) == nil {
				logins = c.Auths
			}
		} else if raw := podspec.SecretData(sec)[corev1.DockerConfigKey]; raw != nil {
			_ = json.Unmarshal(raw, &logins) // a broken secret holds no credentials
		}
		servers := make([]string, 0, len(logins))
		for server := range logins {
			servers = append(servers, server)
		}
		sort.Sort(sort.Reverse(sort.StringSlice(servers))) // names without * first
		for _, server := range servers {
			host, path := splitServer(server)
			if !matchesHost(host, reference.Domain(ref)) || !strings.HasPrefix("/"+reference.Path(ref), path) {
				continue
			}
			l := logins[server]
			if raw, err := base64.StdEncoding.DecodeString(l.Auth); err == nil && l.Username == "" {
				l.Username, l.Password, _ = strings.Cut(string(raw), ":")
			}
			all = append(all, &engine.RegistryAuth{Username: l.Username, Password: l.Password, ServerAddress: server})
			pathLen[all[len(all)-1]] = len(path)
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return pathLen[all[i]] > pathLen[all[j]] })
	return all[:min(len(all), maxCredentials)]
}

// splitServer returns the host of a server and the path of its images.
func splitServer(server string) (host, below string) {
	host, below, _ = strings.Cut(strings.TrimPrefix(strings.TrimPrefix(server, "https://"), "http://"), "/")
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		host = "docker.io"
	}
	for _, version := range []string{"v1", "v2"} { // of the API, in the address of a registry
		if rest, is := strings.CutPrefix(below+"/", version+"/"); is {
			below = strings.TrimSuffix(rest, "/")
		}
	}
	return host, strings.TrimSuffix("/"+below, "/")
}

// matchesHost reports whether a pattern of labels and perhaps a port matches a host.
func matchesHost(pattern, host string) bool {
	pattern, patternPort, _ := strings.Cut(pattern, ":")
	host, port, _ := strings.Cut(host, ":")
	patterns, labels := strings.Split(pattern, "."), strings.Split(host, ".")
	if port != patternPort || len(labels) != len(patterns) {
		return false
	}
	for i, p := range patterns {
		if is, err := path.Match(p, labels[i]); err != nil || !is {
			return false
		}
	}
	return true
}

// withEach calls try with each login, or once with nil, until it succeeds or fails for another
// reason than the login. The error is that of the first login, which matches best.
func withEach(ctx context.Context, all []*engine.RegistryAuth, try func(*engine.RegistryAuth) error) (err error) {
	if len(all) == 0 {
		return try(nil)
	}
	for _, auth := range all {
		e := try(auth)
		if e == nil || ctx.Err() != nil || errors.Is(e, engine.ErrUnavailable) || errors.Is(e, signature.ErrUntrusted) {
			return e
		}
		if err == nil {
			err = e
		}
	}
	return err
}
