package wire

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func entriesOf(t *testing.T, p Pods) (out []json.RawMessage) {
	t.Helper()
	for _, pod := range p.Pods {
		b, err := json.Marshal(pod)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

func TestALongListOfPodsIsSentInParts(t *testing.T) {
	for pods, least := range map[int]int{0: 1, 30: 1, 110: 2, 900: 2} {
		p := fullList(pods)
		payloads, err := PackPods(p, entriesOf(t, p))
		if err != nil || len(payloads) < least || least == 1 && len(payloads) > 1 {
			t.Fatalf("%d pods: %d parts, %v; want at least %d", pods, len(payloads), err, least)
		}
		var read []PodStatus
		for i, payload := range payloads {
			if len(payload) > MaxFromDevice {
				t.Errorf("part %d has %d bytes", i+1, len(payload))
			}
			part, err := ParsePods(payload)
			if err != nil {
				t.Fatal(err)
			}
			if len(payloads) > 1 && (part.Part != i+1 || part.Parts != len(payloads)) ||
				len(payloads) == 1 && part.Parts != 0 {
				t.Errorf("part %d of %d has the number %d of %d", i+1, len(payloads), part.Part, part.Parts)
			}
			read = append(read, part.Pods...)
		}
		if len(read) != pods || pods > 0 && !reflect.DeepEqual(read, p.Pods) {
			t.Errorf("%d pods: parsed %d pods that differ", pods, len(read))
		}
	}
}

// noise returns text that gzip hardly shortens.
func noise(bytes int) string {
	random := rand.NewChaCha8([32]byte{})
	raw := make([]byte, bytes/4*3)
	_, _ = random.Read(raw) // never fails
	text, _ := json.Marshal(raw)
	return string(text[1 : len(text)-1])
}

// largeDesired returns a desired state that needs more than two messages.
func largeDesired() Desired {
	d := Desired{Generation: 7, Hub: "h", LeaseIntervalSeconds: 10, Time: moment, PodCIDR: "10.64.0.0/24",
		Pods: []corev1.Pod{}, ConfigMaps: []corev1.ConfigMap{}, Secrets: []corev1.Secret{}}
	for i := range 8 {
		d.Pods = append(d.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", i),
			UID: "u"}})
		d.ConfigMaps = append(d.ConfigMaps, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i)},
			Data: map[string]string{"x": noise(100 << 10)}})
	}
	d.Secrets = append(d.Secrets, corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Data: map[string][]byte{"k": []byte("v")}})
	return d
}

func TestALongDesiredStateIsSentInPartsInAnyOrder(t *testing.T) {
	want := largeDesired()
	payloads, err := PackDesired(want)
	if err != nil || len(payloads) < 3 {
		t.Fatalf("%d parts, %v; want at least 3", len(payloads), err)
	}
	var parts DesiredParts
	add := func(i int) (Desired, bool) {
		t.Helper()
		d, err := ParseDesired(payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		d, complete, err := parts.Add(d, payloads[i])
		if err != nil {
			t.Fatal(err)
		}
		return d, complete
	}
	for i := len(payloads) - 1; i > 0; i-- { // the first part arrives last
		if _, complete := add(i); complete {
			t.Fatalf("the state is complete without %d parts", i)
		}
		if _, complete := add(i); complete {
			t.Fatal("a repeated part counts twice")
		}
	}
	got, complete := add(0)
	if !complete || !reflect.DeepEqual(got, want) {
		t.Errorf("complete is %v, or the state differs from the sent one", complete)
	}
	if _, complete := add(0); complete {
		t.Error("one repeated part completes the state again")
	}
}

// Kubernetes accepts a secret of a MiB of noise. Its gzip is longer than a compressed payload may
// be.
func TestAnObjectThatGzipDoesNotShortenIsSentUncompressed(t *testing.T) {
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	secret := corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "model"}, Data: map[string][]byte{"x": data}}
	one := Desired{Hub: "h", Generation: 7, Pods: []corev1.Pod{}, ConfigMaps: []corev1.ConfigMap{},
		Secrets: []corev1.Secret{secret}}
	for name, want := range map[string]Desired{"alone": one,
		"among others": func() Desired { d := largeDesired(); d.Secrets = append(d.Secrets, secret); return d }()} {
		payloads, err := PackDesired(want)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var parts DesiredParts
		for i, p := range payloads {
			d, err := ParseDesired(p)
			if err != nil {
				t.Fatalf("%s: part %d of %d bytes: %v", name, i+1, len(p), err)
			}
			got, complete, err := parts.Add(d, p)
			if err != nil || complete != (i == len(payloads)-1) || complete && !reflect.DeepEqual(got, want) {
				t.Fatalf("%s: after %d of %d parts: complete %v, %v", name, i+1, len(payloads), complete, err)
			}
		}
	}
}

