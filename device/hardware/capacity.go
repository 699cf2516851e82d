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
	defaultMaxPods = 110 // the kubelet's default
	leastMaxPods   = 8

	// Each container needs memory for the engine's monitor process: 6 MiB with Docker, 2 MiB with
	// Podman. The system, the engine (about 90 MiB) and the agent need memory too.
	memoryPerPod   = 16 << 20
	memoryOfNoPods = 128 << 20
)

// podsOf returns how many pods a device runs: the kubelet's default, or fewer on a device with
// little memory. Best-effort pods request nothing, so only this limit keeps 110 of them off a board
// with 430 MB.
func podsOf(memory int64) int64 {
	if memory <= 0 { // the memory is unknown, which the report lists as a problem
		return defaultMaxPods
	}
	return min(max((memory-memoryOfNoPods)/memoryPerPod, leastMaxPods), defaultMaxPods)
}

// capacity returns the device's total resources. A value that cannot be read is 0, and the report
// lists it as a problem.
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
	// mem.SwapMemory is not used, because it asks the kernel and ignores the root directory.
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

// hugePages returns the bytes that the kernel reserves for each page size.
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

// memory returns the kernel's estimate of memory available without swapping (MemAvailable). In a
// container with a memory limit it returns the limit minus the working set (usage without droppable
// file cache). The limit of a service's control group does not count: the files read here show only
// a container's limit.
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
		limit, err := t.number(g.limit) // "max" is not a number: no limit
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

// A fileSystemUse is the space and inodes of a file system. The inode capacity is 0 if the number
// is not fixed.
type fileSystemUse struct{ bytes, inodes Amount }

// fileSystem measures a file system; only space for unprivileged processes counts as available.
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

// times multiplies without overflow, because some network file systems report 2^64 blocks.
func times(n uint64, unit int64) int64 {
	if unit <= 0 || n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64
	}
	return int64(n) * unit
}
