package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// Pods hears which pods a device holds. It returns when what follows is durable.
func (l *Loop) Pods(ctx context.Context, node string, pods wire.Pods) error {
	p := l.pulses.get(node)
	boot := p.boot.Load()
	if boot == nil || *boot != pods.Boot || pods.Seq <= p.pods.Load() {
		return fmt.Errorf("pods %d of %s: %w", pods.Seq, node, ErrStale)
	}
	_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		if rec := s.Record(node); rec == nil || rec.Boot != pods.Boot {
			return nil, fmt.Errorf("pods %d of %s: %w", pods.Seq, node, ErrStale)
		}
		return heardPods(s, node, pods, now), nil
	})
	if err == nil {
		p.pods.Store(pods.Seq)
	}
	return err
}

// heardPods returns what follows from a device's list of its pods: their statuses,
// and the end of those that were to stop and are not there any more.
func heardPods(s state.Snapshot, node string, pods wire.Pods, now time.Time) (changes []state.Change) {
	rec := s.Record(node)
	holds := make(map[types.UID]bool, len(pods.Pods))
	for _, said := range pods.Pods {
		holds[said.UID] = true
		p := s.Pod(said.Namespace, said.Name)
		if p == nil || p.UID != said.UID || p.Spec.NodeName != node || state.Terminated(p) {
			continue
		}
		next := p.DeepCopy()
		mergeStatus(&next.Status, said.Status, now)
		if apiequality.Semantic.DeepEqual(p.Status, next.Status) {
			continue
		}
		c := state.Put(next, "")
		if p.Status.Phase != next.Status.Phase {
			c.Why = fmt.Sprintf("pod %s on %s %s", state.Display(next), node, next.Status.Phase)
			if next.Status.Message != "" {
				c.Why += ": " + next.Status.Message
			}
		}
		// A pod that has finished while it was to stop has stopped.
		if next.DeletionTimestamp != nil && state.Terminated(next) && len(next.Finalizers) == 0 {
			c = state.Remove(next, fmt.Sprintf("pod %s on %s has stopped", state.Display(next), node))
		}
		changes = append(changes, c)
	}
	if rec == nil || pods.Generation < rec.Generation {
		return changes // it may not know yet what is wanted of it
	}
	for p := range s.PodsOn(node) {
		if p.DeletionTimestamp != nil && !holds[p.UID] && len(p.Finalizers) == 0 {
			changes = append(changes, state.Remove(p, fmt.Sprintf("pod %s on %s has stopped", state.Display(p), node)))
		}
	}
	return changes
}

// mergeStatus takes a device's status of a pod over, and leaves the conditions
// that are the hub's.
func mergeStatus(have *corev1.PodStatus, said corev1.PodStatus, now time.Time) {
	old := *have
	*have = *said.DeepCopy()
	have.NominatedNodeName, have.QOSClass = "", old.QOSClass
	if have.StartTime == nil {
		have.StartTime = old.StartTime
	} else if old.StartTime != nil {
		have.StartTime = old.StartTime
	}
	for i := range have.Conditions {
		c := &have.Conditions[i]
		c.LastTransitionTime, c.LastProbeTime = metav1.NewTime(now), metav1.Time{}
		for _, was := range old.Conditions {
			if was.Type == c.Type && was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
		}
	}
	for _, c := range old.Conditions {
		hubs := c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget
		if i := slices.IndexFunc(have.Conditions, func(d corev1.PodCondition) bool { return d.Type == c.Type }); i < 0 && hubs {
			have.Conditions = append(have.Conditions, c)
		} else if i >= 0 && hubs {
			have.Conditions[i] = c
		}
	}
	// The order of conditions says nothing: keep one, so that it makes no difference.
	slices.SortStableFunc(have.Conditions, func(a, b corev1.PodCondition) int { return order(a.Type) - order(b.Type) })
}

func order(t corev1.PodConditionType) int {
	return slices.Index([]corev1.PodConditionType{
		corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled, corev1.DisruptionTarget,
	}, t)
}

// Event hears something that a device found worth telling.
func (l *Loop) Event(ctx context.Context, node string, e wire.Event) error {
	_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
		if e.Type != corev1.EventTypeWarning {
			e.Type = corev1.EventTypeNormal
		}
		said := Said{Type: e.Type, Reason: e.Reason, Message: e.Message, Component: "flotilla-device", Host: node}
		var ref corev1.ObjectReference
		switch p := s.Pod(e.Namespace, e.Pod); {
		case e.Pod == "":
			n := s.Node(node)
			if n == nil {
				return nil, nil
			}
			ref = About(n)
		case p == nil || p.UID != e.PodUID || p.Spec.NodeName != node:
			return nil, nil // of a pod that is no more, or not this node's to tell of
		default:
			ref = About(p)
			if e.Container != "" {
				ref.FieldPath = fmt.Sprintf("spec.containers{%s}", e.Container)
			}
		}
		return []state.Change{state.Put(NewEvent(s, ref, said, now), "")}, nil
	})
	return err
}

