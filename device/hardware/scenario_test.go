package hardware

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestScenarioSetters(t *testing.T) {
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse(cpu),
			corev1.ResourceMemory: resource.MustParse(memory),
		}
	}
	whole := Report{Capacity: Capacity{CPUs: 4, Memory: 1 << 30, Ephemeral: 10 << 30, Pods: 110}}
	for _, tt := range []struct {
		name        string
		report      Report
		limits      Limits
		cpu, memory string
	}{
		{"S11.setters.2 allocatable is the capacity minus reservations and threshold", whole, Limits{System: list("200m", "160Mi"), Agent: list("100m", "48Mi"), Hard: DefaultThresholds()}, "3700m", "716Mi"},
		{"S11.setters.3 reservations above the capacity leave 0", whole, Limits{System: list("5", "2Gi")}, "0", "0"},
		{"S11.extended.2 an unknown capacity is 0", Report{Capacity: Capacity{CPUs: 4}}, Limits{}, "4", "0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := NodeStatus(tt.report, tt.limits, Software{}).Allocatable
			if a.Cpu().String() != tt.cpu || a.Memory().String() != tt.memory {
				t.Errorf("allocatable cpu %s, memory %s; want %s, %s", a.Cpu(), a.Memory(), tt.cpu, tt.memory)
			}
		})
	}
}

func TestScenarioPressure(t *testing.T) {
	begin := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	short := func(change func(*Stats)) Stats {
		s := plenty()
		change(&s)
		return s
	}
	for i, tt := range []struct {
		name  string
		short Stats
	}{
		{"S11.setters.10 memory: a transition sets the time, the same status keeps it, and pressure lasts five minutes", short(func(s *Stats) { s.Memory.Available = 1 })},
		{"S11.setters.10 disk: the same rules", short(func(s *Stats) { s.ImageFs.Available = 14 << 30 })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var held Held
			for _, step := range []struct {
				after, changed time.Duration
				stats          Stats
				status         corev1.ConditionStatus
			}{
				{0, 0, plenty(), corev1.ConditionFalse},
				{time.Minute, 0, plenty(), corev1.ConditionFalse},
				{2 * time.Minute, 2 * time.Minute, tt.short, corev1.ConditionTrue},
				{3 * time.Minute, 2 * time.Minute, tt.short, corev1.ConditionTrue},
				{8*time.Minute - 1, 2 * time.Minute, plenty(), corev1.ConditionTrue},
				{8 * time.Minute, 8 * time.Minute, plenty(), corev1.ConditionFalse},
			} {
				var cs []corev1.NodeCondition
				cs, held = Pressure(step.stats, Limits{Hard: DefaultThresholds()}, held, begin.Add(step.after))
				if c := cs[i]; c.Status != step.status || !c.LastTransitionTime.Time.Equal(begin.Add(step.changed)) {
					t.Errorf("after %s: %s=%s since %s", step.after, c.Type, c.Status, c.LastTransitionTime.Sub(begin))
				}
			}
		})
	}
}
