package agent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/signature"
)

// maxCredentials is how many are tried for one image.
const maxCredentials = 16

// A login is an entry of a pull secret.
type login struct{ Username, Password, Auth string }

// credentials are those of the pod's pull secrets that may be the ones for an image, as Kubernetes reads a config.json: a
// server may be one with a path, whose images are those below it, and have * in its name, for one word of it. Those of
// the longest path come first, then those of the first secret. None: the secrets have none for it.
func (s sources) credentials(image string) (all []*engine.RegistryAuth) {
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		return nil
	}
	var length []int // of the paths
	for _, p := range s.pod.Spec.ImagePullSecrets {
		sec, err := s.secret(p.Name)
		if sec == nil || err != nil {
			continue
		}
		logins := map[string]login{}
		if raw := secretData(sec)[corev1.DockerConfigJsonKey]; raw != nil {
			var c struct{ Auths map[string]login }
			if json.Unmarshal(raw, &c) == nil {
				logins = c.Auths
			}
		} else if raw := secretData(sec)[corev1.DockerConfigKey]; raw != nil {
			_ = json.Unmarshal(raw, &logins) // a broken secret holds no credentials
		}
		for _, server := range slices.Backward(slices.Sorted(maps.Keys(logins))) { // names before those with *
			host, below := placeOf(server)
			if !isHost(host, reference.Domain(ref)) || !strings.HasPrefix("/"+reference.Path(ref), below) {
				continue
			}
			l := logins[server]
			if raw, err := base64.StdEncoding.DecodeString(l.Auth); err == nil && l.Username == "" {
				l.Username, l.Password, _ = strings.Cut(string(raw), ":")
			}
			at := sort.Search(len(length), func(i int) bool { return length[i] < len(below) })
			length = slices.Insert(length, at, len(below))
			all = slices.Insert(all, at, &engine.RegistryAuth{Username: l.Username, Password: l.Password, ServerAddress: server})
		}
	}
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

// withEach tries something with one after the other of the credentials, without any where there are none, until that goes
// well or fails for another reason. The error is that of the first, which fit best.
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
