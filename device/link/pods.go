package link

import (
	"crypto/sha256"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/shared/wire"
)

// A podList is the list of pods that is being sent, and the number of the last list that the hub
// has. The list leaves out pods unchanged since then, so that a crash-looping pod among many costs
// only its own entry.
type podList struct {
	rest  [][]byte // parts still to send
	seq   uint64
	sums  map[types.UID]digest
	size  int    // bytes as JSON
	whole bool   // no pod is left out
	base  uint64 // the last list that the hub has acknowledged; 0: none
	known map[types.UID]digest
}

type digest = [sha256.Size]byte

// again makes the next list complete, because the hub does not have the last one. A complete list
// that is being sent in parts continues first.
func (p *podList) again(t *tracked) {
	p.base, p.known = 0, nil
	if !p.whole || len(p.rest) == 0 {
		t.token, p.rest, p.seq = nil, nil, 0
	}
}

// sendPods sends the list of pods, or its first part. A lease names the list only once all parts
// are sent: named earlier, the hub would request parts that are on their way.
func (s *session) sendPods() {
	l := s.l
	s.pods.due = false
	p := l.cfg.Source.Pods()
	l.numbers.list++
	p.Boot, p.Seq = l.Boot(), l.numbers.list
	next := podList{seq: p.Seq, sums: make(map[types.UID]digest, len(p.Pods)), whole: true, base: s.list.base,
		known: s.list.known}
	entries := make([]json.RawMessage, len(p.Pods))
	for i := range p.Pods {
		pod := p.Pods[i]
		entry, err := json.Marshal(pod)
		if err != nil {
			l.log.Error("cannot send a pod to the hub", "node", l.cfg.Node, "pod", pod.Namespace+"/"+pod.Name, "err", err)
			return
		}
		sum := sha256.Sum256(entry)
		next.sums[pod.UID] = sum
		if was, ok := next.known[pod.UID]; ok && was == sum {
			entry, _ = json.Marshal(wire.PodStatus{UID: pod.UID}) // a string always encodes
			next.whole = false
		}
		entries[i] = entry
		next.size += len(entry)
	}
	if !next.whole {
		p.Base = next.base
	}
	var err error
	if next.rest, err = wire.PackPods(p, entries); err != nil {
		l.log.Error("cannot send a message to the hub", "node", l.cfg.Node, "channel", wire.ChannelPods, "err", err)
		return
	}
	s.list = next
	s.sendPart()
}

// sendPart sends the next part of the list.
func (s *session) sendPart() {
	part := s.list.rest[0]
	if s.list.rest = s.list.rest[1:]; len(s.list.rest) == 0 {
		s.l.numbers.pods = s.list.seq
	}
	s.track(&s.pods, wire.ChannelPods, part)
	if s.list.size > wire.MaxFromDevice {
		s.pods.after = time.Now().Add(longPause)
	}
}

// podsAcked handles the acknowledgement or loss of a part.
func (s *session) podsAcked(err error) {
	switch {
	case err != nil:
		s.list, s.pods.due = podList{}, true
	case len(s.list.rest) == 0 && s.list.seq > 0:
		s.list.base, s.list.known = s.list.seq, s.list.sums
	}
}
