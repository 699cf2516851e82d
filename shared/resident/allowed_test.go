package resident

import (
	"os"
	"testing"
	"testing/fstest"
)

func TestAllowed(t *testing.T) {
	const meminfo, v2, v1 = "MemTotal:        8000000 kB\nMemFree:          1000 kB\n",
		"0::/system.slice/hub.service\n", "9:name=systemd:/\n5:cpu,memory:/docker/abc\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"unknown memory":                     {nil, 0},
		"the machine's memory":               {map[string]string{"proc/meminfo": meminfo}, 8000000 << 10},
		"v2 without a limit":                 {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": v2, "sys/fs/cgroup/system.slice/hub.service/memory.max": "max\n"}, 8000000 << 10},
		"v2, limit of the process's group":   {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": v2, "sys/fs/cgroup/system.slice/hub.service/memory.max": "536870912\n"}, 512 << 20},
		"v2, limit of the parent slice":      {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": v2, "sys/fs/cgroup/system.slice/hub.service/memory.max": "536870912\n", "sys/fs/cgroup/system.slice/memory.max": "268435456"}, 256 << 20},
		"v2, limit in a container":           {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "134217728\n"}, 128 << 20},
		"v1, limit of the process's group":   {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": v1, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "134217728\n"}, 128 << 20},
		"v1, limit in a container":           {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": v1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "134217728\n"}, 128 << 20},
		"v1 without a limit":                 {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": v1, "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8000000 << 10},
		"a limit above the machine's memory": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1099511627776\n"}, 8000000 << 10},
		"empty files":                        {map[string]string{"proc/meminfo": "", "proc/self/cgroup": "0\nx:y\n\n", "sys/fs/cgroup/memory.max": ""}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{}
			for file, text := range c.files {
				root[file] = &fstest.MapFile{Data: []byte(text)}
			}
			if got := Allowed(root); got != c.want {
				t.Errorf("Allowed is %d bytes, want %d", got, c.want)
			}
		})
	}
	if got := Allowed(os.DirFS("/")); got < 16<<20 {
		t.Errorf("Allowed of this machine is %d bytes", got)
	}
}
