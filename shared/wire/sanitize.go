package wire

import (
	"fmt"

	"flotilla.dev/shared/bound"
)

// Limits of the parts of a status, in bytes unless the comment says otherwise.
const (
	maxWord    = 512  // a version, a name, an address
	maxSaid    = 1024 // a message of a condition or container
	maxNames   = 8    // number of an image's names
	maxVersion = 128  // an agent's version
	maxEnded   = 4096 // a container's termination message
)

// sanitize keeps the parts of a status that the hub shows, and makes hidden characters visible. A
// device with hundreds of images or long driver messages stays a node.
func (s *Status) sanitize() {
	switch n := len(s.Hardware); {
	case n > bound.MaxHardware:
		s.Hardware = nil
		s.TooMuch = fmt.Sprintf("its hardware report has %d bytes, at most %d are kept", n, bound.MaxHardware)
	case hasNUL(s.Hardware):
		s.Hardware = nil
		s.TooMuch = "its hardware report has a NUL character"
	}
	s.AgentVersion = bound.Text(s.AgentVersion, maxVersion)
	if v := s.Vitals; v != nil {
		for _, x := range []struct {
			is          **float64
			least, most float64
		}{{&v.CPU, 0, 1}, {&v.Memory, 0, 1}, {&v.Disk, 0, 1}, {&v.Temperature, -100, 250}, {&v.Supply, 0, 1000},
			{&v.RTT, 0, 3600}} {
			if f := *x.is; f != nil && (*f < x.least || *f > x.most) {
				*x.is = nil
			}
		}
	}
	s.sanitizeFirmware()
	s.sanitizeUpgrade()
	st := &s.Status
	if n := len(st.Images); n > bound.MaxImages {
		st.Images = st.Images[:bound.MaxImages]
		s.TooMuch = fmt.Sprintf("it names %d images, the first %d are kept", n, bound.MaxImages)
	}
	for i := range st.Images {
		if names := st.Images[i].Names; len(names) > maxNames {
			st.Images[i].Names = names[:maxNames]
		}
	}
	// Flotilla's agents never send these.
	st.Config, st.VolumesInUse, st.VolumesAttached = nil, nil, nil
	bound.Clean(st, maxSaid)
	bound.Clean(&st.NodeInfo, maxWord)
	bound.Clean(&st.Images, maxWord)
}

// sanitize makes hidden characters in the pods' statuses visible. A termination message may be as
// long as in Kubernetes.
func (p *Pods) sanitize() {
	for i := range p.Pods {
		bound.Clean(&p.Pods[i].Status, maxEnded)
	}
}

func (e *Event) sanitize() {
	if len(e.Message) <= MaxMessage { // a longer message is refused later
		e.Message = bound.Text(e.Message, MaxMessage)
	}
}

func (p *Presence) sanitize() { p.Reason = bound.Text(p.Reason, maxWord) }

func (r *JoinRequest) sanitize() {
	r.AgentVersion = bound.Text(r.AgentVersion, maxVersion)
}
