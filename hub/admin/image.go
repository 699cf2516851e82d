package admin

import (
	"cmp"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/state"
)

// An imageTrouble is why a container has no image.
type imageTrouble struct {
	Container                 string
	Registry, Repository, Tag string
	Cause                     string // in a few words, such as "image not found"
	Says                      string
	Next                      string
	Text                      string // what the device's engine says itself
	short                     string // the image without its registry
}

// An imageCause is a reason for which engines get no image, and the words by which it is known:
// engines tell no code, and in one place only may the page read their sentences.
type imageCause struct {
	words []string // one of them, in lower case
	cause string
	says  string // of %s, the registry
	next  string
}

// imageCauses come in the order in which they are looked for: what comes later may stand in the
// texts of what comes before.
var imageCauses = []imageCause{
	{words: []string{"no space left on device", "disk quota exceeded", "not enough space"}, cause: "no space for the image", says: "The device's disk is full.",
		next: "Make room on it: images that nothing uses are removed under DiskPressure; look at the node's disk."},
	{words: []string{"no matching manifest", "no image found in manifest list", "no image found in image index", "does not match the specified platform"}, cause: "image not for this processor", says: "%s has the image, but not for this node's processor.",
		next: "Build it for the node's architecture as well (docker buildx build --platform), or ask for another node by kubernetes.io/arch."},
	{words: []string{"toomanyrequests", "too many requests", "pull rate limit"}, cause: "registry wants fewer pulls", says: "%s has had too many requests and wants to be asked less often.",
		next: "It is tried again. Credentials raise the limit of most registries; a registry of your own has none."},
	{words: []string{"pull access denied"}, cause: "image denied", says: "%s denies it: there is no such image, or it is not for everybody.",
		next: "Check the name and the tag; if it is private, give the pod an imagePullSecret."},
	{words: []string{"unauthorized", "authentication required", "no basic auth credentials", "access forbidden", "403 forbidden"}, cause: "image needs credentials", says: "%s wants to know who asks, or does not believe it.",
		next: "Give the pod an imagePullSecret for this registry, or check the one that it has."},
	{words: []string{"denied"}, cause: "image denied", says: "%s denies it.", next: "The credentials may not pull this image: check them, and its name."},
	{words: []string{"manifest unknown", "name unknown", "no such manifest", "repository does not exist", "repository name not known", "not found: manifest", "not found: not found", "invalid reference format"}, cause: "image not found", says: "%s has no such image.",
		next: "Check the name and the tag, and whether it has been pushed."},
	{words: []string{"certificate has expired or is not yet valid"}, cause: "registry's certificate is out of date", says: "The certificate of %s is not valid at the time that the device's clock tells.",
		next: "Look at the device's clock first (condition ClockSynced), then at the registry's certificate."},
	{words: []string{"first record does not look like a tls handshake", "server gave http response to https client"}, cause: "registry speaks no TLS", says: "%s answers without TLS, and the device's engine asks with it.",
		next: "Give the registry a certificate, or name it among the engine's insecure registries on the device."},
	{words: []string{"x509:", "tls:", "certificate signed by unknown authority"}, cause: "registry is not trusted", says: "The device does not trust the certificate of %s.",
		next: "Put the authority of the registry's certificate on the device (/etc/docker/certs.d, /etc/containers/certs.d), or give it one for this name."},
	{words: []string{"no such host", "server misbehaving", "temporary failure in name resolution", "name resolution"}, cause: "registry's name is unknown", says: "The device finds no address for %s.",
		next: "Check the name of the image, and the device's DNS."},
	{words: []string{"connection refused"}, cause: "registry does not answer", says: "Nothing listens at %s.", next: "Check the port, and whether the registry runs."},
	{words: []string{"no route to host", "network is unreachable", "host is unreachable"}, cause: "no route to the registry", says: "The device has no route to %s.", next: "Look at its network, and at what is between."},
	{words: []string{"i/o timeout", "deadline exceeded", "client.timeout", "timeout exceeded", "no progress for"}, cause: "registry does not answer", says: "%s does not answer in time.",
		next: "Look at the device's network; a slow link may need several tries, and goes on where it was."},
	{words: []string{"unexpected eof", "connection reset", "broken pipe"}, cause: "link to the registry broke", says: "The link to %s broke in the middle.", next: "It is tried again, and goes on where it was."},
	{words: []string{"unexpected http status: 5", "500 internal", "502 bad", "503 service", "504 gateway"}, cause: "registry is out of order", says: "%s has trouble of its own.", next: "It is tried again; look at the registry."},
	{words: []string{": not found"}, cause: "image not found", says: "%s has no such image.", next: "Check the name and the tag, and whether it has been pushed."},
}

