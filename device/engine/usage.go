package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// Usage returns zero for a container that does not run. Memory is the working set as Kubernetes
// defines it: usage without the file pages that the kernel can drop at once. Usage reads the
// control group where possible, since older Docker versions take a second to answer.
func (a *api) Usage(ctx context.Context, id string) (Usage, error) {
	found, err := a.look(ctx, id)
	if err != nil {
		return Usage{}, explain(err, "measure container", id)
	}
	if found.Container.State == nil || !found.Container.State.Running {
		return Usage{}, nil
	}
	if u, ok := groupUsage("/proc", "/sys/fs/cgroup", found.Container.State.Pid, found.Container.ID); ok {
		return u, nil
	}
	result, err := a.client().ContainerStats(ctx, id, client.ContainerStatsOptions{})
	if err != nil {
		return Usage{}, explain(err, "measure container", id)
	}
	defer result.Body.Close()
	var stats container.StatsResponse
	if err := json.NewDecoder(result.Body).Decode(&stats); err != nil {
		return Usage{}, explain(err, "measure container", id)
	}
	return Usage{CPUNanos: stats.CPUStats.CPUUsage.TotalUsage,
		MemoryBytes: less(stats.MemoryStats.Usage, inactiveFile(stats.MemoryStats.Stats))}, nil
}

// Written asks the engine for the size of the root. It measures the log, the engine's own writable
// mounts and the image's anonymous volumes itself, as far as it can read them.
func (a *api) Written(ctx context.Context, id string) (int64, error) {
	found, err := a.look(ctx, id, client.ContainerInspectOptions{Size: true})
	if err != nil {
		return 0, explain(err, "measure container", id)
	}
	var sum int64
	if found.Container.SizeRw != nil {
		sum = max(*found.Container.SizeRw, 0)
	}
	if log := found.Container.LogPath; log != "" {
		beside := os.DirFS(filepath.Dir(log))
		files, _ := fs.Glob(beside, filepath.Base(log)+"*") // the log and its rotated files
		for _, file := range files {
			if info, err := fs.Stat(beside, file); err == nil && info.Mode().IsRegular() {
				sum += info.Size()
			}
		}
	}
	beside, err := sizesOf(ctx, mounted(found.Container))
	if err != nil {
		return 0, err
	}
	return sum + beside.Bytes, nil
}

// Files counts a container's files if the engine reports their directory, as it does with overlay.
func (a *api) Files(ctx context.Context, id string) (int64, error) {
	found, err := a.look(ctx, id)
	if err != nil {
		return 0, explain(err, "count the files of container", id)
	}
	paths := mounted(found.Container)
	if d := found.Container.GraphDriver; d != nil {
		paths = append(paths, d.Data["UpperDir"])
	}
	all, err := sizesOf(ctx, paths)
	return int64(math.Ceil(all.Inodes)), err
}

// mounted returns the files and directories that the engine itself has mounted into a container.
func mounted(c container.InspectResponse) []string {
	paths := []string{c.HostsPath, c.HostnamePath, c.ResolvConfPath}
	for _, m := range c.Mounts {
		if m.Type == mount.TypeVolume {
			paths = append(paths, m.Source)
		}
	}
	return paths
}

// sizesOf returns the total size of all paths, or ErrDeep.
func sizesOf(ctx context.Context, paths []string) (sum Extent, err error) {
	for _, path := range paths {
		if path == "" {
			continue
		}
		e, err := SizeOf(ctx, path)
		if errors.Is(err, ErrDeep) {
			return Extent{}, err
		}
		sum.add(e)
	}
	return sum, nil
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// inactiveFile returns the file pages that the kernel can drop. cgroup v1 has the sum over child
// groups as total_inactive_file, v2 as inactive_file; Podman does not report these pages.
func inactiveFile(stats map[string]uint64) uint64 {
	if v, ok := stats["total_inactive_file"]; ok {
		return v
	}
	return stats["inactive_file"]
}

// groupUsage reads the usage of the control group of a container's process. On a kernel that does
// not count memory by group, MemoryBytes is 0, as in the engine's own answer.
func groupUsage(proc, cgroup string, pid int, containerID string) (u Usage, ok bool) {
	if pid <= 1 {
		return Usage{}, false
	}
	groups, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return Usage{}, false
	}
	for line := range strings.Lines(string(groups)) { // 4:memory:/libpod_parent/libpod-… or 0::/machine.slice/…
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || !strings.Contains(parts[2], containerID) {
			continue
		}
		dir := filepath.Join(cgroup, parts[1], parts[2])
		for controller := range strings.SplitSeq(parts[1], ",") {
			switch controller {
			case "cpuacct":
				u.CPUNanos, ok = readNumber(filepath.Join(dir, "cpuacct.usage"))
			case "memory":
				used, _ := readNumber(filepath.Join(dir, "memory.usage_in_bytes"))
				u.MemoryBytes = less(used, inactiveFile(readStat(filepath.Join(dir, "memory.stat"))))
			case "":
				if micros, here := readStat(filepath.Join(dir, "cpu.stat"))["usage_usec"]; here {
					used, _ := readNumber(filepath.Join(dir, "memory.current"))
					u = Usage{micros * 1000, less(used, inactiveFile(readStat(filepath.Join(dir, "memory.stat"))))}
					ok = true
				}
			}
		}
	}
	return u, ok
}

func readNumber(name string) (uint64, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return v, err == nil
}

func readStat(name string) map[string]uint64 {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	stats := map[string]uint64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var key string
		var value uint64
		if n, _ := fmt.Sscan(lines.Text(), &key, &value); n == 2 {
			stats[key] = value
		}
	}
	return stats
}
