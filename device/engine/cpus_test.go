package engine_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"flotilla.dev/device/engine"
)

func TestARunningContainerMovesToOtherProcessors(t *testing.T) {
	eachEngine(t, func(t *testing.T, socket string) {
		e := open(t, socket)
		info, err := e.Info(t.Context())
		must(t, err)
		if !info.CPUSet {
			t.Skip("the kernel has no cpuset for containers")
		}
		id := begin(t, e, engine.Spec{CPUs: "0"}, "wait")
		on := func() string {
			var c struct{ State struct{ Pid int } }
			ask(t, socket, "/containers/"+id+"/json", &c)
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.State.Pid))
			must(t, err)
			_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:\t")
			cpus, _, _ := strings.Cut(rest, "\n")
			return cpus
		}
		if cpus := on(); cpus != "0" {
			t.Errorf("a container created for processor 0 is on %s", cpus)
		}
		must(t, e.Update(t.Context(), id, engine.Spec{CPUs: "0-1", CPUShares: 100}))
		if cpus := on(); cpus != "0-1" {
			t.Errorf("a container moved to processors 0-1 is on %s", cpus)
		}
	})
}
