package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

func (l *list) node(n *corev1.Node) {
	if order, ok := n.Annotations[state.DrainAnnotation]; ok {
		if _, err := state.ParseDrainOrder(order); err != nil {
			l.invalid(field.NewPath("metadata", "annotations").Key(state.DrainAnnotation), order, err.Error())
		}
	}
	spec := field.NewPath("spec")
	l.taints(n.Spec.Taints, spec.Child("taints"))
	l.blocks(n.Spec.PodCIDRs, spec.Child("podCIDRs"))
	if c := n.Spec.PodCIDR; c != "" && (len(n.Spec.PodCIDRs) == 0 || n.Spec.PodCIDRs[0] != c) {
		l.invalid(spec.Child("podCIDR"), c, "must be the first of podCIDRs")
	}
	status := field.NewPath("status")
	for _, name := range sortedKeys(n.Status.Capacity) {
		at := status.Child("capacity").Key(string(name))
		l.each(at, string(name), validation.IsQualifiedName(string(name)))
		l.quantity(at, n.Status.Capacity[name], wholeOnNode(name))
	}
	for _, name := range sortedKeys(n.Status.Allocatable) {
		at, q := status.Child("allocatable").Key(string(name)), n.Status.Allocatable[name]
		l.quantity(at, q, wholeOnNode(name))
		if capacity := n.Status.Capacity[name]; capacity.Sign() >= 0 && q.Cmp(capacity) > 0 {
			l.invalid(at, q.String(), fmt.Sprintf("must be less than or equal to the capacity of %s", capacity.String()))
		}
	}
	seen := map[corev1.NodeAddress]bool{}
	for i, a := range n.Status.Addresses {
		if seen[a] {
			l.duplicate(status.Child("addresses").Index(i), a)
		}
		seen[a] = true
	}
}

// stillTainted gives taints that are there already the time at which they were added: who writes
// them again, as an apply does that knows nothing of it, makes no toleration count anew.
func stillTainted(n *corev1.Node, old state.Object) {
	was, ok := old.(*corev1.Node)
	if !ok {
		return
	}
	for i := range n.Spec.Taints {
		t := &n.Spec.Taints[i]
		if at := slices.IndexFunc(was.Spec.Taints, func(had corev1.Taint) bool { return had.MatchTaint(t) && had.Value == t.Value }); at >= 0 && t.TimeAdded == nil {
			t.TimeAdded = was.Spec.Taints[at].TimeAdded
		}
	}
}

// blocks checks a node's blocks of addresses: one of each family at most, because the
// device makes one network with them, written as the block and with room for pods.
func (l *list) blocks(cidrs []string, p *field.Path) {
	families := map[bool]bool{}
	for i, cidr := range cidrs {
		errs := validation.IsValidCIDRForLegacyField(p.Index(i), cidr, false, nil)
		l.all(errs)
		block, err := netip.ParsePrefix(cidr)
		switch {
		case len(errs) > 0 || err != nil:
			continue
		case block != block.Masked():
			l.invalid(p.Index(i), cidr, fmt.Sprintf("must be the block itself: %s", block.Masked()))
		case block.Addr().BitLen()-block.Bits() < 3:
			l.invalid(p.Index(i), cidr, "must have 8 addresses or more: the network and the bridge need some themselves")
		case families[block.Addr().Is4()]:
			l.invalid(p.Index(i), cidr, "may specify no more than one CIDR for each IP family")
		}
		families[block.Addr().Is4()] = true
	}
}

// wholeOnNode tells whether a node has only whole ones of a resource.
func wholeOnNode(name corev1.ResourceName) bool {
	return name == corev1.ResourcePods || !isNative(name)
}

// leaseInterval is how often devices renew unless the hub says otherwise.
const leaseInterval = 10 * time.Second

// maxRate is far above what any site can do, and far below what overflows.
const maxRate = 1000

