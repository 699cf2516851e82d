package diagnose

import (
	"slices"
	"strings"
)

// An ImageCause is a reason for which engines get no image, and the words by which it is known:
// engines tell no code, and only here may the hub read their sentences.
type ImageCause struct {
	words []string // one of them, in lower case

	Cause string // in a list
	Card  string // after the image's name
	Says  string // of %s, the registry
	Next  string
}

// imageCauses come in the order in which they are looked for: what comes later may stand in the
// texts of what comes before. The first are the kubelet's reasons that say enough by themselves.
var imageCauses = []ImageCause{
	{words: []string{"invalidimagename"}, Cause: "no image's name", Card: "has a name that is invalid",
		Says: "This cannot be the name of an image.", Next: "Correct it: registry/repository:tag, in lower case."},
	{words: []string{"errimageneverpull"}, Cause: "image not on the device",
		Card: "is not on the device, and its pull policy is Never",
		Says: "It is not on the device, and its pull policy is Never.",
		Next: "Put it there, or let it be pulled: imagePullPolicy IfNotPresent."},
	{words: []string{"signaturevalidationfailed"}, Cause: "image not signed",
		Card: "is not signed by anybody whom the device's policy trusts",
		Says: "Nobody has signed it whom the device's policy trusts.", Next: "Sign it (cosign), or change the policy."},
	{words: []string{"imageinspecterror"}, Cause: "engine does not know",
		Card: "cannot be looked up: the device's engine fails",
		Says: "The device's engine cannot tell whether it has the image.",
		Next: "It is tried again; look at the engine on the device."},
	{words: []string{"no space left on device", "disk quota exceeded", "not enough space"},
		Cause: "no space for the image", Card: "cannot be pulled: the device's disk is full",
		Says: "The device's disk is full.",
		Next: "Make room on it: images that nothing uses are removed under DiskPressure; look at the node's disk."},
	{words: []string{"no matching manifest", "no image found in manifest list", "no image found in image index",
		"does not match the specified platform"}, Cause: "image not for this processor",
		Card: "is not built for the node's processor",
		Says: "%s has the image, but not for this node's processor.",
		Next: "Build it for the node's architecture as well (docker buildx build --platform), or ask for another node " +
			"by kubernetes.io/arch."},
	{words: []string{"toomanyrequests", "too many requests", "pull rate limit"}, Cause: "registry wants fewer pulls",
		Card: "cannot be pulled yet: its registry limits the pulls",
		Says: "%s has had too many requests and wants to be asked less often.",
		Next: "It is tried again. Credentials raise the limit of most registries; a registry of your own has none."},
	{words: []string{"pull access denied"}, Cause: "image denied", Card: "may not be pulled: its registry denies it",
		Says: "%s denies it: there is no such image, or it is not for everybody.",
		Next: "Check the name and the tag; if it is private, give the pod an imagePullSecret."},
	{words: []string{"unauthorized", "authentication required", "no basic auth credentials", "access forbidden",
		"403 forbidden"}, Cause: "image needs credentials",
		Card: "may not be pulled: its registry wants credentials",
		Says: "%s wants to know who asks, or does not believe it.",
		Next: "Give the pod an imagePullSecret for this registry, or check the one that it has."},
	{words: []string{"denied"}, Cause: "image denied", Card: "may not be pulled: its registry denies it",
		Says: "%s denies it.", Next: "The credentials may not pull this image: check them, and its name."},
	{words: []string{"manifest unknown", "name unknown", "no such manifest", "repository does not exist",
		"repository name not known", "not found: manifest", "not found: not found",
		"invalid reference format"}, Cause: "image not found", Card: "is not in the registry", Says: "%s has no such image.",
		Next: "Check the name and the tag, and whether it has been pushed."},
	{words: []string{"certificate has expired or is not yet valid"}, Cause: "registry's certificate is out of date",
		Card: "cannot be pulled: the certificate of its registry is out of date",
		Says: "The certificate of %s is not valid at the time that the device's clock tells.",
		Next: "Look at the device's clock first (condition ClockSynced), then at the registry's certificate."},
	{words: []string{"first record does not look like a tls handshake", "server gave http response to https client"},
		Cause: "registry speaks no TLS", Card: "cannot be pulled: its registry does not speak TLS",
		Says: "%s answers without TLS, and the device's engine asks with it.",
		Next: "Give the registry a certificate, or name it among the engine's insecure registries on the device."},
	{words: []string{"x509:", "tls:", "certificate signed by unknown authority"}, Cause: "registry is not trusted",
		Card: "cannot be pulled: the device does not trust its registry",
		Says: "The device does not trust the certificate of %s.",
		Next: "Put the authority of the registry's certificate on the device (/etc/docker/certs.d, " +
			"/etc/containers/certs.d), or give it one for this name."},
	{words: []string{"no such host", "server misbehaving", "temporary failure in name resolution", "name resolution"},
		Cause: "registry's name is unknown", Card: "cannot be pulled: the name of its registry is unknown",
		Says: "The device finds no address for %s.",
		Next: "Check the name of the image, and the device's DNS."},
	{words: []string{"connection refused"}, Cause: "registry does not answer",
		Card: "cannot be pulled: its registry does not answer", Says: "Nothing listens at %s.",
		Next: "Check the port, and whether the registry runs."},
	{words: []string{"no route to host", "network is unreachable", "host is unreachable"},
		Cause: "no route to the registry", Card: "cannot be pulled: there is no route to its registry",
		Says: "The device has no route to %s.", Next: "Look at its network, and at what is between."},
	{words: []string{"i/o timeout", "deadline exceeded", "client.timeout", "timeout exceeded", "no progress for"},
		Cause: "registry does not answer", Card: "cannot be pulled: its registry does not answer",
		Says: "%s does not answer in time.",
		Next: "Look at the device's network; a slow link may need several tries, and goes on where it was."},
	{words: []string{"unexpected eof", "connection reset", "broken pipe"}, Cause: "link to the registry broke",
		Card: "cannot be pulled: the link to its registry broke", Says: "The link to %s broke in the middle.",
		Next: "It is tried again, and goes on where it was."},
	{words: []string{"unexpected http status: 5", "500 internal", "502 bad", "503 service", "504 gateway"},
		Cause: "registry is out of order", Card: "cannot be pulled: its registry is out of order",
		Says: "%s has trouble of its own.", Next: "It is tried again; look at the registry."},
	{words: []string{": not found"}, Cause: "image not found", Card: "is not in the registry",
		Says: "%s has no such image.", Next: "Check the name and the tag, and whether it has been pushed."},
}

// ImageCauseOf returns why there is no image, from a detail of ImageNotPulled.
func ImageCauseOf(detail string) ImageCause {
	if asked, ok := strings.CutPrefix(detail, "pull image "); ok { // of the device's agent
		if _, said, ok := strings.Cut(asked, ": "); ok {
			detail = said // an image's name says nothing
		}
	}
	text := ": " + strings.ToLower(detail)
	for _, c := range imageCauses {
		if slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(text, w) }) {
			return c
		}
	}
	return ImageCause{Cause: "image not pulled", Card: "cannot be pulled", Says: "The image could not be pulled from %s.",
		Next: "What the device's engine says is below. It is tried again."}
}

// WithReason is what a kubelet says of an image, with its reason where that is the cause.
func WithReason(reason, message string) string {
	if reason != "ErrImagePull" && reason != "ImagePullBackOff" && reason != "RegistryUnavailable" {
		return reason + ": " + message
	}
	return message
}
