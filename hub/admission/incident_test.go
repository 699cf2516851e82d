package admission

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// Users may change only an incident's acknowledgement and note, and acknowledge only in their own
// name.
func TestUsersMayOnlyAcknowledgeAndAnnotateAnIncident(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 5e8, time.UTC)
	live := &fleet.Incident{ObjectMeta: metav1.ObjectMeta{Name: "oslo-dark-1a2b3c", UID: "u", ResourceVersion: "7",
		CreationTimestamp: metav1.NewTime(now)}, State: fleet.IncidentOpen, Cause: "SiteDark", Since: metav1.NewTime(now),
		Opened: metav1.NewTime(now), Latest: metav1.NowMicro()}
	taken := live.DeepCopy()
	taken.Acknowledged = &fleet.IncidentAcknowledged{By: "ola",
		Time: metav1.NewTime(now.Add(-time.Hour).Truncate(time.Second))}
	whole := func(i *fleet.Incident) { // as a client reads the times: in whole seconds
		i.Since, i.Opened = metav1.NewTime(now.Truncate(time.Second)), metav1.NewTime(now.Truncate(time.Second))
	}
	for _, c := range []struct {
		rule   string
		live   *fleet.Incident
		change func(*fleet.Incident)
		by     string // user and time of the acknowledgement; "": not acknowledged
		wrong  string
	}{
		{"an acknowledgement gets the caller and the time", live, func(i *fleet.Incident) { i.Acknowledged = &fleet.IncidentAcknowledged{} }, "kari 12:00:00", ""},
		{"the client's values of an acknowledgement are ignored", live, func(i *fleet.Incident) {
			i.Acknowledged = &fleet.IncidentAcknowledged{By: "eve", Time: metav1.NewTime(now)}
		}, "kari 12:00:00", ""},
		{"a note does not change the acknowledgement", taken, func(i *fleet.Incident) { i.Note = "the line is down\nuntil 14:00" }, "ola 11:00:00", ""},
		{"another user may replace the acknowledgement", taken, func(i *fleet.Incident) { i.Acknowledged = &fleet.IncidentAcknowledged{} }, "kari 12:00:00", ""},
		{"another user may remove the acknowledgement", taken, func(i *fleet.Incident) { i.Acknowledged = nil }, "", ""},
		{"times read in whole seconds keep their fractions", live, func(i *fleet.Incident) { whole(i); i.Note = "x" }, "", ""},
		{"a severity cannot be changed", live, func(i *fleet.Incident) { i.Severity = "Info" }, "", "incident: Forbidden: only acknowledged and note"},
		{"labels cannot be changed", live, func(i *fleet.Incident) { i.Labels = map[string]string{"a": "b"} }, "", "only acknowledged and note"},
		{"finalizers cannot be changed", live, func(i *fleet.Incident) { i.Finalizers = []string{"example.org/x"} }, "", "only acknowledged and note"},
		{"the length of a note is limited", live, func(i *fleet.Incident) { i.Note = strings.Repeat("x", 1025) }, "", "note: Too long"},
		{"a note has no invisible characters", live, func(i *fleet.Incident) { i.Note = "a\u202eb" }, "", "invisible characters"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			sent := c.live.DeepCopy()
			c.change(sent)
			next := SignIncident(sent, c.live, "kari", now)
			_, errs := Admit(next, c.live, normal)
			if text := errs.ToAggregate(); (text == nil) != (c.wrong == "") || text != nil && !strings.Contains(text.Error(),
				c.wrong) {
				t.Fatalf("%v, want %q", text, c.wrong)
			}
			if c.wrong != "" {
				return
			}
			i, by := next.(*fleet.Incident), ""
			if a := i.Acknowledged; a != nil {
				by = a.By + " " + a.Time.UTC().Format(time.TimeOnly)
			}
			if by != c.by || i.Note != sent.Note || !i.Since.Equal(&live.Since) || !i.Latest.Equal(&live.Latest) {
				t.Errorf("acknowledged by %q, want %q; %+v", by, c.by, i)
			}
		})
	}
	site := &fleet.Site{}
	if SignIncident(site, site, "kari", now) != state.Object(site) {
		t.Error("SignIncident changes an object of another kind")
	}
}
