package wire

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func zip(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text)) // a write to a buffer does not fail
	_ = w.Close()
	return b.Bytes()
}

// fullList is the list of a device with pods of 8 containers with different ids.
func fullList(pods int) Pods {
	random := rand.New(rand.NewPCG(1, 2))
	id := func() string {
		return fmt.Sprintf("%016x%016x%016x%016x", random.Uint64(), random.Uint64(), random.Uint64(), random.Uint64())
	}
	p := Pods{Boot: "b1", Seq: 1}
	for i := range pods {
		s := PodStatus{UID: types.UID(id()[:36]), Namespace: "default", Name: fmt.Sprintf("app-%05d", i)}
		s.Status.Phase = corev1.PodRunning
		for c := range 8 {
			end := &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", ContainerID: "docker://" + id()}
			s.Status.ContainerStatuses = append(s.Status.ContainerStatuses,
				corev1.ContainerStatus{Name: fmt.Sprint("c", c), Ready: true, Image: "registry.example/app:1",
					ImageID: "sha256:" + strings.Repeat("ab", 32), ContainerID: "docker://" + id(),
					LastTerminationState: corev1.ContainerState{Terminated: end},
					State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
		}
		p.Pods = append(p.Pods, s)
	}
	return p
}

func TestALongListOfPodsIsPackedAndRead(t *testing.T) {
	for _, pods := range []int{1, 110, 250} {
		text, err := json.Marshal(fullList(pods))
		if err != nil {
			t.Fatal(err)
		}
		payload, err := Pack(text)
		if err != nil || len(payload) > MaxFromDevice {
			t.Fatalf("%d pods: %d bytes become %d, %v", pods, len(text), len(payload), err)
		}
		if !Packed(payload) {
			t.Errorf("%d pods: %d bytes are not packed", pods, len(text))
		}
		read, err := ParsePods(payload)
		if err != nil || len(read.Pods) != pods ||
			read.Pods[pods-1].Status.ContainerStatuses[7].ContainerID != fullList(pods).Pods[pods-1].Status.ContainerStatuses[7].ContainerID {
			t.Errorf("%d pods: parsed %d, %v", pods, len(read.Pods), err)
		}
	}
}

func TestShortTextIsNotPacked(t *testing.T) {
	if payload, err := Pack(golden(t, "pods")); err != nil || Packed(payload) {
		t.Errorf("short text is packed: %v, %v", Packed(payload), err)
	}
}

func TestPackRefusesLongText(t *testing.T) {
	if _, err := Pack(bytes.Repeat([]byte("x"), MaxUnpacked+1)); err == nil ||
		!strings.Contains(err.Error(), fmt.Sprint(MaxUnpacked)) {
		t.Errorf("too much text: %v", err)
	}
	noise := make([]byte, MaxUnpacked)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(noise) // never fails
	if _, err := Pack(noise); err == nil || !strings.Contains(err.Error(), "as gzip") {
		t.Errorf("noise: %v, want it refused because of its gzip", err)
	}
}

func TestPackedPayloadsAreLimited(t *testing.T) {
	good := string(golden(t, "pods"))
	long := `{"boot":"b","x":"` + strings.Repeat("y", MaxUnpacked) + `"}`
	broken := zip(good)
	broken[len(broken)-5] ^= 1
	liar := zip(good)
	copy(liar[len(liar)-4:], []byte{7, 0, 0, 0})
	for name, c := range map[string]struct {
		data []byte
		want string // part of the error; empty: accepted
	}{
		"text":                       {[]byte(good), ""},
		"gzip":                       {zip(good), ""},
		"more text than allowed":     {zip(long), "more than"},
		"a gzip bomb":                {zip(strings.Repeat(" ", 200<<20)), "more than"},
		"more text than declared":    {liar, "more than its declared 7 bytes"},
		"packed twice":               {zip(string(zip(good))), "twice"},
		"a wrong checksum":           {broken, "is invalid"},
		"an incomplete payload":      {zip(good)[:40], "is invalid"},
		"only the magic number":      {[]byte{0x1f, 0x8b}, "is invalid"},
		"not JSON":                   {zip("hello"), "not a JSON object"},
		"gzip longer than a message": {append(zip(good), make([]byte, MaxFromDevice)...), "at most"},
		"text longer than a message": {[]byte(`{"boot":"b","x":"` + strings.Repeat("y", MaxFromDevice) + `"}`), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParsePods(c.data)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	if _, err := ParseStatus(zip(string(golden(t, "status")))); err != nil {
		t.Error(err)
	}
	if _, err := ParseEvent(zip(string(golden(t, "event")))); err == nil {
		t.Error("a packed event is accepted, want only packed status and pods")
	}
}
