package admission

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/shared/fleet"
)

// firmwareRollout checks what decides which boards reboot, and when: an empty selector
// would take the whole fleet, and what a document says is the hub's alone to write.
func (l *list) firmwareRollout(r *fleet.FirmwareRollout) {
	s := r.Spec
	if sel := s.Selector; sel == nil || len(sel.MatchLabels)+len(sel.MatchExpressions) == 0 {
		l.required(spec.Child("selector"), "an empty one would take every node: name labels, or say so with matchExpressions: [{key: kubernetes.io/hostname, operator: Exists}]")
	} else {
		l.all(metavalidation.ValidateLabelSelector(sel, metavalidation.LabelSelectorValidationOptions{}, spec.Child("selector")))
		if _, err := metav1.LabelSelectorAsSelector(sel); err != nil && len(l.errs) == 0 {
			l.invalid(spec.Child("selector"), field.OmitValueType{}, err.Error())
		}
	}
	subdomain(l, spec.Child("profile"), s.Profile)
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
	if st := r.Status; st.Document != "" {
		if _, err := fleet.ParseBootConfig([]byte(st.Document)); err != nil {
			text, _, _ := strings.Cut(err.Error(), "\n")
			l.invalid(field.NewPath("status", "document"), field.OmitValueType{}, text)
		}
	}
}

// rolloutUnchanged keeps a rollout to its profile: another one would be another rollout,
// whose batches begin anew.
func (l *list) rolloutUnchanged(r, old *fleet.FirmwareRollout) {
	l.same(r.Spec.Profile, old.Spec.Profile, spec.Child("profile"))
	if r.Spec.Retry < old.Spec.Retry {
		l.invalid(spec.Child("retry"), r.Spec.Retry, fmt.Sprintf("must not fall below %d: nodes have been told that", old.Spec.Retry))
	}
}

// timeZone checks the annotation of a site by which windows open.
func (l *list) timeZone(s *fleet.Site) {
	if zone, ok := s.Annotations[fleet.AnnotationTimeZone]; ok {
		if _, err := time.LoadLocation(zone); err != nil || zone == "" || strings.EqualFold(zone, "Local") {
			l.invalid(field.NewPath("metadata", "annotations").Key(fleet.AnnotationTimeZone), zone, "must be a time zone as defined in https://www.iana.org/time-zones, such as Europe/Oslo")
		}
	}
}
