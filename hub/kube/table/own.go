package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func init() {
	show(state.Sites, columns("Name State Ready(i) Not-Ready(i) Waiting(i) Rate Age "+
		"(w)Never-Seen(i) (w)Policy (w)Since (w)Next-Eviction (w)Held (w)Maintenance (w)Location"), siteCells)
	show(state.JoinRequests, columns(
		"Name Age SignerName Requestor RequestedDuration Condition (w)Site (w)Machine-ID (w)Serial (w)From"), requestCells)
	show(state.BoardProfiles, columns("Name Title Platforms Age (w)Compatible (w)Memory (w)Reserved (w)Eviction-Hard"),
		profileCells)
}

func siteCells(obj state.Object, o *Options) []any {
	s := obj.(*fleet.Site)
	rate := "<unknown>"
	if s.Status.EvictionRate != "" {
		rate = s.Status.EvictionRate + "/s"
	}
	since := "<unknown>"
	if s.Status.Since != nil {
		since = age(*s.Status.Since, o)
	}
	next := "<none>"
	if t := s.Status.NextEviction; t != nil {
		next = "now"
		if left := t.Sub(o.Now); left > 0 {
			next = "in " + duration.HumanDuration(left)
		}
	}
	maintenance := "<none>"
	if m := s.Spec.Maintenance; m != nil && m.Until.After(o.Now) {
		maintenance = "until " + until(m.Until)
	}
	return []any{
		s.Name, orUnknown(string(s.Status.State)), int64(s.Status.Ready), int64(s.Status.NotReady),
		int64(s.Status.Waiting), rate, age(s.CreationTimestamp, o),
		int64(s.Status.NeverSeen), cmp.Or(string(s.Spec.DisruptionPolicy), "<default>"), since, next, orNone(s.Status.Held),
		maintenance, orNone(s.Spec.Location),
	}
}

func profileCells(obj state.Object, o *Options) []any {
	p := obj.(*fleet.BoardProfile)
	memory := "<any>"
	if m := p.Spec.Match.MemoryMiB; m != nil {
		switch {
		case m.Max == 0:
			memory = fmt.Sprintf(">=%dMi", m.Min)
		case m.Min == 0:
			memory = fmt.Sprintf("<=%dMi", m.Max)
		default:
			memory = fmt.Sprintf("%d-%dMi", m.Min, m.Max)
		}
	}
	r := p.Spec.Resources
	return []any{
		p.Name, orNone(p.Spec.Title), orNone(strings.Join(p.Spec.Platforms, ",")), age(p.CreationTimestamp, o),
		cmp.Or(strings.Join(p.Spec.Match.Compatible, ","), "<any>"), memory, pairs("=", r.SystemReserved),
		strings.ReplaceAll(pairs("<", r.EvictionHard), fleet.SignalTemperature+"<", fleet.SignalTemperature+">"),
	}
}

// requestCells are Kubernetes' cells, with the device's own claims behind -o wide.
func requestCells(obj state.Object, o *Options) []any {
	r := obj.(*certv1.CertificateSigningRequest)
	life := "<none>"
	if r.Spec.ExpirationSeconds != nil {
		life = duration.HumanDuration(time.Duration(*r.Spec.ExpirationSeconds) * time.Second)
	}
	condition := "Pending"
	switch {
	case state.RequestCondition(r, certv1.CertificateDenied) != nil:
		condition = "Denied"
	case state.RequestCondition(r, certv1.CertificateApproved) != nil:
		condition = "Approved"
	}
	if state.RequestCondition(r, certv1.CertificateFailed) != nil {
		condition += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		condition += ",Issued"
	}
	a := r.Annotations
	return []any{
		r.Name, age(r.CreationTimestamp, o), cmp.Or(r.Spec.SignerName, "<none>"), r.Spec.Username, life, condition,
		orNone(a[state.RequestSite]), orUnknown(a[state.RequestMachine]), orUnknown(a[state.RequestSerial]),
		orUnknown(a[state.RequestSource]),
	}
}

// pairs formats a map in the order of its keys.
func pairs(between string, m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+between+m[k])
	}
	return orNone(strings.Join(out, ","))
}