// imageReasons are the kubelet's reasons why there is no image that say enough by themselves.
var imageReasons = map[string]imageCause{
	"InvalidImageName":          {cause: "no image's name", says: "This cannot be the name of an image.", next: "Correct it: registry/repository:tag, in lower case."},
	"ErrImageNeverPull":         {cause: "image not on the device", says: "It is not on the device, and its pull policy is Never.", next: "Put it there, or let it be pulled: imagePullPolicy IfNotPresent."},
	"SignatureValidationFailed": {cause: "image not signed", says: "Nobody has signed it whom the device's policy trusts.", next: "Sign it (cosign), or change the policy."},
	"ImageInspectError":         {cause: "engine does not know", says: "The device's engine cannot tell whether it has the image.", next: "It is tried again; look at the engine on the device."},
}

// What the device's agent writes before what its engine says.
const (
	backingOff = "Back-off pulling image: "
	pulling    = "pull image "
)

// imageTroubleOf explains why a container that waits has no image; nil: it waits for something else.
func imageTroubleOf(w diagnose.Args) *imageTrouble {
	if !diagnose.WaitsForImage(w.Reason) {
		return nil
	}
	image, text := w.Image, strings.TrimPrefix(w.Message, backingOff)
	t := &imageTrouble{Container: w.Container, Text: strings.ToValidUTF8(w.Message, "")}
	if asked, said, ok := strings.Cut(strings.TrimPrefix(text, pulling), ": "); ok && strings.HasPrefix(text, pulling) {
		image, text = asked, said // a policy's mirror may be asked instead
	}
	t.Registry, t.Repository, t.Tag = "", image, ""
	if named, err := reference.ParseNormalizedNamed(image); err == nil {
		t.Registry, t.Repository = reference.Domain(named), reference.Path(named)
		switch named := reference.TagNameOnly(named).(type) {
		case reference.Digested:
			t.Tag = named.Digest().String()
		case reference.Tagged:
			t.Tag = named.Tag()
		}
	}
	t.short = shortImage(image)
	cause, known := imageReasons[w.Reason]
	if !known {
		cause = imageCause{cause: "image not pulled", says: "The image could not be pulled from %s.", next: "What the device's engine says is below. It is tried again."}
		text = ": " + strings.ToLower(text)
		if i := slices.IndexFunc(imageCauses, func(c imageCause) bool {
			return slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(text, w) })
		}); i >= 0 {
			cause = imageCauses[i]
		}
	}
	t.Cause, t.Next = cause.cause, cause.next
	t.Says = strings.Replace(cause.says, "%s", cmp.Or(t.Registry, "the registry"), 1)
	return t
}

// shortImage is an image as people call it: without its registry.
func shortImage(image string) string {
	name, digest, _ := strings.Cut(image, "@")
	name = name[strings.LastIndexByte(name, '/')+1:]
	if _, _, tagged := strings.Cut(name, ":"); digest != "" && !tagged {
		return name + "@" + digest[:min(len(digest), 15)]
	}
	return name
}

// imagesMissing are the images for which a pod waits.
func imagesMissing(p *corev1.Pod) (all []*imageTrouble) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || p.Spec.NodeName == "" || state.Terminated(p) || len(all) == mostCrashes {
			continue
		}
		if t := imageTroubleOf(diagnose.Args{Container: c.Name, Image: diagnose.ImageOf(p, c.Name), Reason: w.Reason, Message: w.Message}); t != nil {
			all = append(all, t)
		}
	}
	return all
}
