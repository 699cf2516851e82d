package engine

import (
	"errors"
	"regexp"
	"sync"

	"golang.org/x/sys/unix"
)

// Engines learn of an out-of-memory kill by watching the container's cgroup, which often disappears
// before the event arrives: Podman's monitor never gets the event on cgroup v1, and Docker's
// containerd sometimes reports the exit first. The kernel's log names the cgroup of every process
// that it kills, and so the container.

// oomKills remembers which ended containers the kernel has killed, because the kernel's log is a
// ring buffer.
type oomKills struct {
	sync.Mutex
	byID map[string]bool
}

// settle sets OOMKilled on failed containers that the kernel has killed.
func (k *oomKills) settle(all []Container, kernelLog func() string) {
	k.Lock()
	defer k.Unlock()
	known := make(map[string]bool, len(all))
	var named map[string]bool
	for i := range all {
		c := &all[i]
		if c.State != Exited || c.ExitCode == 0 || c.OOMKilled {
			continue
		}
		is, has := k.byID[c.ID]
		if !has {
			if named == nil {
				named = outOfMemory(kernelLog())
			}
			is = named[c.ID]
		}
		known[c.ID], c.OOMKilled = is, is
	}
	k.byID = known
}

// oomKillLine matches the line about a killed process, for the limit of a cgroup or of the whole
// device:
//
//	oom-kill:constraint=CONSTRAINT_MEMCG,…,task_memcg=/machine.slice/libpod-<id>.scope/container,task=tool,pid=6959,uid=0
var oomKillLine = regexp.MustCompile(`oom-kill:[^\n]*task_memcg=[^,\n]*([0-9a-f]{64})`)

// outOfMemory returns the ids of the containers that a kernel log reports as killed.
func outOfMemory(log string) map[string]bool {
	out := map[string]bool{}
	for _, m := range oomKillLine.FindAllStringSubmatch(log, -1) {
		out[m[1]] = true
	}
	return out
}

// kernelLog returns the kernel's log; "" without permission, which is CAP_SYSLOG on most devices.
func kernelLog() string {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var text []byte
	record := make([]byte, 8<<10)
	for {
		n, err := unix.Read(fd, record)
		switch {
		// lines were overwritten during the read: continue with the oldest
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
		case err != nil || n <= 0: // EAGAIN: end of the log
			return string(text)
		default:
			text = append(append(text, record[:n]...), '\n')
		}
	}
}
