package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/engine/enginetest"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/volume"
)

func storagePod(volume string, containers ...string) corev1.Pod {
	p := makePod("app", make([]string, len(containers))...)
	v := corev1.EmptyDirVolumeSource{}
	if volume != "" {
		q := resource.MustParse(volume)
		v.SizeLimit = &q
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &v}}}
	for i, limit := range containers {
		c := &p.Spec.Containers[i]
		c.Image, c.ImagePullPolicy = "app", corev1.PullNever
		c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		if limit != "" {
			c.Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse(limit)}
		}
	}
	return p
}

func TestOverLimit(t *testing.T) {
	const mi = 1 << 20
	for name, c := range map[string]struct {
		pod  corev1.Pod
		data int64
		own  []int64
		want string
	}{
		"no limit":                {storagePod("", ""), 100 * mi, []int64{100 * mi}, ""},
		"a volume at its limit":   {storagePod("10Mi", ""), 10 * mi, []int64{0}, ""},
		"a volume over its limit": {storagePod("10Mi", ""), 10*mi + 1, []int64{0}, `Usage of EmptyDir volume "data" exceeds the limit "10Mi". `},
		"volume and containers together over the limit": {storagePod("", "10Mi", "10Mi"), 10 * mi, []int64{5 * mi, 5*mi + 1}, "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "},
		"volume and containers at the limit":            {storagePod("", "10Mi", "10Mi"), 10 * mi, []int64{5 * mi, 5 * mi}, ""},
		"one of two containers over its limit":          {storagePod("", "10Mi", "10Mi"), 0, []int64{10*mi + 1, 0}, `Container c0 exceeded its local ephemeral storage limit "10Mi". `},
		"the volume's limit is checked first":           {storagePod("1Mi", "1Mi"), 2 * mi, []int64{2 * mi}, `Usage of EmptyDir volume "data" exceeds the limit "1Mi". `},
	} {
		t.Run(name, func(t *testing.T) {
			s := Stored{map[string]int64{"data": c.data}, map[string]int64{}}
			for i, n := range c.own {
				s.Containers[c.pod.Spec.Containers[i].Name] = n
			}
			if got := OverLimit(&c.pod, s); got != c.want {
				t.Errorf("the message is %q, want %q", got, c.want)
			}
			if want := name != "no limit"; limitsStorage(&c.pod) != want {
				t.Errorf("the pod has a limit: %v, want %v", !want, want)
			}
		})
	}
	p := storagePod("", "10Mi")
	p.Spec.Volumes[0].EmptyDir.Medium = corev1.StorageMediumMemory // a tmpfs counts as memory
	if why := OverLimit(&p, Stored{map[string]int64{"data": 20 * mi}, nil}); why != "" {
		t.Error(why)
	}
}

func TestAPodThatWritesTooMuchIsEvicted(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.AddImage("app", 1, func(s engine.Spec,
			run int) enginetest.Play {
			return enginetest.Play{Written: 3 << 20}
		})
		writes, keeps, fills := storagePod("", "2Mi"), storagePod("", "4Mi"), storagePod("64Ki", "")
		keeps.Name, keeps.UID, fills.Name, fills.UID = "keeps", "uid-keeps", "fills", "uid-fills"
		d.desire(1, writes, keeps, fills)
		time.Sleep(90 * time.Second)
		d.wantPhase("app", corev1.PodFailed, "Evicted")
		d.wantPhase("keeps", corev1.PodRunning, "")
		d.wantPhase("fills", corev1.PodRunning, "")
		if err := os.WriteFile(filepath.Join(d.dir, volume.PodsDir, "uid-fills", "data", "x"), make([]byte, 80<<10),
			0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(90 * time.Second)
		st := d.wantPhase("fills", corev1.PodFailed, "Evicted")
		if st.Message != `Usage of EmptyDir volume "data" exceeds the limit "64Ki". ` {
			t.Errorf("the pod's message is %q, want that the volume exceeds its limit", st.Message)
		}
		d.wantPhase("keeps", corev1.PodRunning, "")
		if !slices.Contains(d.reasons(), "Evicted") {
			t.Errorf("the events are %q, want Evicted", d.reasons())
		}
	})
}