// Offence hears that a device did what it may not.
func (l *Loop) Offence(node, what string) {
	l.Log.Warn("refused: "+what, "node", node)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := l.Event(ctx, node, wire.Event{Type: corev1.EventTypeWarning, Reason: "Refused", Message: what})
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		l.Log.Debug("note an offence", "node", node, "err", err)
	}
}

// Presence hears of a lost link or of an orderly stop. It is shown and decides
// nothing; a will of an earlier boot fires late and says nothing.
func (l *Loop) Presence(node string, p wire.Presence) {
	pulse := l.pulses.get(node)
	if boot := pulse.boot.Load(); boot == nil || *boot != p.Boot {
		return
	}
	switch p.State {
	case wire.PresenceShutdown:
		l.Log.Info("device shuts down", "node", node, "reason", p.Reason)
	default:
		l.Log.Info("link lost", "node", node)
	}
}

// meet hears which desired state a device has stored that has never reported
// before. One that lives by a state that this hub never made, as after the loss of
// its database, goes on living by it.
func (l *Loop) meet(node string, p *pulse, stored int64) {
	l.learn(node, func() { p.unmet.Store(true) }, func(rec *state.Record, n *corev1.Node) *state.Change {
		if !rec.Unmet {
			return nil
		}
		rec.Unmet = false
		if stored > rec.Generation {
			return pause(rec, n, stored)
		}
		return &state.Change{Object: rec}
	})
}

// ahead hears that a device has stored a newer desired state than the hub ever
// made, as after a restore from a backup: nothing is told to it until an
// administrator resumes.
func (l *Loop) ahead(node string, stored int64) {
	p := l.pulses.get(node)
	p.mu.Lock()
	ask := p.resent.turn(l.age())
	p.mu.Unlock()
	if !ask {
		return
	}
	l.learn(node, func() {}, func(rec *state.Record, n *corev1.Node) *state.Change {
		if rec.Paused || stored <= rec.Generation {
			return nil
		}
		return pause(rec, n, stored)
	})
}

// pause is the change by which a device is left alone.
func pause(rec *state.Record, n *corev1.Node, stored int64) *state.Change {
	rec.Paused, rec.Stored = true, stored
	return &state.Change{
		Object: rec, About: n, Warn: true, Reason: "DesiredStatePaused",
		Why: fmt.Sprintf("node %s has stored desired state %d, newer than this hub's %d, as after a restore: nothing is sent to it until `flotilla-hub resume`", rec.Name, stored, rec.Generation),
	}
}

// learn changes a node's record by what its lease shows. A lease waits for nobody.
func (l *Loop) learn(node string, failed func(), change func(rec *state.Record, n *corev1.Node) *state.Change) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) ([]state.Change, error) {
			rec, n := s.Record(node), s.Node(node)
			if rec == nil || n == nil {
				return nil, nil
			}
			c := change(rec.DeepCopy(), n)
			if c == nil {
				return nil, nil
			}
			return []state.Change{*c}, nil
		})
		if err != nil {
			l.Log.Debug("note what a device has stored", "node", node, "err", err)
			failed()
		}
	}()
}

// Resume lets the hub publish to devices whose stored desired state is newer than
// its own, and returns how many there were.
func (l *Loop) Resume(ctx context.Context) (int, error) {
	count := 0
	_, err := l.Do(ctx, func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		count = 0
		for rec := range state.Each[*state.Record](s, state.Records, "") {
			if rec.Paused {
				count++
				rec = rec.DeepCopy()
				rec.Generation, rec.Digest, rec.Paused, rec.Stored = rec.Stored+1, "", false, 0
				changes = append(changes, state.Put(rec, "resume "+rec.Name))
			}
		}
		return changes, nil
	})
	return count, err
}

// stable is what of a hardware report does not change by itself: what does, such
// as a temperature, is shown from memory and not worth a write.
func stable(hardware json.RawMessage) string {
	if len(hardware) == 0 {
		return ""
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(hardware, &m) != nil {
		return string(hardware)
	}
	for _, k := range []string{"temperatures", "stalls", "clock", "radios", "power"} {
		delete(m, k)
	}
	out, _ := json.Marshal(m)
	return string(out)
}
