package control

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"runtime/debug"
	"slices"
	"time"

	"flotilla.dev/hub/state"
)

// pass hears news, settles, remembers, tells and shows, all at one moment. What
// cannot be remembered has not happened.
func (l *Loop) pass(ctx context.Context, jobs []*job) (err error) {
	l.passes.Add(1)
	now := l.Now()
	s := l.refreshSeen(*l.current.Load(), now)
	var log []state.Applied
	for _, j := range jobs {
		var changes []state.Change
		if changes, j.err = l.hear(j.news, s, now); j.err != nil {
			continue
		}
		s, j.done = state.Apply(s, changes)
		log = append(log, j.done...)
	}
	s = l.see(s, func(yield func(string) bool) {
		for _, a := range log {
			switch a.Key.Kind {
			case state.Nodes:
				yield(a.Key.Name)
			case state.Sites: // another grace moves the deadlines of its nodes
				for n := range s.NodesIn(a.Key.Name) {
					yield(n.Name)
				}
			}
		}
	})
	s, made, settled := l.settler.Settle(s, slices.Clip(log), now)
	if !settled {
		last := "an alarm that is past"
		if len(made) > 0 {
			last = made[len(made)-1].Change.String()
		}
		l.Log.Error("the deciders find no end", "last", last)
	}
	log = append(log, made...)
	s, told := state.Apply(s, events(s, log, now))
	log = append(log, told...)

	if err = l.remember(ctx, log, s.Revision); err != nil {
		l.settler.LookAtAll()
		for _, j := range jobs {
			if j.err == nil {
				j.done, j.err = nil, fmt.Errorf("nothing was changed: %w", err)
			}
			close(j.over)
		}
		return err
	}
	for _, a := range log {
		l.say(a)
	}
	l.current.Store(&s)
	for _, node := range l.show(log) {
		l.tell(s, node)
	}
	l.feed.append(log, now)
	for _, j := range jobs {
		close(j.over)
	}
	return nil
}

// hear asks news what follows from it. A mistake in the code of one piece of news
// must not end the hub.
func (l *Loop) hear(news News, s state.Snapshot, now time.Time) (changes []state.Change, err error) {
	defer func() {
		if r := recover(); r != nil {
			l.Log.Error("news failed", "panic", r, "stack", string(debug.Stack()))
			changes, err = nil, fmt.Errorf("internal error: %v", r)
		}
	}()
	return news(s, now)
}

// refreshSeen reads the pulses of the nodes that are going to be looked at: those
// whose deadlines have come, or all.
func (l *Loop) refreshSeen(s state.Snapshot, now time.Time) state.Snapshot {
	return l.see(s, func(yield func(string) bool) {
		if l.settler.all {
			for n := range s.Nodes() {
				yield(n.Name)
			}
			return
		}
		for _, k := range l.settler.Due(0, now) {
			if k.Kind == state.Nodes {
				yield(k.Name)
			}
		}
	})
}

// see returns the snapshot that knows when each of the nodes was last heard of.
func (l *Loop) see(s state.Snapshot, nodes iter.Seq[string]) state.Snapshot {
	return s.WithAllSeen(func(yield func(string, time.Time) bool) {
		for node := range nodes {
			if t, ok := l.lastSeen(node); ok && t.After(s.Seen(node)) {
				yield(node, t)
			}
		}
	})
}

// remember commits the newest state of every object that changed.
func (l *Loop) remember(ctx context.Context, log []state.Applied, rev uint64) error {
	if len(log) == 0 {
		return nil
	}
	newest := make(map[state.Key]state.Applied, len(log))
	for _, a := range log {
		newest[a.Key] = a
	}
	rows := make([]Row, 0, len(newest))
	for k, a := range newest {
		row := Row{Key: k, Rev: a.Rev, State: a.New}
		if a.New != nil {
			row.UID = string(a.New.GetUID())
			object, err := json.Marshal(a.New)
			if err != nil {
				return fmt.Errorf("encode %s: %w", k, err)
			}
			row.Object = object
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	if err := l.Store.Commit(ctx, rows, rev); err != nil {
		return fmt.Errorf("remember %d changes: %w", len(rows), err)
	}
	l.commits.Add(1)
	return nil
}

// say writes a change's sentence into the log.
func (l *Loop) say(a state.Applied) {
	if a.Change.Why == "" {
		return
	}
	attrs := []any{}
	switch a.Key.Kind {
	case state.Nodes:
		attrs = append(attrs, "node", a.Key.Name)
	case state.Sites:
		attrs = append(attrs, "site", a.Key.Name)
	case state.Pods:
		attrs = append(attrs, "pod", a.Key.Namespace+"/"+a.Key.Name)
	}
	if a.Change.Warn {
		l.Log.Warn(a.Change.Why, attrs...)
	} else {
		l.Log.Info(a.Change.Why, attrs...)
	}
}
