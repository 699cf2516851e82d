package node

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// The framed payload equals the payload that is encoded as a whole.
func TestAFramedDesiredStateEqualsAnEncodedOne(t *testing.T) {
	desired := wire.Desired{Generation: 7, Hub: `hub "a"`, Time: time.Date(2026, 6, 1, 12, 0, 0, 5, time.UTC), LeaseIntervalSeconds: 10}
	tricky := `"pods":null,"configMaps":null,"secrets":null,` // the text that frame searches for
	for _, c := range []wire.Desired{
		{},
		{Pods: []corev1.Pod{}, ConfigMaps: []corev1.ConfigMap{}, Secrets: []corev1.Secret{}},
		{
			Pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "kiosk",
				Annotations: map[string]string{"a": tricky}}}},
			ConfigMaps: []corev1.ConfigMap{{Data: map[string]string{"x": tricky, "y": "<&>"}}},
			Profile:    &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "rpi"}}, PodCIDR: "10.64.0.0/24",
		},
	} {
		c.LeaseIntervalSeconds = desired.LeaseIntervalSeconds
		content, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := frame(content, desired)
		if err != nil {
			t.Fatal(err)
		}
		c = withMetadata(c, desired)
		if want, _ := json.Marshal(c); string(got) != string(want) {
			t.Errorf("%s, want\n%s", got, want)
		}
	}
	if _, err := frame([]byte(`{"pods":[]}`), desired); err == nil {
		t.Error("content in another form is framed")
	}
}

func TestADesiredStateIsEncodedOnce(t *testing.T) {
	v := Deliver{encoded: new(sync.Map)}
	now := time.Unix(100, 0)
	s := state.Load(state.Empty("x", now), []state.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}},
		&state.Record{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}, Boot: "b"},
	}, 2)
	plan := v.Decide(s, v.Subjects(s), now)
	if len(plan.Changes) != 1 {
		t.Fatal(plan)
	}
	digest := plan.Changes[0].Object.(*state.Record).Digest
	encoded, _ := v.encoded.Load(digest)
	kept, _ := encoded.([]byte)
	first, err := v.content(s, "pi-1", digest)
	if err != nil || len(kept) == 0 || &first[0] != &kept[0] {
		t.Errorf("%s is encoded again: %v", first, err)
	}
	if again, err := v.content(s, "pi-1", "another"); err != nil || fmt.Sprint(again) != fmt.Sprint(first) ||
		&again[0] == &first[0] {
		t.Errorf("framed at another time: %s, %v", again, err)
	}
	v.forget()
	if _, kept := v.encoded.Load(digest); kept {
		t.Error("the state is cached after it was published")
	}
}

// An encoder equals json.Marshal for any desired state, before and after others of its form.
func TestAnEncoderEqualsJSON(t *testing.T) {
	profile := &fleet.BoardProfile{ObjectMeta: metav1.ObjectMeta{Name: "board"}}
	profile.Spec.Labels = map[string]string{"podCIDR": "10.0.0.0/26", "a": "b"}
	empty := wire.Desired{Pods: []corev1.Pod{}, ConfigMaps: []corev1.ConfigMap{}, Secrets: []corev1.Secret{},
		PodCIDR: "10.0.0.0/26", LeaseIntervalSeconds: 10, FirmwareKey: []byte("key")}
	var e encoder
	check := func(what string, d wire.Desired) {
		t.Helper()
		want, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := e.desired(d); err != nil || string(got) != string(want) {
			t.Errorf("%s: %s, %v, want %s", what, got, err, want)
		}
	}
	for _, p := range []*fleet.BoardProfile{nil, profile} {
		empty.Profile = p
		for _, addresses := range []string{"10.0.0.0/26", "10.0.0.64/26", "10.0.0.64/26,fd00::/64", "fd00::/64", `a"b`, "<10.0.0.0>", ""} {
			d := empty
			d.PodCIDR = addresses
			check(addresses, d)
		}
		fields := reflect.TypeFor[wire.Desired]()
		for i := range fields.NumField() {
			d := empty
			v := reflect.ValueOf(&d).Elem().Field(i)
			for _, n := range []int{0, 1} {
				switch v.Kind() {
				case reflect.Slice:
					v.Set(reflect.MakeSlice(v.Type(), n, n))
				case reflect.Pointer:
					v.Set(reflect.New(v.Type().Elem()))
				case reflect.Int, reflect.Int32, reflect.Int64:
					v.SetInt(7)
				case reflect.String:
					v.SetString("fd01::/64")
				case reflect.Struct:
					v.Set(reflect.ValueOf(time.Unix(1, 0)))
				default:
					t.Fatal("there is a field of a new kind:", fields.Field(i).Name)
				}
				check(fields.Field(i).Name, d)
				v.SetZero()
				check("no "+fields.Field(i).Name, d)
			}
		}
		check("an empty state, again", empty)
	}
}
