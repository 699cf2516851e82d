package finding

import (
	"strings"
	"testing"

	"flotilla.dev/hub/diagnose"
)

// The errors are those of Docker 28 and Podman 5.
func TestWhyThereIsNoImage(t *testing.T) {
	const ref = "registry.example:5000/shop/kiosk:2.1"
	for _, c := range []struct{ name, said, cause string }{
		{"Docker, no such tag", "not found: manifest unknown", "image not found"},
		{"Docker, no such tag, of an older version",
			"not found: manifest for registry.example:5000/shop/kiosk:2.1 not found: manifest unknown: manifest unknown", "image not found"},
		{"Docker, no such repository", "not found: name unknown", "image not found"},
		{"Docker Hub, private or not there",
			"pull access denied for kiosk, repository does not exist or may require 'docker login': denied: requested access to the resource is denied; check its name and the registry's credentials", "image denied"},
		{"Docker, denied", "denied; check its name and the registry's credentials", "image denied"},
		{"Docker, without credentials", `Head "http://127.0.0.1:25992/v2/authy/x/manifests/2.1": no basic auth credentials`, "image needs credentials"},
		{"Docker, too many requests", "toomanyrequests", "registry limits pulls"},
		{"Docker Hub, too many requests",
			"toomanyrequests: You have reached your unauthenticated pull rate limit. https://www.docker.com/increase-rate-limit", "registry limits pulls"},
		{"Docker, broken", "received unexpected HTTP status: 500 Internal Server Error", "registry fails"},
		{"Docker, another processor", "not found: no matching manifest for linux/amd64 in the manifest list entries",
			"image not for this processor"},
		{"Docker, no name", `Get "https://registry.example:5000/v2/": dial tcp: lookup registry.example on 10.255.255.53:53: no such host`, "registry's name is unknown"},
		{"Docker, refused", `Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused`,
			"registry does not answer"},
		{"Docker, no route", `Get "https://192.0.2.9/v2/": dial tcp 192.0.2.9:443: connect: no route to host`,
			"no route to the registry"},
		{"Docker, silent", `Get "https://192.0.2.9/v2/": net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)`, "registry does not answer"},
		{"Docker, its own certificate", `Get "https://192.0.2.2:25993/v2/": x509: certificate signed by unknown authority`, "registry is not trusted"},
		{"Docker, a certificate for another name",
			`Get "https://10.99.99.99:5000/v2/": x509: cannot validate certificate for 10.99.99.99 because it doesn't contain any IP SANs`, "registry is not trusted"},
		{"Docker, a clock that is wrong",
			`Get "https://registry.example:5000/v2/": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 1970-01-01T00:02:11Z is before 2026-01-01T00:00:00Z`, "registry's certificate is out of date"},
		{"Docker, no TLS", `Get "https://192.0.2.2:25994/v2/": tls: first record does not look like a TLS handshake`,
			"registry without TLS"},
		{"Docker, no TLS, of an older version",
			`Get "https://192.0.2.2:25994/v2/": http: server gave HTTP response to HTTPS client`,
			"registry without TLS"},
		{"Docker, a full disk", "failed to register layer: write /usr/bin/x: no space left on device",
			"no space for the image"},
		{"Podman, no such tag", "not found: initializing source docker://registry.example:5000/shop/kiosk:2.1: reading manifest 2.1 in registry.example:5000/shop/kiosk: manifest unknown", "image not found"},
		{"Podman, no such repository", "not found: initializing source docker://127.0.0.1:25991/noname/x:2.1: reading manifest 2.1 in 127.0.0.1:25991/noname/x: name unknown", "image not found"},
		{"Podman, denied", "initializing source docker://127.0.0.1:25991/denied/x:2.1: reading manifest 2.1 in 127.0.0.1:25991/denied/x: denied; check its name and the registry's credentials", "image denied"},
		{"Podman, without credentials", "initializing source docker://127.0.0.1:25992/authy/x:2.1: reading manifest 2.1 in 127.0.0.1:25992/authy/x: unauthorized; check its name and the registry's credentials", "image needs credentials"},
		{"Podman, broken", "initializing source docker://127.0.0.1:25991/broken/x:2.1: reading manifest 2.1 in 127.0.0.1:25991/broken/x: received unexpected HTTP status: 500 Internal Server Error", "registry fails"},
		{"Podman, another processor", `not found: choosing an image from manifest list docker://127.0.0.1:25991/arch:2.1: no image found in manifest list for architecture amd64, variant "", OS linux`, "image not for this processor"},
		{"Podman, no name", `initializing source docker://no-such-host.invalid/kiosk:2.1: pinging container registry no-such-host.invalid: Get "https://no-such-host.invalid/v2/": dial tcp: lookup no-such-host.invalid on 10.255.255.53:53: no such host`, "registry's name is unknown"},
		{"Podman, refused", `initializing source docker://localhost:5999/kiosk:2.1: pinging container registry localhost:5999: Get "https://localhost:5999/v2/": dial tcp 127.0.0.1:5999: connect: connection refused`, "registry does not answer"},
		{"Podman, its own certificate", `initializing source docker://192.0.2.2:25993/kiosk:2.1: pinging container registry 192.0.2.2:25993: Get "https://192.0.2.2:25993/v2/": x509: certificate signed by unknown authority`, "registry is not trusted"},
		{"Podman, no TLS", `initializing source docker://192.0.2.2:25994/kiosk:2.1: pinging container registry 192.0.2.2:25994: Get "https://192.0.2.2:25994/v2/": tls: first record does not look like a TLS handshake`, "registry without TLS"},
		{"Podman, a full disk", "copying system image from manifest list: writing blob: adding layer with blob \"sha256:aa\": processing tar file(write /x: no space left on device): exit status 1", "no space for the image"},
		{"a pull that stalls", "no progress for 10m0s; it is tried again", "registry does not answer"},
		{"something new", "the moon is full", "image not pulled"},
	} {
		for _, reason := range []string{"ErrImagePull", "ImagePullBackOff"} {
			message := "pull image " + ref + ": " + c.said
			if reason == "ImagePullBackOff" {
				message = "Back-off pulling image: " + message
			}
			got := ImageTroubleOf(diagnose.Args{Container: "web", Image: "kiosk:9", Reason: reason, Message: message})
			if got == nil || got.Cause != c.cause || got.Registry != "registry.example:5000" ||
				got.Repository != "shop/kiosk" || got.Tag != "2.1" || got.Short != "kiosk:2.1" || got.Next == "" ||
				strings.Contains(got.Says, "%") {
				t.Errorf("%s: %+v, want %q", c.name, got, c.cause)
			}
		}
	}
}

