package hardware

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// An Amount is a capacity and its available part.
type Amount struct {
	Available, Capacity int64
	Problem             string // why it could not be measured; empty: measured
}

// Stats are the measured amounts that have thresholds. Memory, NodeFs and ImageFs are in bytes. The
// capacity of inodes is 0 if their number is not fixed.
type Stats struct {
	Memory                 Amount
	NodeFs, NodeFsInodes   Amount // file system of Options.StateDir
	ImageFs, ImageFsInodes Amount // file system of Options.EngineRoot
	PIDs                   Amount
	// Temperature of the processor in thousandths of a degree Celsius; Capacity 0: unknown.
	Temperature Amount
	Busy        time.Duration // busy time of all processors since the boot; 0: unknown

	Addresses []corev1.NodeAddress // the node's addresses as in a Report; nil: not read
}

// Measure reads the amounts. It starts no process and opens a few files, so it can run every few
// seconds.
func Measure(ctx context.Context, o Options) Stats {
	t := treeOf(o)
	var s Stats
	if m, err := memory(ctx, t); err != nil {
		s.Memory.Problem = err.Error()
	} else {
		s.Memory = Amount{Available: m.available, Capacity: m.capacity}
	}
	s.NodeFs, s.NodeFsInodes = disk(t, stateDir(o))
	s.ImageFs, s.ImageFsInodes = disk(t, imageDir(o))
	pids, err := processes(t)
	if err != nil {
		pids.Problem = err.Error()
	}
	s.PIDs = pids
	s.Temperature = processorTemperature(t)
	s.Busy = busy(t.text("/proc/stat"))
	s.Addresses, _ = addresses(t, o, hostname(t)) // the Report lists the problems
	return s
}

// busy returns the time that all processors have spent outside idle and iowait. stat is /proc/stat,
// whose first line counts in 1/100 s. user and nice include the time of guests; stolen time does
// not count.
func busy(stat string) time.Duration {
	line, _, _ := strings.Cut(stat, "\n")
	f := strings.Fields(line) // cpu user nice system idle iowait irq softirq steal guest guest_nice
	if len(f) < 5 || f[0] != "cpu" {
		return 0
	}
	var ticks int64
	for i, n := range f[1:min(len(f), 8)] {
		if i != 3 && i != 4 {
			v, _ := strconv.ParseInt(n, 10, 64)
			ticks += v
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func disk(t tree, dir string) (bytes, inodes Amount) {
	fs, err := fileSystem(t, dir)
	if err != nil {
		failed := Amount{Problem: err.Error()}
		return failed, failed
	}
	return fs.bytes, fs.inodes
}

// processes counts threads, as the kernel's limit does. In a container with its own limit it
// returns that limit.
func processes(t tree) (Amount, error) {
	limit, err := t.number("/proc/sys/kernel/pid_max")
	if err != nil {
		return Amount{}, fmt.Errorf("count the process ids: %w", err)
	}
	if threads, err := t.number("/proc/sys/kernel/threads-max"); err == nil {
		limit = min(limit, threads)
	}
	f := strings.Fields(t.text("/proc/loadavg")) // load load load running/all last
	if len(f) < 4 {
		return Amount{}, fmt.Errorf("count the process ids: %s has no fourth field", t.path("/proc/loadavg"))
	}
	_, all, _ := strings.Cut(f[3], "/")
	used, err := strconv.ParseInt(all, 10, 64)
	if err != nil {
		return Amount{}, fmt.Errorf("count the process ids: %s has %q", t.path("/proc/loadavg"), f[3])
	}
	a := Amount{Available: max(0, limit-used), Capacity: limit}
	for _, dir := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/pids/"} {
		own, err := t.number(dir + "pids.max") // "max" is not a number: no limit
		current, err2 := t.number(dir + "pids.current")
		if err == nil && err2 == nil && own < a.Capacity {
			a = Amount{Available: max(0, min(a.Available, own-current)), Capacity: own}
		}
	}
	return a, nil
}
