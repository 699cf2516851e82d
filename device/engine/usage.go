package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// Usage of a container that does not run is zero. Memory is the working set, as Kubernetes defines it: what is used,
// less the file pages that the kernel can drop at once.
func (a *api) Usage(ctx context.Context, id string) (Usage, error) {
	found, err := a.client().ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return Usage{}, explain(err, "measure container", id)
	}
	if found.Container.State == nil || !found.Container.State.Running {
		return Usage{}, nil
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
	inactive, ok := inactiveFile(stats.MemoryStats.Stats)
	if !ok { // Podman does not tell
		inactive = inactiveOf("/proc", "/sys/fs/cgroup", found.Container.State.Pid, found.Container.ID)
	}
	return Usage{CPUNanos: stats.CPUStats.CPUUsage.TotalUsage, MemoryBytes: less(stats.MemoryStats.Usage, inactive)}, nil
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// inactiveFile: cgroup v1 sums over its children under total_…, v2 under the plain name.
func inactiveFile(stats map[string]uint64) (uint64, bool) {
	if v, ok := stats["total_inactive_file"]; ok {
		return v, true
	}
	v, ok := stats["inactive_file"]
	return v, ok
}

// inactiveOf reads the same from the control group of a container's process, 0 where it cannot.
func inactiveOf(proc, cgroup string, pid int, containerID string) uint64 {
	if pid <= 1 {
		return 0
	}
	groups, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(groups)) { // 4:memory:/libpod_parent/libpod-… or 0::/machine.slice/…
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || !strings.Contains(parts[2], containerID) {
			continue
		}
		dir := filepath.Join(cgroup, parts[2])
		if parts[1] == "memory" {
			dir = filepath.Join(cgroup, "memory", parts[2])
		} else if parts[1] != "" {
			continue
		}
		if v, ok := inactiveFile(readStat(filepath.Join(dir, "memory.stat"))); ok {
			return v
		}
	}
	return 0
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
