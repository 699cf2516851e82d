package wire

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/shared/fleet"
)

var update = flag.Bool("update", false, "rewrite the golden payloads")

const boot = "01JD8Y3QK8Z6M5N4P3R2S1T0VW"

var moment = time.Date(2026, 11, 20, 10, 2, 11, 123456000, time.UTC)

func ptr[T any](v T) *T { return &v }

// anyParser hides a parser's result type.
func anyParser[T any](parse func([]byte) (T, error)) func([]byte) (any, error) {
	return func(b []byte) (any, error) { v, err := parse(b); return v, err }
}

// goldens has one payload of each kind, as in testdata.
var goldens = []struct {
	name  string
	value any
	parse func([]byte) (any, error)
}{
	{"lease", Lease{Boot: boot, Seq: 4211, Status: 17, Pods: 52, Desired: 31, Time: moment}, anyParser(ParseLease)},
	{"status", Status{
		Boot: boot, Seq: 17, Time: moment, MachineID: "3f2a9c0d1e4b5a67", AgentVersion: "1.0.0",
		Registration: Registration{
			Labels: map[string]string{"flotilla.dev/board": "raspberrypi4"},
			Taints: []corev1.Taint{{Key: "camera", Value: "true", Effect: corev1.TaintEffectNoSchedule}},
		},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("3884Mi"),
				"pods": resource.MustParse("110")},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				Reason: "KubeletReady"}},
		},
		Hardware: json.RawMessage(`{"board":{"model":"Raspberry Pi 4 Model B Rev 1.5"}}`),
		Volumes: []VolumeState{{UID: "0c6a2b1e-8a44-8c0e-9d43-0a1b2c3d4e5f"},
			{UID: "1c6a2b1e-8a44-8c0e-9d43-0a1b2c3d4e5f", Gone: true}},
		Vitals: &Vitals{CPU: ptr(.125), Memory: ptr(.41), Disk: ptr(.5), Temperature: ptr(61.3), Supply: ptr(5.08),
			RTT: ptr(.034)},
		Firmware: &FirmwareStatus{
			Candidate: FirmwareDigest(bootDocument), State: FirmwareVerifying, Backend: fleet.BootConfigTxt,
			Trial:   fleet.TrialTryboot,
			Message: "engine-ping holds since 20s of 1m0s", Diff: "cmdline.txt: +cgroup_enable=memory\n",
			Bad: []string{FirmwareDigest(nil)}, Since: moment,
		},
	}, anyParser(ParseStatus)},
	{"pods", Pods{Boot: boot, Seq: 52, Generation: 31, Pods: []PodStatus{{
		UID: "5d1f2b1e-8a44-4c0e-9d43-0a1b2c3d4e5f", Namespace: "default", Name: "kiosk-7c9f-x2x1q",
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}}}, anyParser(ParsePods)},
	{"event", Event{Boot: boot, Time: moment, Type: corev1.EventTypeNormal, Reason: "Pulled", Message: "pulled image kiosk:1 in 3.2s", Pod: "kiosk-7c9f-x2x1q", Namespace: "default"}, anyParser(ParseEvent)},
	{"presence", Presence{Boot: boot, State: PresenceShutdown, Reason: "stopped by systemd"}, anyParser(ParsePresence)},
	{"desired", Desired{
		Generation: 31, Hub: "01JD8Y3QK8Z6M5N4P3R2S1T0AB", LeaseIntervalSeconds: 10, Time: moment,
		Pods: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "kiosk-7c9f-x2x1q", Namespace: "default"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "kiosk:1"}}}}},
		ConfigMaps: []corev1.ConfigMap{}, Secrets: []corev1.Secret{},
		Volumes: []Volume{{UID: "0c6a2b1e-8a44-8c0e-9d43-0a1b2c3d4e5f", Namespace: "default", Claim: "data",
			Made: true}, {UID: "1c6a2b1e-8a44-8c0e-9d43-0a1b2c3d4e5f", Remove: true}},
		Firmware:    signedBoot(),
		FirmwareKey: bootKey.Public().(ed25519.PublicKey),
	}, anyParser(ParseDesired)},
	{"node-logs", Request{Type: RequestNodeLogs, TailLines: ptr(int64(100)), Follow: true, SinceSeconds: ptr(int64(60)), Timestamps: true, LimitBytes: ptr(int64(4096))}, anyParser(ParseRequest)},
	{"request", Request{Type: RequestLogs, Pod: "5d1f2b1e-8a44-4c0e-9d43-0a1b2c3d4e5f", Container: "web", TailLines: ptr(int64(100)), Follow: true, SinceSeconds: ptr(int64(60)), DeadlineSeconds: 600}, anyParser(ParseRequest)},
	{"exec", Request{Type: RequestExec, Pod: "5d1f2b1e-8a44-4c0e-9d43-0a1b2c3d4e5f", Container: "web", Command: []string{"sh", "-c", "ls"}, TTY: true, Stdin: true}, anyParser(ParseRequest)},
	{"stdin", Request{Type: RequestStdin, Seq: 7, Data: []byte("ls\n")}, anyParser(ParseRequest)},
	{"resize", Request{Type: RequestResize, Seq: 8, Width: 120, Height: 40}, anyParser(ParseRequest)},
	{"port-forward", Request{Type: RequestPortForward, Pod: "5d1f2b1e-8a44-4c0e-9d43-0a1b2c3d4e5f", Port: 8080}, anyParser(ParseRequest)},
	{"exit", Reply{Seq: 9, Data: []byte("no such file\n"), Stderr: true, EOF: true, ExitCode: 2, Ack: 7}, anyParser(ParseReply)},
	{"usage", Usage{
		Time: moment, Window: metav1.Duration{Duration: 2 * time.Second},
		Node: corev1.ResourceList{"cpu": resource.MustParse("312500000n"), "memory": resource.MustParse("812Mi")},
		Pods: []PodUsage{{UID: "5d1f2b1e-8a44-4c0e-9d43-0a1b2c3d4e5f", Namespace: "default", Name: "kiosk-7c9f-x2x1q",
			Containers: []ContainerUsage{
				{Name: "web", Usage: corev1.ResourceList{"cpu": resource.MustParse("5m"), "memory": resource.MustParse("20Mi")}},
			}}},
	}, anyParser(ParseUsage)},
	{"reply", Reply{Boot: boot, Seq: 3, Data: []byte("a line\n"), EOF: true}, anyParser(ParseReply)},
}