func TestOfWhichImage(t *testing.T) {
	for _, c := range []struct{ image, reason, registry, repository, tag, short, cause string }{
		{"kiosk", "ErrImagePull", "docker.io", "library/kiosk", "latest", "kiosk", "image not pulled"},
		{"kiosk@sha256:" + strings.Repeat("ab", 32), "ErrImagePull", "docker.io", "library/kiosk", "sha256:" +
			strings.Repeat("ab", 32), "kiosk@sha256:abababab", "image not pulled"},
		{"ghcr.io/a/b:1", "ErrImageNeverPull", "ghcr.io", "a/b", "1", "b:1", "image not on the device"},
		{"Not A Name", "InvalidImageName", "", "Not A Name", "", "Not A Name", "no image's name"},
		{"ghcr.io/a/b:1", "SignatureValidationFailed", "ghcr.io", "a/b", "1", "b:1", "image not signed"},
	} {
		got := ImageTroubleOf(diagnose.Args{Container: "web", Image: c.image, Reason: c.reason})
		if got.Registry != c.registry || got.Repository != c.repository || got.Tag != c.tag || got.Short != c.short ||
			got.Cause != c.cause {
			t.Errorf("%s: %+v", c.image, got)
		}
	}
	for _, reason := range []string{"", "CrashLoopBackOff", "ContainerCreating"} {
		if got := ImageTroubleOf(diagnose.Args{Container: "web", Image: "kiosk", Reason: reason}); got != nil {
			t.Errorf("%s is %+v", reason, got)
		}
	}
}