func TestPartsOfAnotherDesiredStateAreNotMixed(t *testing.T) {
	var parts DesiredParts
	a, b := Desired{Hub: "h", Generation: 1, Part: 1, Parts: 2}, Desired{Hub: "h", Generation: 2, Part: 2, Parts: 2}
	for _, d := range []Desired{a, b} {
		if _, complete, err := parts.Add(d, nil); complete || err != nil {
			t.Errorf("generation %d: complete %v, %v", d.Generation, complete, err)
		}
	}
	b.Part = 1
	if got, complete, _ := parts.Add(b, nil); !complete || got.Generation != 2 {
		t.Errorf("complete %v, generation %d", complete, got.Generation)
	}
	if _, complete, _ := parts.Add(Desired{Hub: "h", Generation: 3}, nil); !complete {
		t.Error("a state without parts is not complete")
	}
}

func TestDesiredHead(t *testing.T) {
	d := largeDesired()
	d.Hub, d.Generation = "h", 31
	payloads, err := PackDesired(d)
	if err != nil || len(payloads) < 2 {
		t.Fatal(len(payloads), err)
	}
	text, err := json.Marshal(Desired{Hub: "h", Generation: 31})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range append(payloads, text) {
		head, known := DesiredHead(p)
		if complete := i == len(payloads); !known || head.Hub != "h" || head.Generation != 31 ||
			!complete && (head.Part != i+1 || head.Parts != len(payloads)) || complete && head.Parts != 0 {
			t.Errorf("the head of payload %d of %d is %+v, known %v", i+1, len(payloads), head, known)
		}
	}
	for _, p := range []string{"", "{}", "[]", "x", "\x1f\x8b", `{"generation":1e999}`, `{"hub":"h"`,
		`{"pods":[],"hub":"h"}`, `{"generation":1,"hub":"` + strings.Repeat("h", headBytes) + `"}`} {
		if head, known := DesiredHead([]byte(p)); known {
			t.Errorf("the head of %.40s is %+v, want none", p, head)
		}
	}
}

func TestPackDesiredRefusesTooManyParts(t *testing.T) {
	d := largeDesired()
	for range 8 {
		d.ConfigMaps = append(d.ConfigMaps, d.ConfigMaps...)
		if len(d.ConfigMaps) > 100 {
			break
		}
	}
	if _, err := PackDesired(d); err == nil || !strings.Contains(err.Error(), "parts") {
		t.Errorf("noise: %v, want it refused because of its parts", err)
	}
	d = Desired{Hub: "h"}
	for i := range 20 {
		d.ConfigMaps = append(d.ConfigMaps, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)},
			Data: map[string]string{"x": strings.Repeat("a", 1<<20)}})
	}
	if _, err := PackDesired(d); err == nil || !strings.Contains(err.Error(), "at most 16777216") {
		t.Errorf("20 MiB of text: %v, want them refused", err)
	}
	var parts DesiredParts
	bomb := make([]byte, 8)
	copy(bomb, gzipMagic)
	bomb[7] = 0x01 // the payload declares 16 MiB of text
	for i := 1; i <= 2; i++ {
		_, _, err := parts.Add(Desired{Hub: "h", Part: i, Parts: 3}, bomb)
		if (err != nil) != (i == 2) {
			t.Errorf("part %d: %v", i, err)
		}
	}
}

func TestAnUnchangedPodNeedsABase(t *testing.T) {
	for text, want := range map[string]string{
		`{"boot":"b","seq":2,"generation":1,"base":1,"pods":[{"uid":"u"}]}`:                                                  "",
		`{"boot":"b","seq":2,"generation":1,"pods":[{"uid":"u"}]}`:                                                           "must have uid",
		`{"boot":"b","seq":2,"generation":1,"base":2,"pods":[{"uid":"u"}]}`:                                                  "base is 2",
		`{"boot":"b","seq":2,"generation":1,"base":1,"pods":[{"uid":"u","name":"n"}]}`:                                       "must have uid",
		`{"boot":"b","seq":2,"generation":1,"base":1,"pods":[{"uid":"u"},{"uid":"u"}]}`:                                      "is repeated",
		`{"boot":"b","seq":2,"generation":1,"part":1,"parts":17,"pods":[]}`:                                                  "part 1 of 17",
		`{"boot":"b","seq":2,"generation":1,"part":3,"parts":2,"pods":[]}`:                                                   "part 3 of 2",
		`{"boot":"b","seq":2,"generation":1,"parts":2,"pods":[]}`:                                                            "part 0 of 2",
		`{"boot":"b","seq":2,"generation":1,"part":-1,"parts":-1,"pods":[]}`:                                                 "part -1 of -1",
		`{"boot":"b","seq":2,"generation":1,"part":1,"parts":1,"pods":[{"uid":"u","namespace":"a","name":"n","status":{}}]}`: "",
	} {
		if _, err := ParsePods([]byte(text)); want == "" && err != nil ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
