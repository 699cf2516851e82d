package state

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzOutage checks that an outage is encoded and decoded as by encoding/json.
func FuzzOutage(f *testing.F) {
	for _, annotation := range []string{
		`{"since":"2026-11-25T03:04:45.124000Z"}`, `{"since":"2026-11-25T03:04:45.124999Z"}`,
		`{"since":"2026-11-25T03:04:45Z"}`,
		`{"since":"2026-11-25T03:04:45,124000Z"}`, `{"since":"2026-11-25T3:04:45.124000Z"}`,
		`{"since":"2026-11-25T03:04:45.124000000001Z"}`,
		`{"since":"2026-11-25T03:04:45.124000+01:00"}`, `{"since":"2026-11-25T03:04:45.12\u00300Z"}`,
		`{"since":"0001-01-01T00:00:00.000000Z"}`,
		`{"since":"2026-02-30T03:04:45.124000Z"}`, `{"since":"2026-11-25T03:04:45.124000Z","since":"2027-11-25T03:04:45.124000Z"}`, `{"since":""}`, `{"since":null}`, `{"since":"`, `{}`, ``,
		`{"since":"2026-11-25T03:04:45.124000Z","spells":[{"key":"k","from":"2026-11-25T03:04:46Z","to":"2026-11-25T03:04:47Z"}]}`,
	} {
		f.Add(annotation)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		got := OutageOf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotationOutage: annotation}}})
		var want Outage
		if err := json.Unmarshal([]byte(annotation), &want); err != nil || want.Since.IsZero() {
			if got != nil {
				t.Fatalf("%s is parsed as %+v, but encoding/json fails: %v", annotation, got, err)
			}
			return
		}
		if got == nil || !got.Since.Time.Equal(want.Since.Time) || got.Since.Location() != want.Since.Location() ||
			len(got.TaintPeriods) != len(want.TaintPeriods) {
			t.Fatalf("%s is parsed as %+v, want %+v", annotation, got, want)
		}
		want.Since.Time = want.Since.Truncate(time.Millisecond)
		if n := len(want.TaintPeriods); n > maxTaintPeriods {
			want.TaintPeriods = append(want.TaintPeriods[:maxTaintPeriods-1:maxTaintPeriods-1], want.TaintPeriods[n-1])
		}
		if text, _ := json.Marshal(want); got.String() != string(text) {
			t.Fatalf("%s is written as %s, want %s", annotation, got, text)
		}
	})
}