func (l *list) site(s *fleet.Site, set Settings) {
	l.timeZone(s)
	p := field.NewPath("spec")
	every := set.LeaseInterval
	if every == 0 {
		every = leaseInterval
	}
	if d := s.Spec.LeaseInterval; d != nil {
		if every = d.Duration; every < time.Second || every > 5*time.Minute || every%time.Second != 0 {
			l.invalid(p.Child("leaseInterval"), every.String(), "must be whole seconds between 1s and 5m, such as 60s") // as the wire protocol has it
			every = leaseInterval                                                                                       // the graces are judged by one that can be
		}
	}
	// As of the hub's own settings: four lease intervals, as two lost renewals must
	// never evict.
	grace := func(name string, d *metav1.Duration) {
		if d != nil && d.Duration < 4*every {
			l.invalid(p.Child(name), d.Duration.String(), fmt.Sprintf("must be at least %s: devices renew every %s, and two lost leases must not evict", 4*every, every))
		}
	}
	grace("nodeMonitorGracePeriod", s.Spec.NodeMonitorGracePeriod)
	grace("nodeStartupGracePeriod", s.Spec.NodeStartupGracePeriod)
	between := func(name string, v *float64, most float64, unit string) {
		if v != nil && !(*v >= 0 && *v <= most) {
			l.invalid(p.Child(name), *v, fmt.Sprintf("must be between 0 and %g%s", most, unit))
		}
	}
	between("nodeEvictionRate", s.Spec.NodeEvictionRate, maxRate, " nodes per second")
	between("secondaryNodeEvictionRate", s.Spec.SecondaryNodeEvictionRate, maxRate, " nodes per second")
	between("unhealthyZoneThreshold", s.Spec.UnhealthyZoneThreshold, 1, ", as a fraction of the site's nodes")
	l.count(s.Spec.LargeClusterSizeThreshold, p.Child("largeClusterSizeThreshold"))
	if s.Spec.DisruptionPolicy != "" {
		oneOf(l, p.Child("disruptionPolicy"), s.Spec.DisruptionPolicy, fleet.Evict, fleet.Hold)
	}
	if m := s.Spec.Maintenance; m != nil && m.Until.IsZero() {
		l.required(p.Child("maintenance", "until"), "write the moment at which evictions may begin again, such as 2026-11-03T18:00:00Z")
	}
	short := func(name, v string) {
		if len(v) > 1024 {
			l.errs = append(l.errs, field.TooLong(p.Child(name), "", 1024))
		}
	}
	short("description", s.Spec.Description)
	short("location", s.Spec.Location)
	if m := s.Spec.Maintenance; m != nil {
		short("maintenance.reason", m.Reason)
	}
}

// profile asks the room of the profiles, which checks the files as well.
func (l *list) profile(p *fleet.BoardProfile) {
	whole := *p
	whole.Kind, whole.APIVersion = "BoardProfile", fleet.Group+"/"+fleet.Version
	for _, err := range firmwareconfigs.Validate(&whole) {
		if err.Field != "metadata.name" { // said already
			l.errs = append(l.errs, &field.Error{Type: field.ErrorTypeInvalid, Field: err.Field, BadValue: field.OmitValueType{}, Detail: err.Detail})
		}
	}
}

// report holds what a device says of its hardware, in whatever words, to be something that can be shown.
func (l *list) report(r *fleet.DeviceReport) {
	p := field.NewPath("hardware")
	if n := len(r.Text()); n > bound.MaxHardware {
		l.errs = append(l.errs, field.TooLong(p, "", bound.MaxHardware))
	} else if !json.Valid(r.Text()) || !bytes.HasPrefix(bytes.TrimSpace(r.Text()), []byte("{")) {
		l.errs = append(l.errs, field.Invalid(p, field.OmitValueType{}, "it is no JSON object"))
	}
}

// maxNote is how long the note of an incident may be, as the texts of a site.
const maxNote = 1024

// SignIncident returns an incident that is to replace live, with who has acknowledged it and when:
// whatever it says of that itself. Moments that a client has read in whole seconds stay what they are.
// Objects of other kinds are returned as they are.
func SignIncident(next, live state.Object, by string, now time.Time) state.Object {
	sent, ok := next.(*fleet.Incident)
	if !ok {
		return next
	}
	was := live.(*fleet.Incident)
	signed := was.DeepCopy()
	signed.Note, signed.ManagedFields = sent.Note, sent.ManagedFields
	switch a := sent.Acknowledged; {
	case a == nil:
		signed.Acknowledged = nil
	case was.Acknowledged == nil || a.By != was.Acknowledged.By || !a.Time.Equal(&was.Acknowledged.Time):
		signed.Acknowledged = &fleet.IncidentAcknowledged{By: by, Time: metav1.NewTime(now.UTC().Truncate(time.Second))}
	}
	sent.Acknowledged = signed.Acknowledged
	x, xerr := json.Marshal(sent)
	y, yerr := json.Marshal(signed)
	if xerr != nil || yerr != nil || !bytes.Equal(x, y) {
		return sent // incidentUnchanged refuses it
	}
	return signed
}

func (l *list) incident(i *fleet.Incident) {
	if p := field.NewPath("note"); len(i.Note) > maxNote {
		l.errs = append(l.errs, field.TooLong(p, "", maxNote))
	} else {
		l.shown(p, i.Note)
	}
}

// incidentUnchanged: people write who takes care of an incident, and a note. All else is the hub's.
func (l *list) incidentUnchanged(i, old *fleet.Incident) {
	rest := i.DeepCopy()
	rest.Acknowledged, rest.Note, rest.ManagedFields = old.Acknowledged, old.Note, old.ManagedFields
	if !equality.Semantic.DeepEqual(rest, old) {
		l.forbidden(field.NewPath("incident"), "only acknowledged and note can be changed: all else is what the hub finds")
	}
}
