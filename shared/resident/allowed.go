package resident

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Allowed is how much memory this process may have, in bytes, as its machine says at root
// ("/" of the machine): the least that a control group that it is in allows (v2 and v1),
// or what the machine has. 0: nobody says.
func Allowed(root fs.FS) int64 {
	least := int64(0)
	consider := func(file string, unit int64, field func(string) string) {
		text, err := fs.ReadFile(root, file)
		if err != nil {
			return
		}
		// "max" is v2's word for no limit; v1's is a number that no machine has.
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
		// A limit of a group holds for all groups in it. Inside a container the path may be
		// the host's, while the mount begins at the container's own group: that is the last.
		for at := path.Clean("/" + group); ; at = path.Dir(at) {
			consider(path.Join(mount, at, file), 1, first)
			if at == "/" {
				break
			}
		}
	}
	return least
}

// first is the first word.
func first(text string) string {
	if words := strings.Fields(text); len(words) > 0 {
		return words[0]
	}
	return ""
}
