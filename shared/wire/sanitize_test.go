package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/shared/bound"
)

const hiding = "a\u202eb\u200b\x1b[31m\x00"

// hides reports whether a text has a hidden character.
func hides(t *testing.T, o any) bool {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	// JSON escapes control characters and backslashes.
	return bound.Hidden(string(b)) || strings.Contains(strings.ReplaceAll(string(b), `\\`, ""), `\u`)
}

func read[T any](t *testing.T, parse func([]byte) (T, error), o any) T {
	t.Helper()
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestSanitizeStatus(t *testing.T) {
	images := make([]corev1.ContainerImage, bound.MaxImages+1)
	for i := range images {
		images[i] = corev1.ContainerImage{Names: slices.Repeat([]string{fmt.Sprint("i", i)}, maxNames+1)}
	}
	for _, c := range []struct {
		name    string
		status  Status
		ok      func(s Status) bool
		tooMuch string
	}{
		{"the largest hardware report", Status{Hardware: report(bound.MaxHardware)}, func(s Status) bool { return len(s.Hardware) == bound.MaxHardware }, ""},
		{"a too large hardware report", Status{Hardware: report(bound.MaxHardware + 1)}, func(s Status) bool { return s.Hardware == nil }, "its hardware report has 32769 bytes"},
		{"many images", Status{Status: corev1.NodeStatus{Images: images}}, func(s Status) bool {
			return len(s.Status.Images) == bound.MaxImages && len(s.Status.Images[0].Names) == maxNames &&
				s.Status.Images[0].Names[0] == "i0"
		}, "it names 257 images"},
		{"fields that agents never send", Status{Status: corev1.NodeStatus{
			Config: &corev1.NodeConfigStatus{Error: "x"}, VolumesInUse: []corev1.UniqueVolumeName{"v"},
			VolumesAttached: []corev1.AttachedVolume{{Name: "v"}},
		}}, func(s Status) bool {
			return s.Status.Config == nil && s.Status.VolumesInUse == nil && s.Status.VolumesAttached == nil
		}, ""},
		{"a long message", Status{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Message: strings.Repeat("x", 9000)}}}}, func(s Status) bool {
			return len(s.Status.Conditions[0].Message) == maxSaid
		}, ""},
		{"long words", Status{AgentVersion: strings.Repeat("x", 9000), Status: corev1.NodeStatus{
			NodeInfo: corev1.NodeSystemInfo{OSImage: strings.Repeat("x", 9000)},
			Images:   []corev1.ContainerImage{{Names: []string{strings.Repeat("x", 9000)}}},
		}}, func(s Status) bool {
			return len(s.AgentVersion) == maxVersion && len(s.Status.NodeInfo.OSImage) == maxWord &&
				len(s.Status.Images[0].Names[0]) == maxWord
		}, ""},
		{"hidden characters", Status{AgentVersion: hiding, Status: corev1.NodeStatus{
			Phase: hiding, Conditions: []corev1.NodeCondition{{Type: hiding, Reason: hiding, Message: hiding}},
			Addresses:   []corev1.NodeAddress{{Type: hiding, Address: hiding}},
			NodeInfo:    corev1.NodeSystemInfo{OSImage: hiding, KernelVersion: hiding},
			Images:      []corev1.ContainerImage{{Names: []string{hiding}}},
			Capacity:    corev1.ResourceList{hiding: resource.MustParse("1")},
			Allocatable: corev1.ResourceList{hiding: resource.MustParse("1")},
		}}, func(s Status) bool { return !hides(t, s) && s.AgentVersion == `a\u202eb\u200b\u001b[31m\u0000` }, ""},
		{"a hardware report with a NUL", Status{Hardware: json.RawMessage(`{"x":"a\u0000"}`)}, func(s Status) bool { return s.Hardware == nil }, "its hardware report has a NUL character"},
		{"a text that looks like a NUL", Status{Hardware: json.RawMessage(`{"x":"a\\u0000"}`)}, func(s Status) bool { return s.Hardware != nil }, ""},
	} {
		c.status.Boot, c.status.MachineID = "b", "00000000000000aa"
		if s := read(t, ParseStatus, c.status); !c.ok(s) || !strings.Contains(s.TooMuch, c.tooMuch) ||
			c.tooMuch == "" && s.TooMuch != "" {
			t.Errorf("%s: the status is %+v, want %q in TooMuch", c.name, s, c.tooMuch)
		}
	}
}

