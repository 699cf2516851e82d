package node

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// Deliver decides which nodes get a new generation of their desired state: the nodes whose content
// has changed.
type Deliver struct {
	// encoded caches encoded desired states by digest, from the decision until they are published.
	// Nil: no cache.
	encoded *sync.Map
	lease   time.Duration // default lease interval of devices
	signing ed25519.PrivateKey
	images  *wire.Images // of every device; nil: no mirrors
}

// Touches returns the nodes whose desired state may have changed: the node of a change, or all
// nodes that use a config map, secret or board profile.
func (Deliver) Touches(c state.Applied) []state.Subject {
	switch c.Key.Kind {
	case state.Pods:
		var nodes []state.Subject
		for _, o := range []state.Object{c.Old, c.New} {
			if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
				nodes = append(nodes, state.About(state.Key{Kind: state.Nodes, Name: p.Spec.NodeName}))
			}
		}
		return nodes
	case state.Volumes:
		var nodes []state.Subject
		for _, o := range []state.Object{c.Old, c.New} {
			if v, ok := o.(*corev1.PersistentVolume); ok && state.NodeOfVolume(v) != "" {
				nodes = append(nodes, state.About(state.Key{Kind: state.Nodes, Name: state.NodeOfVolume(v)}))
			}
		}
		return nodes
	case state.Nodes:
		old, _ := c.Old.(*corev1.Node)
		next, _ := c.New.(*corev1.Node)
		if old == nil || next == nil || state.SiteOf(old) != state.SiteOf(next) ||
			old.Labels[fleet.LabelProfile] != next.Labels[fleet.LabelProfile] || old.Spec.PodCIDR != next.Spec.PodCIDR {
			return []state.Subject{{Key: c.Key}}
		}
	case state.Records:
		if old, _ := c.Old.(*state.Record); old == nil || old.Paused || old.StoredUnknown || firmwareMoved(old, c.New) ||
			upgradeMoved(old, c.New) {
			return []state.Subject{state.About(state.Key{Kind: state.Nodes, Name: c.Key.Name})}
		}
	case state.FirmwareRollouts, state.AgentRollouts:
		old, next := fleet.RolloutOf(c.Old), fleet.RolloutOf(c.New)
		if old == nil || next == nil || old.Spec.Retry != next.Spec.Retry || old.Status.Document != next.Status.Document {
			return []state.Subject{{Key: c.Key}}
		}
	case state.DeviceReports:
		if !slices.Equal(namesOf(c.Old), namesOf(c.New)) {
			return []state.Subject{state.About(state.Key{Kind: state.Nodes, Name: c.Key.Name})}
		}
	case state.Sites:
		old, _ := c.Old.(*fleet.Site)
		next, _ := c.New.(*fleet.Site)
		if state.SiteLease(old) != state.SiteLease(next) || sharesImages(old) != sharesImages(next) {
			return []state.Subject{{Key: c.Key}}
		}
	case state.Deployments, state.DaemonSets:
		if state.PrepullChanged(c.Old, c.New) {
			return []state.Subject{{Key: c.Key}}
		}
	case state.ConfigMaps, state.Secrets, state.BoardProfiles:
		return []state.Subject{{Key: c.Key}}
	}
	return nil
}

// Subjects returns all nodes.
func (Deliver) Subjects(s state.Snapshot) []state.Subject { return state.AboutNodes(s) }

// Sharded: a node's desired state does not depend on other nodes.
func (v Deliver) Sharded(_ state.Snapshot, subjects []state.Subject) state.Decide {
	if !state.OnlyNodes(subjects) {
		return nil
	}
	return v.Decide
}

