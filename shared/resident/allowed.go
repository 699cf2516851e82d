package resident

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Allowed returns the number of bytes of memory that this process may use: the lowest limit of its
// control groups (v2 and v1), or the machine's memory; 0 if unknown. root is the machine's "/".
func Allowed(root fs.FS) int64 {
	least := int64(0)
	consider := func(file string, unit int64, field func(string) string) {
		text, err := fs.ReadFile(root, file)
		if err != nil {
			return
		}
		// In v2 "max" means no limit. In v1 that is a number larger than any memory.
		if n, err := strconv.ParseInt(field(string(text)), 10, 64); err == nil && n > 0 && n < 1<<50/unit &&
			(least == 0 || n*unit < least) {
			least = n * unit
		}
	}
	consider("proc/meminfo", 1<<10, func(text string) string {
		_, rest, _ := strings.Cut(text, "MemTotal:")
		return first(rest)
	})
	groups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(groups)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		mount, file := "", ""
		switch {
		case id == "0" && controllers == "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case strings.Contains(","+controllers+",", ",memory,"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		// A limit of a group applies to all groups in it. In a container the path may be the
		// host's, while the mount begins at the container's group. Then the last path of this loop
		// is the container's group.
		for at := path.Clean("/" + group); ; at = path.Dir(at) {
			consider(path.Join(mount, at, file), 1, first)
			if at == "/" {
				break
			}
		}
	}
	return least
}

// first returns the first word.
func first(text string) string {
	if words := strings.Fields(text); len(words) > 0 {
		return words[0]
	}
	return ""
}
