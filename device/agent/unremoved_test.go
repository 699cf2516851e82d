package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
	"flotilla.dev/device/volume"
)

// refusingEngine is an engine that does not remove some containers.
type refusingEngine struct {
	engine.Engine
	refuses func(id string) bool
}

func (r refusingEngine) Remove(ctx context.Context, id string) error {
	if r.refuses(id) {
		return errors.New("remove container " + id + ": removal of container is already in progress (409)")
	}
	return r.Engine.Remove(ctx, id)
}

// nodeEvents counts the node's events with a reason. The hub would not show events of a dropped
// pod.
func (d *device) nodeEvents(reason string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.events {
		if e.Reason == reason && e.Pod == "" {
			n++
		}
	}
	return n
}

// A stopped container that the engine does not remove does not keep its pod from ending. It is
// removed later.
func TestAPodEndsIfTheEngineDoesNotRemoveItsContainer(t *testing.T) {
	for name, c := range map[string]struct {
		sandbox, others bool
		dropped         bool // the hub drops the pod while the container remains
		restart         bool
	}{
		"a container stays":                                             {others: true},
		"the sandbox stays":                                             {sandbox: true},
		"container and sandbox stay":                                    {others: true, sandbox: true},
		"both stay, and the hub drops the pod":                          {others: true, sandbox: true, dropped: true},
		"a container stays, and the agent restarts":                     {others: true, restart: true},
		"a container stays, the pod is dropped, and the agent restarts": {others: true, dropped: true, restart: true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				var refuse atomic.Bool
				refuse.Store(true)
				d.end()
				d.engine = refusingEngine{d.fake, func(id string) bool {
					list, _ := d.fake.Containers(t.Context(), plan.LabelAgent+"=pi-1")
					at := slices.IndexFunc(list, func(o engine.Container) bool { return o.ID == id })
					if at < 0 || !refuse.Load() {
						return false
					}
					if list[at].Labels[plan.LabelContainer] == "" {
						return c.sandbox
					}
					return c.others
				}}
				d.start()
				p := makePod("web", "wait") // a pod without a sandbox
				if c.sandbox {
					p = makePod("web", "wait", "wait")
				}
				d.desire(1, p)
				time.Sleep(15 * time.Second)
				d.wantPhase("web", corev1.PodRunning, "")
				at := metav1.NewTime(time.Now().Add(30 * time.Second))
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, new(int64(30))
				d.desire(2, p)
				time.Sleep(2 * time.Minute)
				if st, there := d.pod("web"); there && st.Phase != corev1.PodSucceeded && st.Phase != corev1.PodFailed {
					t.Fatalf("the pod is %s after two minutes", st.Phase)
				}
				if c.dropped {
					d.desire(3)
					time.Sleep(time.Minute)
					if st, there := d.pod("web"); there {
						t.Errorf("an ended pod is reported as %s", st.Phase)
					}
				}
				if d.nodeEvents("FailedRemoveContainer") == 0 {
					t.Errorf("the node has no event: %q", d.reasons())
				}
				if c.restart {
					d.end()
					d.start()
					time.Sleep(time.Minute)
					if st, there := d.pod("web"); there && st.Phase != corev1.PodSucceeded &&
						st.Phase != corev1.PodFailed &&
						!c.dropped {
						t.Errorf("after a restart of the agent the pod is %s", st.Phase)
					}
				}
				refuse.Store(false)
				time.Sleep(6 * time.Minute)
				d.desire(4)
				time.Sleep(time.Minute)
				d.wantContainers()
			})
		})
	}
}

// Files that cannot be removed, for example because of a mount, do not keep their pod from ending.
func TestAPodEndsIfItsFilesCannotBeRemoved(t *testing.T) {
	for name, dropped := range map[string]bool{"while the pod is desired": false,
		"after the hub has dropped the pod": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *device) {
				p := makePod("web", "wait")
				d.desire(1, p)
				time.Sleep(15 * time.Second)
				d.wantPhase("web", corev1.PodRunning, "")
				at := filepath.Join(d.agent.disk.Root, volume.PodsDir)
				file := filepath.Join(at, string(p.UID), "files")
				if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600),
					os.Rename(at, at+".moved"), os.WriteFile(at, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
				end := metav1.NewTime(time.Now().Add(30 * time.Second))
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &end, new(int64(30))
				d.desire(2, p)
				time.Sleep(2 * time.Minute)
				if st, there := d.pod("web"); there && st.Phase != corev1.PodSucceeded && st.Phase != corev1.PodFailed {
					t.Errorf("the pod is %s after two minutes", st.Phase)
				}
				if dropped {
					d.desire(3)
					time.Sleep(2 * time.Minute)
				}
				tries := d.nodeEvents("FailedRemoveVolumes")
				if tries == 0 || tries > 10 {
					t.Errorf("the failure is reported %d times: %q", tries, d.reasons())
				}
				if err := errors.Join(os.Remove(at), os.Rename(at+".moved", at)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(6 * time.Minute)
				if files := namesIn(at); len(files) > 0 {
					t.Errorf("the files %q are never removed", files)
				}
			})
		})
	}
}