// Decide gives the next generation to every node whose desired state differs from the last
// published one.
func (v Deliver) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	known := profiles{}
	var encode encoder
	var hexed [2 * sha256.Size]byte
	for _, node := range concerned(s, subjects) {
		rec := s.Record(node)
		if s.Node(node) == nil || rec == nil || rec.Withheld() != "" {
			continue
		}
		content, err := encode.desired(v.wantedOf(s, node, known))
		if err != nil {
			continue // cannot fail, because the objects were decoded from JSON
		}
		sum := sha256.Sum256(content)
		if string(hex.AppendEncode(hexed[:0], sum[:])) == rec.Digest {
			continue
		}
		digest := hex.EncodeToString(sum[:])
		if v.encoded != nil {
			v.encoded.Store(digest, bytes.Clone(content))
		}
		rec = rec.DeepCopy()
		rec.Digest = digest
		rec.Generation++
		// The device may use the old or the new interval until it reports this generation.
		rec.LeaseSeconds = max(seconds(state.Lease(rec, v.lease)), seconds(state.WantedLease(s, node, v.lease)))
		plan.Do(state.Put(rec, ""))
	}
	return plan
}

// An encoder encodes desired states like json.Marshal. In a large fleet most nodes may have no
// pods, and their states differ only in their addresses.
type encoder struct {
	text  []byte
	forms map[form]template
}

// A form is the common part of nodes whose states differ only in their addresses.
type form struct {
	profile *fleet.BoardProfile
	lease   int32
	images  *wire.Images
}

// template is an encoded state of a form, with the position of its addresses.
type template struct {
	text       []byte
	first, end int
	key        []byte
}

// desired encodes a desired state. The result is valid until the next call.
func (e *encoder) desired(d wire.Desired) ([]byte, error) {
	plain, f := onlyAddresses(d), form{d.Profile, d.LeaseIntervalSeconds, d.Images}
	known, ok := e.forms[f]
	if plain && ok && bytes.Equal(known.key, d.FirmwareKey) {
		e.text = append(e.text[:0], known.text[:known.first]...)
		e.text = append(append(e.text, d.PodCIDR...), known.text[known.end:]...)
		return e.text, nil
	}
	text, err := json.Marshal(d)
	if err != nil || !plain {
		return text, err
	}
	const name = `"podCIDR":"`
	first := bytes.LastIndex(text, []byte(name)) + len(name)
	if end := first + len(d.PodCIDR); first >= len(name) && bytes.HasPrefix(text[first:], []byte(d.PodCIDR+`"`)) {
		if e.forms == nil {
			e.forms = map[form]template{}
		}
		e.forms[f] = template{text, first, end, d.FirmwareKey}
	}
	return text, nil
}

// onlyAddresses tells whether a desired state differs from others of its form only in its
// addresses.
func onlyAddresses(d wire.Desired) bool {
	if d.PodCIDR == "" || strings.Trim(d.PodCIDR, "0123456789abcdefABCDEF:./") != "" { // JSON does not escape these
		return false
	}
	if d.Images != nil && (d.Images.PeerKey != nil || len(d.Images.Prepare) > 0) {
		return false
	}
	if d.Pods == nil || d.ConfigMaps == nil || d.Secrets == nil || len(d.Pods)+len(d.ConfigMaps)+len(d.Secrets) > 0 {
		return false
	}
	d.PodCIDR, d.Profile, d.LeaseIntervalSeconds, d.FirmwareKey = "", nil, 0, nil
	d.Images = nil
	d.Pods, d.ConfigMaps, d.Secrets = nil, nil, nil
	return reflect.ValueOf(d).IsZero()
}

