package engine

import (
	"slices"
	"strings"
	"testing"
)

func TestOOMKillsAreReadFromTheKernelsLog(t *testing.T) {
	id := func(c string) string { return strings.Repeat(c, 64) }
	log := "4,1,2,-;tool invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n" +
		"6,2,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=libpod-" + id("a") +
		",mems_allowed=0,oom_memcg=/libpod_parent/libpod-" + id("a") +
		",task_memcg=/libpod_parent/libpod-" + id("a") + ",task=tool,pid=6959,uid=0\n" +
		"6,3,3,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/machine.slice/libpod-" + id("b") + ".scope/container,task=x,pid=1,uid=0\n" +
		"6,4,4,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/libpod-" +
		id("c") + ",task_memcg=/other,task=x,pid=1,uid=0\n" +
		"6,5,5,-;something of libpod-" + id("d") + "\n"
	reads := 0
	read := func() string { reads++; return log }
	all := func() []Container {
		return []Container{
			{ID: id("a"), State: Exited, ExitCode: 137}, {ID: id("b"), State: Exited, ExitCode: 1}, {ID: id("c"), State: Exited, ExitCode: 137},
			{ID: id("d"), State: Exited, ExitCode: 137}, {ID: id("e"), State: Exited}, {ID: id("f"), State: Running},
		}
	}
	var k oomKills
	for range 3 { // after the first round the log has lost its lines
		list := all()
		k.settle(list, read)
		var got []string
		for _, c := range list {
			if c.OOMKilled {
				got = append(got, c.ID[:1])
			}
		}
		if !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("containers with OOMKilled: %q, want a and b", got)
		}
		log = ""
	}
	if reads != 1 {
		t.Errorf("the log was read %d times, want once", reads)
	}
	k.settle(nil, read)
	if len(k.byID) > 0 {
		t.Errorf("%d removed containers are remembered", len(k.byID))
	}
}