// report returns a hardware report of the given size in bytes.
func report(size int) json.RawMessage {
	return json.RawMessage(`{"x":"` + strings.Repeat("x", size-len(`{"x":""}`)) + `"}`)
}

func TestHiddenCharactersAreShown(t *testing.T) {
	status := corev1.PodStatus{Message: hiding, Reason: hiding, ContainerStatuses: []corev1.ContainerStatus{{
		Name: hiding, Image: hiding, AllocatedResources: corev1.ResourceList{hiding: resource.MustParse("1")},
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: hiding, Message: hiding}},
	}}}
	for name, payload := range map[string]any{
		"pods":      read(t, ParsePods, Pods{Boot: "b", Pods: []PodStatus{{UID: "u", Namespace: "n", Name: "p", Status: status}}}),
		"event":     read(t, ParseEvent, Event{Boot: "b", Type: "Normal", Reason: "R", Message: hiding}),
		"presence":  read(t, ParsePresence, Presence{Boot: "b", State: PresenceLost, Reason: hiding}),
		"a request": read(t, ParseJoinRequest, JoinRequest{AgentVersion: hiding}),
	} {
		if hides(t, payload) {
			t.Errorf("%s has hidden characters: %+v", name, payload)
		}
	}
	long := strings.Repeat("x", 9000)
	if p := read(t, ParsePods, Pods{Boot: "b", Pods: []PodStatus{{UID: "u", Namespace: "n", Name: "p",
		Status: corev1.PodStatus{Message: long}}}}); len(p.Pods[0].Status.Message) != maxEnded {
		t.Errorf("the message has %d bytes after sanitize", len(p.Pods[0].Status.Message))
	}
	if p := read(t, ParsePresence, Presence{Boot: "b", State: PresenceLost}); p.Reason != "" {
		t.Error(p)
	}
	if r := read(t, ParseJoinRequest, JoinRequest{AgentVersion: long}); len(r.AgentVersion) != maxVersion {
		t.Errorf("the version has %d bytes after sanitize", len(r.AgentVersion))
	}
	for container, want := range map[string]string{"": "", "web": "", hiding: "container", long: "container",
		"a/b": "container", "spec.containers{x}": "container"} {
		b, _ := json.Marshal(Event{Boot: "b", Type: "Normal", Reason: "R", Message: "m", Namespace: "n", Pod: "p",
			PodUID: "u", Container: container})
		if _, err := ParseEvent(b); want == "" && err != nil ||
			want != "" && (err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 300) {
			t.Errorf("an event with the container %.40q: %v", container, err)
		}
	}
}

// Decoded payloads of every type are limited in number and size of their values.
func TestDecodedPayloadsAreLimited(t *testing.T) {
	many := func(n int, one string) string { return strings.Repeat(one+",", n-1) + one }
	for name, c := range map[string]struct {
		parse      func([]byte) (any, error)
		data, want string
	}{
		"conditions":           {anyParser(ParseStatus), `{"boot":"b","machineID":"00000000000000aa","status":{"conditions":[` + many(65, `{"type":"C"}`) + `]}}`, "status.conditions: it has 65 entries"},
		"addresses":            {anyParser(ParseStatus), `{"boot":"b","machineID":"00000000000000aa","status":{"addresses":[` + many(33, `{"type":"C"}`) + `]}}`, "status.addresses: it has 33"},
		"taints":               {anyParser(ParseStatus), `{"boot":"b","machineID":"00000000000000aa","registration":{"taints":[` + many(65, `{"key":"C"}`) + `]}}`, "registration.taints: it has 65"},
		"conditions of a pod":  {anyParser(ParsePods), `{"boot":"b","pods":[{"uid":"u","namespace":"n","name":"p","status":{"conditions":[` + many(65, `{"type":"C"}`) + `]}}]}`, "it has 65"},
		"a quantity in a unit": {anyParser(ParseStatus), `{"boot":"b","machineID":"00000000000000aa","status":{"capacity":{"cpu":"99999999999999999999E"}}}`, "quantity"},
		"a usage":              {anyParser(ParseUsage), `{"pods":[{"uid":"` + strings.Repeat("x", bound.MaxString+1) + `"}]}`, "at most"},
	} {
		if _, err := c.parse([]byte(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
