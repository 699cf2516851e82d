package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

// firmwareRollout checks a rollout. Only the hub writes the rollout's document.
func (l *list) firmwareRollout(r *fleet.FirmwareRollout) {
	subdomain(l, spec.Child("profile"), r.Spec.Profile)
	l.strategy(r.Spec.RolloutStrategy)
	if st := r.Status; st.Document != "" {
		if _, err := fleet.ParseBootConfig([]byte(st.Document)); err != nil {
			text, _, _ := strings.Cut(err.Error(), "\n")
			l.invalid(field.NewPath("status", "document"), field.OmitValueType{}, text)
		}
	}
}

// agentRollout checks a rollout.
func (l *list) agentRollout(r *fleet.AgentRollout) {
	if !fleet.ValidAgentVersion(r.Spec.Version) {
		l.invalid(spec.Child("version"), r.Spec.Version, "must be the version of an agent, such as 1.3.0")
	}
	l.strategy(r.Spec.RolloutStrategy)
}

// strategy checks which nodes a rollout selects, and how. An empty selector would select the whole
// fleet.
func (l *list) strategy(s fleet.RolloutStrategy) {
	if sel := s.Selector; sel == nil || len(sel.MatchLabels)+len(sel.MatchExpressions) == 0 {
		l.required(spec.Child("selector"), "an empty selector would select every node: name labels, or select all with "+
			"matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]")
	} else {
		l.all(metavalidation.ValidateLabelSelector(sel, metavalidation.LabelSelectorValidationOptions{},
			spec.Child("selector")))
		if _, err := metav1.LabelSelectorAsSelector(sel); err != nil && len(l.errs) == 0 {
			l.invalid(spec.Child("selector"), field.OmitValueType{}, err.Error())
		}
	}
	if s.Canary != "" {
		subdomain(l, spec.Child("canary"), s.Canary)
	}
	if s.Condition != "" {
		l.each(spec.Child("condition"), s.Condition, validation.IsQualifiedName(s.Condition))
	}
	between := func(name string, v, least, most int32, unit string) {
		if v < least || v > most {
			l.invalid(spec.Child(name), v, fmt.Sprintf("must be between %d and %d%s", least, most, unit))
		}
	}
	between("batchSize", s.BatchSize, 1, fleet.MaxBatchSize, " nodes")
	between("maxUnavailablePerSite", s.MaxUnavailablePerSite, 1, fleet.MaxBatchSize, " nodes")
	between("successThreshold", s.SuccessThreshold, 1, 100, " percent")
	if s.Retry < 0 {
		l.atLeast(spec.Child("retry"), s.Retry, 0)
	}
	if w := s.Window; w != nil {
		p := spec.Child("window")
		for i, day := range w.Days {
			oneOf(l, p.Child("days").Index(i), day, fleet.WindowDays...)
			if slices.Index(w.Days, day) < i {
				l.duplicate(p.Child("days").Index(i), day)
			}
		}
		for _, at := range []struct{ name, text string }{{"from", w.From}, {"to", w.To}} {
			name, text := at.name, at.text
			if _, ok := fleet.ParseClock(text); !ok {
				l.invalid(p.Child(name), text, "must be a time of day such as 22:00, in the time zone of the node's site")
			}
		}
	}
}

// rolloutUnchanged refuses a change of the profile, which needs a new rollout with its own batches.
func (l *list) rolloutUnchanged(r, old *fleet.FirmwareRollout) {
	l.same(r.Spec.Profile, old.Spec.Profile, spec.Child("profile"))
	l.retryKept(r.Spec.Retry, old.Spec.Retry)
}

// agentRolloutUnchanged allows another version: one rollout may bring all versions of a site.
func (l *list) agentRolloutUnchanged(r, old *fleet.AgentRollout) {
	l.retryKept(r.Spec.Retry, old.Spec.Retry)
}

func (l *list) retryKept(retry, old int64) {
	if retry < old {
		l.invalid(spec.Child("retry"), retry, fmt.Sprintf("must not fall below %d: nodes have received that", old))
	}
}

// timeZone checks the annotation with a site's time zone, in which the windows of rollouts are.
func (l *list) timeZone(s *fleet.Site) {
	if zone, ok := s.Annotations[fleet.AnnotationTimeZone]; ok {
		if _, err := time.LoadLocation(zone); err != nil || zone == "" || strings.EqualFold(zone, "Local") {
			l.invalid(field.NewPath("metadata", "annotations").Key(fleet.AnnotationTimeZone), zone,
				"must be a time zone as defined in https://www.iana.org/time-zones, such as Europe/Oslo")
		}
	}
}

// leaseInterval is the default of Settings.LeaseInterval.
const leaseInterval = 10 * time.Second

// maxRate is far above any site's needs and far below an overflow.
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
			// limits of the wire protocol
			l.invalid(p.Child("leaseInterval"), every.String(), "must be whole seconds between 1s and 5m, such as 60s")
			every = leaseInterval // so that the grace periods are checked with a valid interval
		}
	}
	// The hub's settings have the same minimum: two lost renewals never evict a pod.
	grace := func(name string, d *metav1.Duration) {
		if d != nil && d.Duration < 4*every {
			l.invalid(p.Child(name), d.Duration.String(), fmt.Sprintf(
				"must be at least %s: devices renew every %s, and two lost leases must not evict", 4*every, every))
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
		l.required(p.Child("maintenance", "until"),
			"write the time at which evictions may begin again, such as 2026-11-03T18:00:00Z")
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

// profile runs the checks of package firmware-configs, which also check the built-in profiles.
func (l *list) profile(p *fleet.BoardProfile) {
	whole := *p
	whole.Kind, whole.APIVersion = "BoardProfile", fleet.Group+"/"+fleet.Version
	for _, err := range firmwareconfigs.Validate(&whole) {
		if err.Field != "metadata.name" { // reported already
			l.errs = append(l.errs, &field.Error{Type: field.ErrorTypeInvalid, Field: err.Field,
				BadValue: field.OmitValueType{}, Detail: err.Detail})
		}
	}
}

// report checks that a device's hardware report is a JSON object of printable text.
func (l *list) report(r *fleet.DeviceReport) {
	p := field.NewPath("hardware")
	if n := len(r.Text()); n > bound.MaxHardware {
		l.errs = append(l.errs, field.TooLong(p, "", bound.MaxHardware))
	} else if !json.Valid(r.Text()) || !bytes.HasPrefix(bytes.TrimSpace(r.Text()), []byte("{")) {
		l.errs = append(l.errs, field.Invalid(p, field.OmitValueType{}, "it is not a JSON object"))
	}
}

// maxNote limits the bytes of an incident's note. The texts of a site have the same limit.
const maxNote = 1024

// SignIncident returns the incident to store in place of live. It overwrites the client's values of
// the acknowledgement with the user and the time. Times that a client has read in whole seconds get
// their fractions back. Objects of other kinds are returned unchanged.
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
		l.displayText(p, i.Note)
	}
}

// incidentUnchanged allows users to change the acknowledgement and the note only.
func (l *list) incidentUnchanged(i, old *fleet.Incident) {
	rest := i.DeepCopy()
	rest.Acknowledged, rest.Note, rest.ManagedFields = old.Acknowledged, old.Note, old.ManagedFields
	if !equality.Semantic.DeepEqual(rest, old) {
		l.forbidden(field.NewPath("incident"), "only acknowledged and note can be changed: the hub writes the rest")
	}
}