// All writable places are measured, not only volumes and root file systems.
func TestEveryWritablePlaceIsMeasured(t *testing.T) {
	bubble(t, func(t *testing.T, d *device) {
		d.fake.AddImage("app", 1, func(s engine.Spec, run int) enginetest.Play { return enginetest.Play{} })
		says, deep := storagePod("", "4Mi"), storagePod("64Mi", "")
		deep.Name, deep.UID = "deep", "uid-deep"
		d.desire(1, says, deep)
		time.Sleep(90 * time.Second)
		d.wantPhase("app", corev1.PodRunning, "")
		d.wantPhase("deep", corev1.PodRunning, "")
		message := filepath.Join(d.dir, messageName(plan.Place{Pod: says.UID,
			Container: says.Spec.Containers[0].Name}, 0))
		if err := os.WriteFile(message, make([]byte, 5<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(nestDirs(t, filepath.Join(d.dir, volume.PodsDir, "uid-deep", "data"), engine.MaxDepth+1))
		time.Sleep(90 * time.Second)
		for name, want := range map[string]string{
			"app":  "Pod ephemeral local storage usage exceeds the total limit of containers 4Mi. ",
			"deep": `EmptyDir volume "data" cannot be measured: its directories are nested deeper than 256. `,
		} {
			if st := d.wantPhase(name, corev1.PodFailed, "Evicted"); st.Message != want {
				t.Errorf("the message of %s is %q, want %q", name, st.Message, want)
			}
		}
	})
}

// A slowFiles engine never finishes measuring the pods named slow.
type slowFiles struct {
	engine.Engine
	mu    sync.Mutex
	calls map[string]int // number of measurements by pod
}

func (s *slowFiles) times(pod string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[pod]
}

func (s *slowFiles) Written(ctx context.Context, id string) (int64, error) {
	list, err := s.Containers(context.Background(), plan.LabelAgent+"=pi-1")
	if err != nil {
		return 0, err
	}
	for _, c := range list {
		if c.ID == id {
			s.mu.Lock()
			s.calls[c.Labels[plan.LabelPodName]]++
			s.mu.Unlock()
			if strings.HasPrefix(c.Labels[plan.LabelPodName], "slow") {
				<-ctx.Done()
				return 0, ctx.Err()
			}
		}
	}
	return s.Engine.Written(ctx, id)
}

// A pod with too many files to count is reported, and does not delay the measurement of others.
func TestAPodThatCannotBeMeasuredDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDevice(t)
		s := &slowFiles{Engine: d.fake, calls: map[string]int{}}
		d.engine = s
		d.fake.AddImage("app", 1, func(s engine.Spec,
			run int) enginetest.Play {
			return enginetest.Play{Written: 1 << 20}
		})
		d.start()
		defer func() { d.end() }()
		var pods []corev1.Pod
		for _, name := range []string{"slow-1", "slow-2", "quick"} {
			p := storagePod("64Ki", "2Mi")
			p.Name, p.UID = name, types.UID("uid-"+name)
			pods = append(pods, p)
		}
		d.desire(1, pods...)
		time.Sleep(21 * time.Minute)
		if s.times("slow-1") > 2 || s.times("slow-2") > 2 || s.times("quick") < 15 {
			t.Errorf("in 21 minutes the pods were measured %d, %d and %d times", s.times("slow-1"), s.times("slow-2"),
				s.times("quick"))
		}
		reports := 0
		for _, r := range d.reasons() {
			if r == "StorageNotMeasured" {
				reports++
			}
		}
		if reports != 2 {
			t.Errorf("the slow measurement was reported %d times: %q", reports, d.reasons())
		}
		// The part that was counted already exceeds the limit.
		if err := os.WriteFile(filepath.Join(d.dir, volume.PodsDir, "uid-slow-1", "data", "x"), make([]byte, 80<<10),
			0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(45 * time.Minute)
		d.wantPhase("slow-1", corev1.PodFailed, "Evicted")
		d.wantPhase("slow-2", corev1.PodRunning, "")
		d.wantPhase("quick", corev1.PodRunning, "")
	})
}
