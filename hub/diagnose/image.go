package diagnose

import (
	"slices"
	"strings"
)

// An ImageCause is a reason why an image cannot be pulled, with the words that identify it. Engines
// return no code, so the hub searches their messages. No other code does.
type ImageCause struct {
	words []string // any of them, in lower case

	Cause string // text in a list
	Card  string // text after the image's name
	Says  string // sentence about %s, the registry
	Next  string
}

// imageCauses are tried in order, because the message of an earlier cause may contain the words of
// a later one. The first ones are reasons of the kubelet, which need no message.
var imageCauses = []ImageCause{
	{words: []string{"invalidimagename"}, Cause: "no image's name", Card: "has a name that is invalid",
		Says: "This cannot be the name of an image.", Next: "Correct it: registry/repository:tag, in lower case."},
	{words: []string{"errimageneverpull"}, Cause: "image not on the device",
		Card: "is not on the device, and its pull policy is Never",
		Says: "It is not on the device, and its pull policy is Never.",
		Next: "Put it there, or let it be pulled: imagePullPolicy IfNotPresent."},
	{words: []string{"signaturevalidationfailed"}, Cause: "image not signed",
		Card: "is not signed by a signer that the device's policy trusts",
		Says: "The device's policy trusts none of its signers.", Next: "Sign it (cosign), or change the policy."},
	{words: []string{"imageinspecterror"}, Cause: "engine fails",
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
	{words: []string{"toomanyrequests", "too many requests", "pull rate limit"}, Cause: "registry limits pulls",
		Card: "cannot be pulled yet: its registry limits the pulls",
		Says: "%s limits the number of requests.",
		Next: "It is tried again. Credentials raise the limit of most registries; your own registry has no limit."},
	{words: []string{"pull access denied"}, Cause: "image denied", Card: "may not be pulled: its registry denies it",
		Says: "%s denies it: the image does not exist, or it is private.",
		Next: "Check the name and the tag; if it is private, give the pod an imagePullSecret."},
	{words: []string{"unauthorized", "authentication required", "no basic auth credentials", "access forbidden",
		"403 forbidden"}, Cause: "image needs credentials",
		Card: "may not be pulled: its registry requires credentials",
		Says: "%s requires credentials, or rejects the given ones.",
		Next: "Give the pod an imagePullSecret for this registry, or check the one that it has."},
	{words: []string{"denied"}, Cause: "image denied", Card: "may not be pulled: its registry denies it",
		Says: "%s denies it.", Next: "The credentials may not pull this image: check them, and its name."},
	{words: []string{"manifest unknown", "name unknown", "no such manifest", "repository does not exist",
		"repository name not known", "not found: manifest", "not found: not found",
		"invalid reference format"}, Cause: "image not found", Card: "is not in the registry", Says: "%s has no such image.",
		Next: "Check the name and the tag, and whether it has been pushed."},
	{words: []string{"certificate has expired or is not yet valid"}, Cause: "registry's certificate is out of date",
		Card: "cannot be pulled: the certificate of its registry is out of date",
		Says: "The certificate of %s is not valid at the time of the device's clock.",
		Next: "Look at the device's clock first (condition ClockSynced), then at the registry's certificate."},
	{words: []string{"first record does not look like a tls handshake", "server gave http response to https client"},
		Cause: "registry without TLS", Card: "cannot be pulled: its registry does not speak TLS",
		Says: "%s answers without TLS, but the device's engine uses TLS.",
		Next: "Give the registry a certificate, or name it among the engine's insecure registries on the device."},
	{words: []string{"x509:", "tls:", "certificate signed by unknown authority"}, Cause: "registry is not trusted",
		Card: "cannot be pulled: the device does not trust its registry",
		Says: "The device does not trust the certificate of %s.",
		Next: "Put the authority of the registry's certificate on the device (/etc/docker/certs.d, " +
			"/etc/containers/certs.d), or give it one for this name."},
	{words: []string{"no such host", "server misbehaving", "temporary failure in name resolution", "name resolution"},
		Cause: "registry's name is unknown", Card: "cannot be pulled: the name of its registry is unknown",
		Says: "The device's DNS has no address for %s.",
		Next: "Check the name of the image, and the device's DNS."},
	{words: []string{"connection refused"}, Cause: "registry does not answer",
		Card: "cannot be pulled: its registry does not answer", Says: "Nothing listens at %s.",
		Next: "Check the port, and whether the registry runs."},
	{words: []string{"no route to host", "network is unreachable", "host is unreachable"},
		Cause: "no route to the registry", Card: "cannot be pulled: there is no route to its registry",
		Says: "The device has no route to %s.", Next: "Look at its network, and at the route to the registry."},
	{words: []string{"i/o timeout", "deadline exceeded", "client.timeout", "timeout exceeded", "no progress for"},
		Cause: "registry does not answer", Card: "cannot be pulled: its registry does not answer",
		Says: "%s does not answer in time.",
		Next: "Look at the device's network; a slow link may need several tries; each resumes."},
	{words: []string{"unexpected eof", "connection reset", "broken pipe"}, Cause: "link to the registry broke",
		Card: "cannot be pulled: the link to its registry broke", Says: "The link to %s broke in the middle.",
		Next: "It is tried again, and resumes."},
	{words: []string{"unexpected http status: 5", "500 internal", "502 bad", "503 service", "504 gateway"},
		Cause: "registry fails", Card: "cannot be pulled: its registry fails",
		Says: "%s reports an internal error.", Next: "It is tried again; look at the registry."},
	{words: []string{": not found"}, Cause: "image not found", Card: "is not in the registry",
		Says: "%s has no such image.", Next: "Check the name and the tag, and whether it has been pushed."},
}

// ImageCauseOf returns the cause that a detail of ImageNotPulled describes.
func ImageCauseOf(detail string) ImageCause {
	if rest, ok := strings.CutPrefix(detail, "pull image "); ok { // from the device's agent
		if _, cause, ok := strings.Cut(rest, ": "); ok {
			detail = cause // without the image's name, which may contain the words
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

// WithReason returns the kubelet's message about an image. It starts with the kubelet's reason if
// that is the cause.
func WithReason(reason, message string) string {
	if reason != "ErrImagePull" && reason != "ImagePullBackOff" && reason != "RegistryUnavailable" {
		return reason + ": " + message
	}
	return message
}
