package wire

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"flotilla.dev/shared/bound"
)

// Limits of payloads.
const (
	MaxBoot      = 64 // bytes of a boot id
	MaxDepth     = bound.Depth
	MaxPods      = 1024 // pods in one list
	MaxVolumes   = 1024 // persistent volumes in one list
	MaxMirrors   = 64   // registries whose images the hub may have
	MaxPrepare   = 40   // images to pull in advance; a status names 50 images
	MaxUID       = 128  // bytes of a pod's uid in a device's list
	MaxReason    = 128  // bytes of an event's reason
	MaxMessage   = 4096 // bytes of an event's message
	MaxLeaseSecs = 300  // seconds of the longest lease interval of a hub
	MaxWords     = 4096 // words of a command
)

// ParseStatus parses a status payload of at most MaxFromDevice bytes of JSON or gzip. Unknown
// fields are ignored.
func ParseStatus(data []byte) (Status, error) {
	var s Status
	p, err := unpack(payload{"status", data, MaxFromDevice}, MaxUnpacked)
	if err == nil {
		err = decode(p, &s)
	}
	if err != nil {
		return Status{}, err
	}
	if n := len(s.Volumes); n > MaxVolumes {
		err = fmt.Errorf("%d volumes in one list, at most %d are read", n, MaxVolumes)
	}
	return s, check("status", ValidBoot(s.Boot), ValidMachine(s.MachineID), s.Proof.valid(), err)
}

// ParsePods parses a pods payload of at most MaxFromDevice bytes of JSON or gzip and MaxPods pods,
// each with uid, namespace and name.
func ParsePods(data []byte) (Pods, error) {
	var p Pods
	text, err := unpack(payload{"pods", data, MaxFromDevice}, MaxUnpacked)
	if err == nil {
		err = decode(text, &p)
	}
	if err != nil {
		return Pods{}, err
	}
	return p, check("pods", ValidBoot(p.Boot), p.valid())
}

// valid checks the rules for the whole list.
func (p *Pods) valid() error {
	if len(p.Pods) > MaxPods {
		return fmt.Errorf("%d pods in one list, at most %d are read", len(p.Pods), MaxPods)
	}
	if p.Generation < 0 {
		return fmt.Errorf("generation is %d, but generations start at 0", p.Generation)
	}
	if err := validPart(p.Part, p.Parts); err != nil {
		return err
	}
	if p.Base > 0 && p.Base >= p.Seq {
		return fmt.Errorf("base is %d, but it must be a list before this one, %d", p.Base, p.Seq)
	}
	seen := make(map[types.UID]bool, len(p.Pods))
	for i, pod := range p.Pods {
		switch {
		case seen[pod.UID]:
			return fmt.Errorf("pods[%d]: uid %.64q is repeated in one list", i, pod.UID)
		case len(pod.UID) > MaxUID: // the hub creates uids, and stores the uids of a list until all parts have arrived
			return fmt.Errorf("pods[%d]: uid has %d bytes, at most %d are read", i, len(pod.UID), MaxUID)
		case pod.AsBefore() && p.Base > 0:
		case pod.UID == "" || pod.Namespace == "" || pod.Name == "":
			return fmt.Errorf("pods[%d] must have uid, namespace and name", i)
		}
		seen[pod.UID] = true
	}
	return nil
}

// ParseEvent parses an event payload of at most MaxFromDevice bytes.
func ParseEvent(data []byte) (Event, error) {
	var e Event
	if err := decode(payload{"event", data, MaxFromDevice}, &e); err != nil {
		return Event{}, err
	}
	err := ValidBoot(e.Boot)
	switch {
	case e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning:
		err = fmt.Errorf("type is %.40q, but events are Normal or Warning", e.Type)
	case e.Reason == "" || len(e.Reason) > MaxReason || !plain(e.Reason):
		err = fmt.Errorf("reason %.150q must be 1 to %d letters and digits in CamelCase", e.Reason, MaxReason)
	case len(e.Message) > MaxMessage:
		err = fmt.Errorf("message has %d bytes, at most %d are read", len(e.Message), MaxMessage)
	case e.Container != "" && len(validation.IsDNS1123Label(e.Container)) > 0: // the name is shown unchanged
		err = fmt.Errorf("container %.40q must be the name of one, such as web", e.Container)
	}
	return e, check("event", err)
}

// ParsePresence parses a presence payload or a will of at most MaxWill bytes.
func ParsePresence(data []byte) (Presence, error) {
	var p Presence
	if err := decode(payload{"presence", data, MaxWill}, &p); err != nil {
		return Presence{}, err
	}
	err := ValidBoot(p.Boot)
	if p.State != PresenceLost && p.State != PresenceShutdown {
		err = fmt.Errorf("state is %.40q, but it must be %s or %s", p.State, PresenceLost, PresenceShutdown)
	}
	return p, check("presence", err)
}

// validPart checks a part number: 1 to parts, or 0 for an undivided payload.
func validPart(part, parts int) error {
	if part == 0 && parts == 0 || part >= 1 && part <= parts && parts <= MaxParts {
		return nil
	}
	return fmt.Errorf("this is part %d of %d, but parts are counted from 1, and at most %d are read", part, parts,
		MaxParts)
}

