package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sort"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

// pass evaluates news, settles, commits and shows, all at one moment. If the commit fails, the
// fleet stays as it was.
func (l *Loop) pass(ctx context.Context, jobs []*job) (err error) {
	l.passes.Add(1)
	stallEnd := l.stalled()
	began := time.Now()
	var wrote commitResult
	defer func() { l.checkDuration(time.Since(began), wrote, jobs) }()
	now := l.Now()
	s := *l.current.Load()
	if stallEnd.After(s.Listening()) {
		s = s.Listen(stallEnd)
	}
	noAdditions := l.space.skipsAdditions(now)
	start := l.refreshSeen(s.WithDiskSpace(!l.space.out()), now)
	s, log, recorded := l.settle(start, jobs, now, noAdditions)
	at := time.Now()
	sizes, err := l.remember(ctx, log, s.Revision)
	if err != nil && !errors.Is(err, ErrUnavailable) && !noAdditions {
		// Run the pass again without additions, because changes and deletions need no space.
		l.space.failed(err, now)
		l.settler.AskAll()
		noAdditions = true
		start = l.refreshSeen(start.WithDiskSpace(!l.space.out()), now)
		s, log, recorded = l.settle(start, jobs, now, noAdditions)
		sizes, err = l.remember(ctx, log, s.Revision)
		l.noteNoSpace(err, now)
	} else if err == nil && l.space.full && !noAdditions {
		if l.hasSpace(ctx) {
			l.space = storeSpace{}
			l.settler.AskAll() // so that the incident of the full disk ends
			s = s.WithDiskSpace(true)
		} else {
			l.space.failed(l.space.err, now)
		}
	}
	wrote = commitResult{time.Since(at), sizes}
	if err != nil {
		l.settler.AskAll()
		l.commitNewsOnly(ctx, start, jobs, now, fmt.Errorf("nothing was changed: %w", err))
	} else {
		l.unseen = recorded // the next pass limits the number of events
		measureDisk(log, jobs, sizes)
		l.carryOut(s, log, now)
	}
	l.noteResult(err, l.Now())
	for _, j := range jobs {
		if j.err != nil {
			j.done = nil
		}
		close(j.over)
	}
	return err
}

// settle evaluates news and settles. With noAdditions, plans and news that add an object are left
// out.
func (l *Loop) settle(s state.Snapshot, jobs []*job, now time.Time,
	noAdditions bool) (next state.Snapshot, log, recorded []state.Applied) {
	s, log = l.evaluateAll(s, jobs, now, noAdditions && l.space.out())
	s = l.withSeen(s, func(yield func(string) bool) {
		for _, a := range log {
			switch a.Key.Kind {
			case state.Nodes, state.Records: // a record's lease interval moves the deadline
				yield(a.Key.Name)
			case state.Sites: // a changed grace period moves the deadlines of the site's nodes
				for n := range s.NodesIn(a.Key.Name) {
					yield(n.Name)
				}
			}
		}
	})
	recent := append(slices.Clip(l.unseen), log...)
	l.settler.SkipAdditions(noAdditions, l.space.next)
	s, made, settled := l.settler.Settle(s, recent, now)
	log = append(log, made...)
	if !settled {
		var recorded []state.Applied
		s, recorded = l.reportUnsettled(s, made, now)
		log = append(log, recorded...)
	}
	s, recorded = state.Apply(s, events(s, log, now))
	return s, append(log, recorded...), recorded
}

// carryOut shows, publishes and logs the committed changes. Logging comes last, because thousands
// of lines take a while.
func (l *Loop) carryOut(s state.Snapshot, log []state.Applied, now time.Time) {
	l.current.Store(&s)
	if l.Devices != nil {
		l.Devices.Shown(s, log)
	}
	l.feed.append(log, now)
	for _, a := range log {
		l.logChange(a)
	}
}

// evaluateAll evaluates all news with its consequences, for example the end of an enrolment after
// the deletion of a Node. With noAdditions, news that adds an object is refused.
func (l *Loop) evaluateAll(s state.Snapshot, jobs []*job, now time.Time,
	noAdditions bool) (next state.Snapshot, log []state.Applied) {
	for _, j := range jobs {
		var changes []state.Change
		at := time.Now()
		changes, j.err = l.evaluate(j.news, s, now)
		j.took = time.Since(at)
		if j.err != nil {
			continue
		}
		next, done, more := l.Follows.apply(s, changes, now)
		if noAdditions && (slices.ContainsFunc(done, needsSpace) || slices.ContainsFunc(more, needsSpace)) {
			j.err = fmt.Errorf("nothing was changed: %w", l.space.err)
			continue
		}
		s, j.done = next, done
		log = append(append(log, done...), more...)
	}
	return s, log
}

// measureDisk sets the stored size of every change, in log and in the jobs.
func measureDisk(log []state.Applied, jobs []*job, sizes map[state.Key]int) {
	measure(log, sizes)
	for _, j := range jobs {
		measure(j.done, sizes)
	}
}

