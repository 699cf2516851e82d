package hardware

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"flotilla.dev/shared/fleet"
)

func spell(t Thresholds) string {
	var parts []string
	for _, x := range t {
		parts = append(parts, x.Signal+"<"+text(x))
	}
	return strings.Join(parts, ",")
}

func TestParseThresholds(t *testing.T) {
	for _, tt := range []struct{ name, flag, want, err string }{
		{"quantities and percentages", "nodefs.available<10%,memory.available<64Mi", "memory.available<64Mi,nodefs.available<10%", ""},
		{"blanks do not matter", " memory.available<1Gi , pid.available<2k", "memory.available<1Gi,pid.available<2k", ""},
		{"an empty flag", "", "", ""},
		{"a fraction of a percent", "imagefs.inodesFree<2.5%", "imagefs.inodesFree<2.5%", ""},
		{"an unknown signal is named", "memory.free<64Mi", "", `unknown signal "memory.free"`},
		{"an invalid quantity is named", "memory.available<lots", "", `"lots"`},
		{"a negative quantity is refused", "memory.available<-1Mi", "", `"-1Mi"`},
		{"100% would mean pressure for ever", "nodefs.available<100%", "", `"100%"`},
		{"an invalid percentage", "nodefs.available<NaN%", "", `"NaN%"`},
		{"the wrong sign", "memory.available=64Mi", "", `memory.available=64Mi`},
		{"a repeated signal", "memory.available<1Mi,memory.available<2Mi", "", "twice"},
		{"an empty part", "memory.available<1Mi,", "", "form"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseThresholds(tt.flag)
			if tt.err == "" && (err != nil || spell(got) != tt.want) {
				t.Errorf("got %q, %v; want %q", spell(got), err, tt.want)
			}
			if tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("got error %v; want an error with %q", err, tt.err)
			}
		})
	}
}

func TestParseReserved(t *testing.T) {
	got, err := ParseReserved("cpu=200m,memory=160Mi")
	if err != nil || got.Cpu().String() != "200m" || got.Memory().String() != "160Mi" {
		t.Errorf("got %v, %v; want 200m and 160Mi", got, err)
	}
	_, err = ParseReserved("pods=3,cpu=much,memory=-1")
	for _, want := range []string{"pods", `"much"`, `"-1"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error %v does not name %s, want all mistakes", err, want)
		}
	}
}

func TestFlagsOverrideTheProfileAndTheProfileTheDefaults(t *testing.T) {
	profile := &fleet.BoardProfile{}
	profile.Name = "raspberrypi-4"
	profile.Spec.Resources = fleet.BoardResources{
		SystemReserved: map[string]string{"cpu": "200m", "memory": "160Mi"},
		AgentReserved:  map[string]string{"memory": "48Mi"},
		EvictionHard:   map[string]string{"memory.available": "64Mi", "nodefs.inodesFree": "0"},
	}
	system, _ := ParseReserved("memory=1Gi")
	hard, _ := ParseThresholds("imagefs.available<20%")
	l, err := With(profile, Limits{System: system, Hard: hard})
	if err != nil {
		t.Fatal(err)
	}
	if l.System.Cpu().String() != "200m" || l.System.Memory().String() != "1Gi" || l.Agent.Memory().String() != "48Mi" {
		t.Errorf("reserved for the system %v, for the agent %v; want 200m, 1Gi and 48Mi", l.System, l.Agent)
	}
	want := "imagefs.available<20%,memory.available<64Mi,nodefs.available<10%,nodefs.inodesFree<0,outofdisk.available<256Mi"
	if got := spell(l.Hard); got != want {
		t.Errorf("thresholds %s\nwant       %s", got, want)
	}
	if none, err := With(nil, Limits{}); err != nil || spell(none.Hard) != spell(DefaultThresholds()) ||
		len(none.System) != 0 {
		t.Errorf("without a profile: %+v, %v; want the defaults", none, err)
	}
	profile.Spec.Resources.EvictionHard["memory.available"] = "lots"
	l, err = With(profile, Limits{})
	if err == nil || !strings.Contains(err.Error(), "raspberrypi-4") || l.System.Cpu().String() != "200m" {
		t.Errorf("an invalid part of the profile: error %v, limits %v; want the part named and all others applied", err,
			l.System)
	}
}

func TestAllocatable(t *testing.T) {
	r := Report{Capacity: Capacity{CPUs: 4, Memory: 1 << 30, Ephemeral: 10 << 30, Pods: 110}}
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
	for _, tt := range []struct {
		name                       string
		report                     Report
		limits                     Limits
		cpu, memory, storage, pods string
	}{
		{"the capacity minus reservations and threshold", r, Limits{System: list("200m", "160Mi"), Agent: list("100m", "48Mi"), Hard: DefaultThresholds()}, "3700m", "716Mi", "9Gi", "110"},
		{"without limits it is the capacity", r, Limits{}, "4", "1Gi", "10Gi", "110"},
		{"never below 0", r, Limits{System: list("8", "2Gi")}, "0", "0", "10Gi", "110"},
		{"a resource that cannot be read is 0", Report{}, Limits{Hard: DefaultThresholds()}, "0", "0", "0", "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := NodeStatus(tt.report, tt.limits, Software{}).Allocatable
			got := []string{a.Cpu().String(), a.Memory().String(), a.StorageEphemeral().String(), a.Pods().String()}
			want := []string{tt.cpu, tt.memory, tt.storage, tt.pods}
			if strings.Join(got, " ") != strings.Join(want, " ") {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestNodeStatusNamesEngineAndAgent(t *testing.T) {
	r := Report{Host: Host{OS: "linux", Arch: "arm", Kernel: "6.6", Image: "Debian", MachineID: "a438f8ac132a3df9",
		OSMachineID: "0123", SystemUUID: "4567", BootID: "b"}, Capacity: Capacity{Swap: 7}}
	i := NodeStatus(r, Limits{}, Software{Engine: "docker://20.10.24", Arch: "arm64", Agent: "v1"}).NodeInfo
	if i.Architecture != "arm64" || i.MachineID != "0123" || i.SystemUUID != "4567" ||
		i.ContainerRuntimeVersion != "docker://20.10.24" ||
		i.KubeletVersion != "v1" ||
		i.Swap == nil ||
		*i.Swap.Capacity != 7 {
		t.Errorf("nodeInfo is %+v", i)
	}
}

func TestHugePagesReduceTheAllocatableMemory(t *testing.T) {
	root := t.TempDir()
	for name, n := range map[string]string{"hugepages-2048kB": "8", "hugepages-1048576kB": "0", "hugepages-64kB": "x",
		"hugepages-": "1"} {
		dir := filepath.Join(root, "sys/kernel/mm/hugepages", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "nr_hugepages"), []byte(n+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := Report{Capacity: Capacity{Memory: 1 << 30, HugePages: hugePages(tree(root))}}
	st := NodeStatus(r, Limits{}, Software{})
	for name, want := range map[corev1.ResourceName]string{"hugepages-2Mi": "16Mi", "hugepages-1Gi": "0",
		"hugepages-64Ki": "0"} {
		for _, list := range []corev1.ResourceList{st.Capacity, st.Allocatable} {
			if q, ok := list[name]; !ok || q.String() != want {
				t.Errorf("%s is %s, want %s", name, q.String(), want)
			}
		}
	}
	if q := st.Allocatable[corev1.ResourceMemory]; q.String() != "1008Mi" || len(st.Capacity) != 7 {
		t.Errorf("with 1Gi of memory %s is allocatable, want 1008Mi; the capacity is %v", q.String(), st.Capacity)
	}
}
