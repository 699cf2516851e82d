package agent

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

// maxCredentials is how many are tried for one image.
const maxCredentials = 16

// A login is an entry of a pull secret.
type login struct{ Username, Password, Auth string }

// credentials are those of the pod's pull secrets that may be the ones for an image, as Kubernetes
// reads a config.json: a server may be one with a path, whose images are those below it, and have *
// in its name, for one word of it. Those of the longest path come first, then those of the first
// secret. None: the secrets have none for it.
func credentials(s podspec.Sources, image string) (all []*engine.RegistryAuth) {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return nil
	}
	below := map[*engine.RegistryAuth]int{} // bytes of the path
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
		sort.Sort(sort.Reverse(sort.StringSlice(servers))) // names before those with *
		for _, server := range servers {
			host, path := placeOf(server)
			if !isHost(host, reference.Domain(ref)) || !strings.HasPrefix("/"+reference.Path(ref), path) {
				continue
			}
			l := logins[server]
			if raw, err := base64.StdEncoding.DecodeString(l.Auth); err == nil && l.Username == "" {
				l.Username, l.Password, _ = strings.Cut(string(raw), ":")
			}
			all = append(all, &engine.RegistryAuth{Username: l.Username, Password: l.Password, ServerAddress: server})
			below[all[len(all)-1]] = len(path)
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return below[all[i]] > below[all[j]] })
	return all[:min(len(all), maxCredentials)]
}

// placeOf is the host of a server, and the path that images begin with there.
func placeOf(server string) (host, below string) {
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

// isHost tells whether a host, perhaps with a port, is what a server is called.
func isHost(server, host string) bool {
	name, port, _ := strings.Cut(server, ":")
	its, itsPort, _ := strings.Cut(host, ":")
	words, itsWords := strings.Split(name, "."), strings.Split(its, ".")
	if port != itsPort || len(words) != len(itsWords) {
		return false
	}
	for i, w := range words {
		if is, err := path.Match(w, itsWords[i]); err != nil || !is {
			return false
		}
	}
	return true
}

// withEach tries something with one after the other of the credentials, without any where there are
// none, until that goes well or fails for another reason. The error is that of the first, which fit
// best.
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