// reportUnsettled reports that the deciders do not settle, which is a bug in one of them. The
// report is in the log, in the metrics, and in an event about the last changed object.
func (l *Loop) reportUnsettled(s state.Snapshot, made []state.Applied,
	now time.Time) (state.Snapshot, []state.Applied) {
	l.unsettled.Add(1)
	last, about := "an alarm in the past", s.Get(state.Key{Kind: state.Namespaces, Name: metav1.NamespaceDefault})
	for _, a := range made {
		if why := a.Change.String(); why != "" {
			last = why
		}
		about = a.Change.Object
	}
	l.Log.Error("the deciders do not settle: everything is decided again", "last", last, "in", l.settler.askAllDelay)
	if about == nil {
		return s, nil
	}
	text := EventText{Type: corev1.EventTypeWarning, Reason: "Unsettled", Message: "the hub's rules do not settle here: " +
		"everything is decided again; please report this"}
	return state.Apply(s, []state.Change{state.Put(NewEvent(s, About(about), text, now), "")})
}

// evaluate returns the changes of news. It turns a panic into an error, so that the hub goes on.
func (l *Loop) evaluate(news News, s state.Snapshot, now time.Time) (changes []state.Change, err error) {
	defer panics.CatchThen("news", func(failed error) { changes, err = nil, failed })
	return news(s, now)
}

// refreshSeen updates the last heartbeats of the nodes that this pass decides about: those with a
// due deadline, or all.
func (l *Loop) refreshSeen(s state.Snapshot, now time.Time) state.Snapshot {
	if l.settler.AsksAll(now) {
		return l.withSeen(s, func(yield func(string) bool) {
			for n := range s.Nodes() {
				yield(n.Name)
			}
		})
	}
	due := l.settler.DueNodes(now)
	if l.OnBurst != nil && len(due) > shardSize {
		l.OnBurst()
	}
	return l.withSeen(s, slices.Values(due))
}

// withSeen returns the snapshot with the time of each node's last heartbeat.
func (l *Loop) withSeen(s state.Snapshot, nodes iter.Seq[string]) state.Snapshot {
	if l.Devices == nil {
		return s
	}
	return s.WithAllSeen(func(yield func(string, time.Time) bool) {
		for node := range nodes {
			if t, ok := l.Devices.Seen(node); ok && t.After(s.Seen(node)) {
				yield(node, t)
			}
		}
	})
}

// measure sets the stored size of each change.
func measure(log []state.Applied, sizes map[state.Key]int) {
	for i := range log {
		if log[i].New != nil {
			log[i].Bytes = sizes[log[i].Key]
		}
	}
}

// remember commits the newest version of every changed object, and returns the sizes of the
// objects.
func (l *Loop) remember(ctx context.Context, log []state.Applied, rev uint64) (sizes map[state.Key]int, err error) {
	if len(log) == 0 {
		return nil, nil
	}
	newest := make(map[state.Key]int, len(log))
	for i, a := range log {
		newest[a.Key] = i
	}
	rows := make([]Row, 0, len(newest))
	for i, a := range log {
		if newest[a.Key] != i {
			continue
		}
		row := Row{Key: a.Key, Rev: a.Rev, State: a.New}
		if a.New != nil {
			row.UID = string(a.New.GetUID())
		}
		rows = append(rows, row)
	}
	sort.Slice(rows, func(i, j int) bool {
		a, b := rows[i].Key, rows[j].Key
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) < 0
	})
	if err := encode(rows); err != nil {
		return nil, err
	}
	sizes = newest // the sizes are not needed again
	for _, r := range rows {
		sizes[r.Key] = len(r.Object)
	}
	l.inCommit.Store(max(1, int64(l.Age())))
	defer l.inCommit.Store(0)
	if err := l.Store.Commit(ctx, rows, rev); err != nil {
		return nil, fmt.Errorf("remember %d changes: %w", len(rows), err)
	}
	l.commits.Add(1)
	return sizes, nil
}

// encode encodes the rows, in parallel if there are many. When half a fleet falls silent, encoding
// is a large part of the pass before the commit.
func encode(rows []Row) error {
	parts := slices.Collect(slices.Chunk(rows, shardSize))
	failed := make([]error, len(parts))
	one := func(i int) {
		defer panics.CatchThen("encode", func(err error) { failed[i] = err })
		for j := range parts[i] {
			r := &parts[i][j]
			if r.State == nil {
				continue
			}
			if r.Object, failed[i] = state.Encode(r.State); failed[i] != nil {
				failed[i] = fmt.Errorf("encode %s: %w", r.Key, failed[i])
				return
			}
		}
	}
	var all sync.WaitGroup
	for i := range parts {
		if i == len(parts)-1 {
			one(i) // few rows: start no goroutine
			break
		}
		all.Go(func() { one(i) })
	}
	all.Wait()
	return errors.Join(failed...)
}

// logChange logs the sentence of a change.
func (l *Loop) logChange(a state.Applied) {
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
