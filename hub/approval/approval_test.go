package approval

import (
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
)

var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// request returns a request that was created at the start and decided some time later.
func request(decided time.Duration, conditions ...certv1.RequestConditionType) *certv1.CertificateSigningRequest {
	r := &certv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "pi-1-00",
		CreationTimestamp: metav1.NewTime(start), Annotations: map[string]string{}}}
	for _, c := range conditions {
		r.Status.Conditions = append(r.Status.Conditions, certv1.CertificateSigningRequestCondition{Type: c,
			Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(decided))})
	}
	return r
}

func TestARequestEndsOnTime(t *testing.T) {
	token := func(ends time.Duration) *certv1.CertificateSigningRequest {
		r := request(0)
		r.Annotations[state.RequestUntil] = start.Add(ends).Format(time.RFC3339)
		return r
	}
	issued := request(5*time.Hour, certv1.CertificateApproved)
	issued.Status.Certificate = []byte("x")
	odd := request(0)
	odd.Annotations[state.RequestUntil] = "whenever"
	for _, tt := range []struct {
		name string
		r    *certv1.CertificateSigningRequest
		is   state.Decision
		ends time.Duration
		said bool
	}{
		{"an undecided request waits for a day", request(0), state.RequestPending, 24 * time.Hour, true},
		{"an undecided request ends with its token", token(2 * time.Hour), state.RequestPending, 2 * time.Hour, true},
		{"a token valid for a year does not extend a request", token(8760 * time.Hour), state.RequestPending, 24 * time.Hour, true},
		{"an invalid time from a restored database does not extend a request", odd, state.RequestPending, 24 * time.Hour, true},
		{"an approved request stays for an hour", request(5*time.Hour, certv1.CertificateApproved), state.RequestApproved, 6 * time.Hour, true},
		{"the request of a joined device stays for an hour", issued, state.RequestIssued, 6 * time.Hour, false},
		{"a denied request stays for an hour", request(5*time.Hour, certv1.CertificateDenied), state.RequestDenied, 6 * time.Hour, false},
		{"a failed request stays for an hour", request(5*time.Hour, certv1.CertificateApproved, certv1.CertificateFailed), state.RequestDenied, 6 * time.Hour, false},
		{"a denial overrides an approval", request(time.Hour, certv1.CertificateApproved, certv1.CertificateDenied), state.RequestDenied, 2 * time.Hour, false},
		{"a decision with a future time ends too", request(9000*time.Hour, certv1.CertificateDenied), state.RequestDenied, 25 * time.Hour, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := state.DecisionOn(tt.r); got != tt.is {
				t.Errorf("the decision is %s, want %s", got, tt.is)
			}
			s := state.Load(state.Empty("test", start), []state.Object{tt.r}, 1)
			key := state.KeyOf(tt.r)
			for what, subjects := range map[string][]state.Subject{
				"at a start": Decider{}.Subjects(s), "when it changed": Decider{}.Touches(state.Applied{Key: key}), "when its alarm is due": {state.About(key)},
			} {
				ends := start.Add(tt.ends)
				p := Decider{}.Decide(s, subjects, ends.Add(-time.Second))
				if len(p.Changes) != 0 || len(p.Alarms) != 1 || !p.Alarms[0].At.Equal(ends) {
					t.Errorf("%s, a second before its end: %v, wakes %v, want %s", what, p.Changes, p.Alarms, ends)
				}
				p = Decider{}.Decide(s, subjects, ends)
				if len(p.Changes) != 1 || !p.Changes[0].Delete || (p.Changes[0].Why != "") != tt.said {
					t.Fatalf("%s, at its end: %v", what, p.Changes)
				}
				after, _ := state.Apply(s, p.Changes)
				if p = (Decider{}).Decide(after, subjects, ends); len(p.Changes) != 0 {
					t.Errorf("%s, a second pass at the same moment changes %v", what, p.Changes)
				}
			}
		})
	}
}

// The hour after an approval counts only while the hub runs.
func TestTheHourAfterAnApprovalCountsWhileTheHubRuns(t *testing.T) {
	issued := request(5*time.Hour, certv1.CertificateApproved)
	issued.Status.Certificate = []byte("x")
	for _, c := range []struct {
		name string
		r    *certv1.CertificateSigningRequest
		ends time.Duration
	}{
		{"approved", request(5*time.Hour, certv1.CertificateApproved), 11 * time.Hour},
		{"denied", request(5*time.Hour, certv1.CertificateDenied), 11 * time.Hour},
		{"the device has joined", issued, 6 * time.Hour},
		{"undecided", request(0), 24 * time.Hour},
	} {
		s := state.Load(state.Empty("test", start), []state.Object{c.r}, 1).Listen(start.Add(10 * time.Hour))
		for at, gone := range map[time.Duration]bool{c.ends - time.Second: false, c.ends: true} {
			if p := (Decider{}).Decide(s, Decider{}.Subjects(s), start.Add(at)); (len(p.Changes) > 0) != gone {
				t.Errorf("%s, after %s: %v", c.name, at, p.Changes)
			}
		}
	}
}
