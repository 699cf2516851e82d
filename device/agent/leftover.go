package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/podspec"
	"flotilla.dev/device/volume"
	"flotilla.dev/shared/fleet"
	"flotilla.dev/shared/wire"
)

// removeFailed records that the engine did not remove a container, and reports whether the
// container is stopped and is now a leftover. From the second failure on, the node gets an event,
// because the hub may have dropped the pod.
func (a *Agent) removeFailed(s plan.Step, err error, now time.Time) bool {
	o := &a.loop.o
	if i := slices.IndexFunc(o.Leftovers, func(l plan.Leftover) bool { return l.ID == s.ID }); i >= 0 {
		l := &o.Leftovers[i]
		l.Wait = min(2*l.Wait, fleet.MaxBackOff)
		l.RetryAt = now.Add(l.Wait)
		a.event(corev1.EventTypeWarning, "FailedRemoveContainer", nil, "",
			"container %s of pod %s/%s has stopped, but the engine does not remove it: %v; the pod ends without it, and "+
				"the removal is tried again",
			s.ID, l.Labels[plan.LabelNamespace], l.Labels[plan.LabelPodName], err)
		return true
	}
	i := slices.IndexFunc(o.Containers, func(in plan.Instance) bool { return in.ID == s.ID && plan.HasStopped(in) })
	if i < 0 {
		return false
	}
	o.Leftovers = append(o.Leftovers, plan.Leftover{Instance: o.Containers[i], Pod: s.Pod,
		RetryAt: now.Add(plan.LeftoverWait), Wait: plan.LeftoverWait})
	o.Containers = slices.Delete(slices.Clone(o.Containers), i, i+1)
	return true
}

// cleanFailed records whether some files of a pod could not be removed, for example because of a
// mount. Like a stopped container that remains, these files do not keep the pod from ending.
func (a *Agent) cleanFailed(s plan.Step, r *plan.Record, err error, now time.Time) {
	if err == nil {
		r.LeftFiles = nil
		return
	}
	l := plan.Leftover{Pod: s.Pod, Wait: plan.LeftoverWait}
	if r.LeftFiles != nil {
		l.Wait = min(2*r.LeftFiles.Wait, fleet.MaxBackOff)
		of := string(s.Place.Pod)
		if s.Pod != nil {
			of = s.Pod.Namespace + "/" + s.Pod.Name + " (" + of + ")"
		}
		a.event(corev1.EventTypeWarning, "FailedRemoveVolumes", nil, "",
			"files of pod %s are left on the device: %v; the pod ends without them, and the removal is tried again", of, err)
	}
	l.RetryAt = now.Add(l.Wait)
	r.LeftFiles = &l
}

// Engines keep a command (exec) running after its client was killed. So the agent notes each
// command of the hub before it begins, and a restarted agent ends the commands that still have a
// note. Commands of other clients have no note. A boot ends all commands and removes the notes.

func (d *notebook) execs() string { return filepath.Join(d.Memory, "execs") }

// noteExec records that a command begins; forgetExec records that it has ended.
func (a *Agent) noteExec(exec string) {
	err := os.MkdirAll(a.disk.execs(), 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(a.disk.execs(), filepath.Base(exec)), nil, 0o600)
	}
	if err != nil {
		a.log.Warn("write the note of a command; if the agent is killed now, the command stays in its container", "err", err)
	}
}

func (a *Agent) forgetExec(exec string) {
	if err := os.Remove(filepath.Join(a.disk.execs(), filepath.Base(exec))); err != nil && !os.IsNotExist(err) {
		a.log.Warn("remove the note of a command that has ended", "err", err)
	}
}

// leftover lists the commands of an earlier agent.
func (d *notebook) leftover() (execs []string) {
	entries, _ := os.ReadDir(d.execs()) // the directory is often missing
	for _, e := range entries {
		execs = append(execs, e.Name())
	}
	return execs
}

func (a *Agent) endExecs(ctx context.Context, e engine.Engine, execs []string) {
	for _, exec := range execs {
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		err := e.EndExec(ctx, exec)
		cancel()
		if err != nil {
			a.log.Warn("end a command of an earlier agent; the next start tries again", "err", err)
			continue
		}
		a.forgetExec(exec)
	}
}

// dropVolumes removes the volumes that the hub wants removed, once every undesired pod has stopped.
// A force-deleted pod may still use one of them.
func (a *Agent) dropVolumes(now time.Time) {
	l := &a.loop
	if l.dropping || now.Before(l.dropAt) {
		return
	}
	var gone []wire.Volume
	for _, v := range l.desired.Volumes {
		if v.Remove && podspec.IsUID(v.UID) {
			if _, err := os.Lstat(filepath.Join(a.disk.Root, volume.PersistentDir, string(v.UID))); err == nil {
				gone = append(gone, v)
			}
		}
	}
	if len(gone) == 0 {
		return
	}
	for uid, r := range l.o.Pods {
		if !r.Cleaned && !slices.ContainsFunc(l.desired.Pods, func(p corev1.Pod) bool { return p.UID == uid }) {
			return
		}
	}
	l.dropping = true
	a.async(time.Hour, func(context.Context) func() {
		var errs []error
		for _, v := range gone {
			err := a.disk.RemovePersistent(v)
			if err == nil {
				a.log.Info("removed the data of a persistent volume on the hub's request", "volume", v.UID)
			}
			errs = append(errs, err)
		}
		return func() {
			l.dropping = false
			err := errors.Join(errs...)
			if a.trouble("remove the data of persistent volumes; it is tried again each minute", err); err != nil {
				l.dropAt = time.Now().Add(time.Minute)
			}
		}
	})
}
