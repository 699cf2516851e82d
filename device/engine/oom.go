package engine

import (
	"errors"
	"regexp"
	"sync"

	"golang.org/x/sys/unix"
)

// Engines learn that a container was killed for want of memory from somebody who listens to the
// container's cgroup. That goes with the container, often before he has heard: Podman's monitor
// never hears on cgroup v1, Docker's containerd tells the end before the reason now and then. The
// kernel's log names the cgroup, and so the container, of everybody whom it has killed.

// killed remembers of the containers that have ended whether the kernel has killed them: its log is
// a ring.
type killed struct {
	sync.Mutex
	byID map[string]bool
}

// settle sets OOMKilled of those that have failed and that the kernel has killed.
func (k *killed) settle(all []Container, kernelLog func() string) {
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

// victim is how the kernel's log names whom it has killed, of the limit of a cgroup or of the whole
// device:
// oom-kill:constraint=CONSTRAINT_MEMCG,…,task_memcg=/machine.slice/libpod-<id>.scope/container,task=tool,pid=6959,uid=0
var victim = regexp.MustCompile(`oom-kill:[^\n]*task_memcg=[^,\n]*([0-9a-f]{64})`)

// outOfMemory is the set of the containers that a kernel's log names.
func outOfMemory(log string) map[string]bool {
	out := map[string]bool{}
	for _, m := range victim.FindAllStringSubmatch(log, -1) {
		out[m[1]] = true
	}
	return out
}

// kernelLog is what the kernel still has of its log; nothing where it may not be read, which takes
// CAP_SYSLOG on most devices.
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
		// overwritten while we read: go on with the oldest there is
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
		case err != nil || n <= 0: // EAGAIN: that was all
			return string(text)
		default:
			text = append(append(text, record[:n]...), '\n')
		}
	}
}
