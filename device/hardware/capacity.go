package hardware

import (
	"context"
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/mem"
)

const (
	defaultMaxPods = 110 // the kubelet's
	leastMaxPods   = 8

	// What a container needs beside its program is the engine's process that watches it (6 MiB with
	// Docker, 2 MiB with Podman), and what runs without any is the system, the engine (some 90 MiB)
	// and the agent.
	memoryPerPod   = 16 << 20
	memoryOfNoPods = 128 << 20
)

// podsOf is how many pods a device takes: the kubelet's number, or as many as have room in a small
// memory. Best-effort pods ask for nothing, so nothing else keeps 110 of them off a board with 430
// MB.
func podsOf(memory int64) int64 {
	if memory <= 0 { // not known, which is a problem of its own
		return defaultMaxPods
	}
	return min(max((memory-memoryOfNoPods)/memoryPerPod, leastMaxPods), defaultMaxPods)
}

// capacity is what the device has in all. What cannot be read stays 0 and is a
// problem.
func capacity(ctx context.Context, t tree, o Options) (c Capacity, problems []string) {
	cpus, err := cpu.CountsWithContext(t.gopsutil(ctx), true)
	if err != nil {
		problems = append(problems, "count the processors: "+err.Error())
	}
	c.CPUs = int64(cpus)
	m, err := memory(ctx, t)
	if err != nil {
		problems = append(problems, err.Error())
	}
	c.Memory = m.capacity
	if c.Pods = o.MaxPods; c.Pods == 0 {
		c.Pods = podsOf(c.Memory)
	}
	// Not mem.SwapMemory: that asks the kernel and cannot be told another root.
	if vm, err := mem.VirtualMemoryWithContext(t.gopsutil(ctx)); err == nil {
		c.Swap = int64(vm.SwapTotal)
	}
	c.HugePages = hugePages(t)
	fs, err := fileSystem(t, imageDir(o))
	if err != nil {
		problems = append(problems, err.Error())
	}
	c.Ephemeral = fs.bytes.Capacity
	return c, problems
}

// hugePages are the bytes that the kernel has set aside for pages of each size that it offers.
func hugePages(t tree) map[int64]int64 {
	var sizes map[int64]int64
	for _, dir := range t.glob("/sys/kernel/mm/hugepages/hugepages-*kB") {
		kib := strings.TrimSuffix(strings.TrimPrefix(path.Base(dir), "hugepages-"), "kB")
		size, err := strconv.ParseInt(kib, 10, 32)
		if err != nil || size <= 0 {
			continue
		}
		if sizes == nil {
			sizes = map[int64]int64{}
		}
		size <<= 10
		sizes[size] = times(uint64(max(t.integer(path.Join(dir, "nr_hugepages")), 0)), size)
	}
	return sizes
}

func stateDir(o Options) string {
	if o.StateDir == "" {
		return "/"
	}
	return o.StateDir
}

func imageDir(o Options) string {
	if o.EngineRoot == "" {
		return stateDir(o)
	}
	return o.EngineRoot
}

type memoryUse struct{ capacity, available int64 } // bytes

// memory is the kernel's own estimate of what can still be had without swapping
// (MemAvailable). Inside a container with a memory limit the limit counts, less
// the working set: usage without the file cache that can be dropped. The files
// looked at exist with a limit only where this is not the machine's own root
// group, so the limit of a mere service is not taken for the machine's.
func memory(ctx context.Context, t tree) (memoryUse, error) {
	vm, err := mem.VirtualMemoryWithContext(t.gopsutil(ctx))
	if err != nil {
		return memoryUse{}, fmt.Errorf("read the memory: %w", err)
	}
	if vm.Total == 0 {
		return memoryUse{}, fmt.Errorf("read the memory: %s has no MemTotal", t.path("/proc/meminfo"))
	}
	use := memoryUse{int64(vm.Total), int64(vm.Available)}
	for _, g := range []struct{ limit, usage, stat, cache string }{
		{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
			"/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"},
	} {
		limit, err := t.number(g.limit) // "max" is no number: no limit
		if err != nil || limit <= 0 || limit >= use.capacity {
			continue
		}
		usage, err := t.number(g.usage)
		if err != nil {
			return memoryUse{}, fmt.Errorf("read the memory: %w", err)
		}
		working := max(0, usage-statLine(t, g.stat, g.cache))
		use = memoryUse{limit, max(0, min(use.available, limit-working))}
	}
	return use, nil
}

// A fileSystemUse is the space and the inodes of a file system. One that has no
// fixed number of inodes has a capacity of 0 of them.
type fileSystemUse struct{ bytes, inodes Amount }

// fileSystem counts as available what a process without privilege may still
// write.
func fileSystem(t tree, dir string) (fileSystemUse, error) {
	st, err := t.statfs(dir)
	if err != nil {
		return fileSystemUse{}, err
	}
	block := int64(st.Frsize)
	if block == 0 {
		block = int64(st.Bsize)
	}
	return fileSystemUse{
		bytes:  Amount{Capacity: times(st.Blocks, block), Available: times(st.Bavail, block)},
		inodes: Amount{Capacity: times(st.Files, 1), Available: times(st.Ffree, 1)},
	}, nil
}

// times does not overflow: some network file systems claim 2^64 blocks.
func times(n uint64, unit int64) int64 {
	if unit <= 0 || n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64
	}
	return int64(n) * unit
}