// concerned returns the nodes of the subjects, by name.
func concerned(s state.Snapshot, subjects []state.Subject) (nodes []string) {
	for _, q := range subjects {
		switch q.Kind {
		case state.Nodes:
			nodes = append(nodes, q.Name)
		case state.Sites:
			for n := range s.NodesIn(q.Name) {
				nodes = append(nodes, n.Name)
			}
		case state.FirmwareRollouts, state.AgentRollouts:
			for n := range s.Nodes() {
				if rec := s.Record(n.Name); rec != nil && (rec.Assigned != nil && rec.Assigned.Rollout == q.Name ||
					rec.Upgrading != nil && rec.Upgrading.Rollout == q.Name) {
					nodes = append(nodes, n.Name)
				}
			}
		case state.BoardProfiles:
			for n := range s.Nodes() {
				if n.Labels[fleet.LabelProfile] == q.Name {
					nodes = append(nodes, n.Name)
				}
			}
		case state.Deployments, state.DaemonSets:
			if o := s.Get(q.Key); o != nil {
				nodes = append(nodes, nodesOf(s, o)...)
			}
		default:
			for p := range s.Pods(q.Namespace) {
				references(p, func(k state.Key) {
					if k == q.Key && p.Spec.NodeName != "" {
						nodes = append(nodes, p.Spec.NodeName)
					}
				})
			}
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// nodesOf returns the nodes of a workload's pods.
func nodesOf(s state.Snapshot, o state.Object) (nodes []string) {
	for p := range s.Owned(o.GetUID(), state.Pods) {
		if node := p.(*corev1.Pod).Spec.NodeName; node != "" {
			nodes = append(nodes, node)
		}
	}
	for rs := range s.Owned(o.GetUID(), state.ReplicaSets) {
		nodes = append(nodes, nodesOf(s, rs)...)
	}
	return nodes
}

// content returns the encoded desired state of a node, from the cache if possible.
func (v Deliver) content(s state.Snapshot, node, digest string) ([]byte, error) {
	if v.encoded != nil {
		if content, ok := v.encoded.Load(digest); ok {
			return content.([]byte), nil
		}
	}
	return json.Marshal(v.wantedOf(s, node, profiles{}))
}

// wantedOf returns a node's desired state with its lease interval.
func (v Deliver) wantedOf(s state.Snapshot, node string, known profiles) wire.Desired {
	d := known.desired(s, node)
	d.LeaseIntervalSeconds = seconds(state.WantedLease(s, node, v.lease))
	common := v.images
	if n := s.Node(node); n != nil && v.signing != nil && sharesImages(s.Site(state.SiteOf(n))) {
		common = &wire.Images{PeerKey: v.peerKey(state.SiteOf(n))}
		if v.images != nil {
			common.Mirrors = v.images.Mirrors
		}
	}
	switch {
	case d.Images == nil:
		d.Images = common
	case common != nil:
		d.Images.Mirrors, d.Images.PeerKey = common.Mirrors, common.PeerKey
	}
	if v.signing != nil {
		d.Firmware = firmwareFor(s, node, v.signing)
		d.FirmwareKey = v.signing.Public().(ed25519.PublicKey)
	}
	d.Upgrade = upgradeFor(s, node)
	return d
}

func sharesImages(site *fleet.Site) bool { return site != nil && site.Spec.ShareImages }

// peerKey returns the secret by which devices of a site recognize each other.
func (v Deliver) peerKey(site string) []byte {
	h := hmac.New(sha256.New, v.signing.Seed())
	h.Write([]byte("peers of site " + site))
	return h.Sum(nil)
}

// forget clears the cache.
func (v Deliver) forget() { v.encoded.Clear() }

// emptyMiddle is the part of an empty desired state at which frame inserts the content.
const emptyMiddle = `"pods":null,"configMaps":null,"secrets":null,`

// frame joins encoded content with the metadata of a generation, so that the content is encoded
// only once.
func frame(content []byte, d wire.Desired) ([]byte, error) {
	envelope, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	bare, err := json.Marshal(wire.Desired{LeaseIntervalSeconds: d.LeaseIntervalSeconds})
	if err != nil {
		return nil, err
	}
	first, last, ok := bytes.Cut(bare, []byte(emptyMiddle))
	head, tail, fits := bytes.Cut(envelope, []byte(emptyMiddle))
	rest, begins := bytes.CutPrefix(content, first)
	rest, ends := bytes.CutSuffix(rest, last)
	if !ok || !fits || !begins || !ends {
		return nil, errors.New("a desired state has an unexpected encoding: this is a bug in the hub, please report it")
	}
	return slices.Concat(head, rest, tail), nil
}