func TestPayloadsMatchTheGoldenFiles(t *testing.T) {
	for _, g := range goldens {
		t.Run(g.name, func(t *testing.T) {
			file := filepath.Join("testdata", g.name+".json")
			written, err := json.Marshal(g.value)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, append(written, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if golden = bytes.TrimSpace(golden); !bytes.Equal(written, golden) {
				t.Errorf("the written payload differs from %s, which older peers parse:\n got %s\nwant %s", file,
					written, golden)
			}
			read, err := g.parse(golden)
			if err != nil {
				t.Fatal(err)
			}
			again, _ := json.Marshal(read)
			if !bytes.Equal(again, golden) {
				t.Errorf("the payload that was parsed and written again:\n got %s\nwant %s", again, golden)
			}
		})
	}
}

func TestTheFastPathParsesAppendLease(t *testing.T) {
	want := Lease{Boot: boot, Seq: 1, Desired: 9e17, Time: moment}
	got, ok := scanLease(AppendLease(nil, want))
	if !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v (%v), want %+v", got, ok, want)
	}
}

func BenchmarkParseLease(b *testing.B) {
	data := AppendLease(nil, Lease{Boot: boot, Seq: 4211, Status: 17, Pods: 52, Desired: 31, Time: moment})
	b.Run("usual form", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ParseLease(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	spaced := bytes.ReplaceAll(data, []byte(`,`), []byte(`, `))
	b.Run("any other form", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ParseLease(spaced); err != nil {
				b.Fatal(err)
			}
		}
	})
}