// ParseDesired parses a desired payload or a part of it: at most MaxToDevice bytes of JSON, or
// MaxFromDevice of gzip. It parses pods one by one, see Unreadable.
func ParseDesired(data []byte) (Desired, error) {
	var all rawDesired
	p, err := unpack(payload{"desired", data, MaxToDevice}, MaxToDevice)
	if err == nil {
		err = decode(p, &all)
	}
	if err == nil {
		err = check("desired", validPart(all.Part, all.Parts))
	}
	if err != nil {
		return Desired{}, err
	}
	d := all.joined()
	d.Firmware.sanitize()
	d.sanitizeUpgrade()
	rest := d
	rest.Pods, rest.ConfigMaps, rest.Secrets = nil, nil, nil // their content is checked for the pods that use them
	err = bound.Object(rest)
	switch {
	case err != nil:
	case d.Dismissed != nil:
		d = Desired{Dismissed: d.Dismissed}
		if d.Dismissed.Time.IsZero() || len(d.Dismissed.By) > MaxMessage || len(d.Dismissed.Reason) > MaxMessage {
			err = fmt.Errorf("dismissed must have a time, and by and reason of at most %d bytes", MaxMessage)
		}
	case len(d.Volumes) > MaxVolumes:
		err = fmt.Errorf("%d volumes in one list, at most %d are read", len(d.Volumes), MaxVolumes)
	case len(d.Mirrors()) > MaxMirrors:
		err = fmt.Errorf("%d mirrors in one list, at most %d are read", len(d.Mirrors()), MaxMirrors)
	case d.Images != nil && len(d.Images.Prepare) > MaxPrepare:
		err = fmt.Errorf("%d images to prepare in one list, at most %d are read", len(d.Images.Prepare), MaxPrepare)
	case d.Generation < 0:
		err = fmt.Errorf("generation is %d, but generations start at 0", d.Generation)
	case d.Hub == "":
		err = errors.New("hub is missing: generations compare within one hub only")
	case d.LeaseIntervalSeconds < 0 || d.LeaseIntervalSeconds > MaxLeaseSecs:
		err = fmt.Errorf("leaseIntervalSeconds is %d, but it must be 1 to %d, or 0 to keep the present one",
			d.LeaseIntervalSeconds, MaxLeaseSecs)
	}
	return d, check("desired", err)
}

// ParseRequest parses a request payload of at most MaxRequest bytes. An unknown type is not an
// error here: the device answers it.
func ParseRequest(data []byte) (Request, error) {
	var r Request
	if err := decode(payload{"request", data, MaxRequest}, &r); err != nil {
		return Request{}, err
	}
	return r, check("request", r.Valid())
}

// Valid returns an error if a request is not valid. A request of an unknown type is valid.
func (r *Request) Valid() error {
	switch {
	case r.Type == "" || len(r.Type) > MaxID || !plain(r.Type):
		return fmt.Errorf("type %.80q must be one word such as %s", r.Type, RequestRefresh)
	case (r.Type == RequestAck || r.Type == RequestCancel) && ValidID(r.Of) != nil:
		return fmt.Errorf("%s without the id of the request that it is about", r.Type)
	case r.Input() && r.Seq == 0:
		return fmt.Errorf("%s without its number: inputs are counted from 1", r.Type)
	case len(r.Data) > 0 && r.Type != RequestStdin:
		return fmt.Errorf("%s with data: only %s has some", r.Type, RequestStdin)
	case len(r.Data) > MaxInput:
		return fmt.Errorf("%s has %d bytes of data, at most %d are read", r.Type, len(r.Data), MaxInput)
	case r.Type == RequestResize && (r.Width == 0 || r.Height == 0):
		return fmt.Errorf("%s to %dx%d: a terminal has at least one column and one row", r.Type, r.Width, r.Height)
	case r.Type == RequestExec && (len(r.Command) == 0 || r.Command[0] == ""):
		return errors.New("exec without a command")
	case len(r.Command) > MaxWords:
		return fmt.Errorf("the command has %d words, at most %d are read", len(r.Command), MaxWords)
	case r.Type == RequestPortForward && (r.Port < 1 || r.Port > 65535):
		return fmt.Errorf("port %d is not one of 1 to 65535", r.Port)
	case r.DeadlineSeconds < 0:
		return fmt.Errorf("deadlineSeconds is %d, but must be positive", r.DeadlineSeconds)
	}
	return nil
}

// ParseReply parses a reply payload of at most MaxFromDevice bytes.
func ParseReply(data []byte) (Reply, error) {
	var r Reply
	if err := decode(payload{"reply", data, MaxFromDevice}, &r); err != nil {
		return Reply{}, err
	}
	var err error
	if !r.EOF && (r.Error != "" || r.ExitCode != 0) {
		err = errors.New("only the last chunk, with eof, may have error and exitCode")
	}
	return r, check("reply", err)
}

// ParseUsage parses the answer to a usage request, of at most MaxUsage bytes and MaxPods pods.
func ParseUsage(data []byte) (Usage, error) {
	var u Usage
	if err := decode(payload{"usage", data, MaxUsage}, &u); err != nil {
		return Usage{}, err
	}
	var err error
	switch {
	case len(u.Pods) > MaxPods:
		err = fmt.Errorf("%d pods in one list, at most %d are read", len(u.Pods), MaxPods)
	case u.Window.Duration < 0:
		err = fmt.Errorf("window is %s, but it must not be negative", u.Window.Duration)
	}
	return u, check("usage", err)
}

// ValidBoot checks a boot id: 1 to 64 letters, digits, '-' and '_', such as a
// ULID or a UUID.
func ValidBoot(boot string) error {
	if boot == "" {
		return errors.New("boot is missing")
	}
	if len(boot) > MaxBoot || !plain(boot) {
		return fmt.Errorf("boot %.80q must be at most %d letters, digits or '-', such as a ULID", boot, MaxBoot)
	}
	return nil
}

// check returns the first error, prefixed with the payload's name.
func check(name string, errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %s", name, strings.TrimSpace(err.Error()))
		}
	}
	return nil
}
