package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// memory is the store as the loop sees it.
type memory struct {
	store interface {
		Commit(ctx context.Context, c store.Commit) error
	}
}

func (m memory) Commit(ctx context.Context, rows []control.Row, rev uint64) error {
	c := store.Commit{Rev: rev, Rows: make([]store.Row, 0, len(rows))}
	for _, r := range rows {
		row := store.Row{Kind: string(r.Key.Kind), Namespace: r.Key.Namespace, Name: r.Key.Name, UID: r.UID, Rev: r.Rev, Object: r.Object}
		switch o := r.State.(type) {
		case *corev1.Pod:
			row.Node, row.Phase = o.Spec.NodeName, string(o.Status.Phase)
		case *corev1.Event:
			row.Node = o.Source.Host
		}
		c.Rows = append(c.Rows, row)
	}
	err := m.store.Commit(ctx, c)
	if errors.Is(err, store.ErrFull) {
		err = fmt.Errorf("%w: %w", control.ErrFull, err)
	}
	if errors.Is(err, store.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", control.ErrUnavailable, err)
	}
	return err
}

// Room implements control.Roomer.
func (m memory) Room(ctx context.Context) bool {
	s, ok := m.store.(control.SpaceProber)
	return ok && s.Room(ctx)
}

// recall reads the fleet as it is remembered, and says what of it had to be mended: an
// older hub, or whoever changed the database, has let in what nothing may be.
func recall(ctx context.Context, st *store.Store, started time.Time) (s state.Snapshot, mended []state.Change, err error) {
	id, err := st.HubID(ctx)
	if err != nil {
		return state.Snapshot{}, nil, fmt.Errorf("read the hub's identity: %w", err)
	}
	rev, err := st.Revision(ctx)
	if err != nil {
		return state.Snapshot{}, nil, fmt.Errorf("read the revision: %w", err)
	}
	fleet := state.Loading(state.Empty(id, started))
	if mended, err = decodeAll(ctx, st.Load, fleet.Add); err != nil {
		return state.Snapshot{}, nil, fmt.Errorf("read the fleet: %w", err)
	}
	return fleet.Loaded(rev), mended, nil
}

// A recollection is the fleet as it was read while the database was being checked.
type recollection struct {
	fleet  state.Snapshot
	mended []state.Change
	err    error // also: nothing was read
}

// read is what the store calls.
func (r *recollection) read(ctx context.Context, st *store.Store) {
	r.fleet, r.mended, r.err = recall(ctx, st, time.Time{})
}

// as is the fleet at the start of a hub; false: it was not read as the store has it now.
func (r *recollection) as(ctx context.Context, st *store.Store, started time.Time) (s state.Snapshot, ok bool) {
	rev, err := st.Revision(ctx)
	if r.err != nil || err != nil || rev != r.fleet.Revision {
		return s, false
	}
	s = r.fleet
	s.Started = started
	return s.Forgive(started), true
}

// decodeAll decodes the rows that load tells of, on all processors and while more are read,
// and adds the objects: most of a start is this. They are added, and what had to be mended is
// told, in the order of the rows.
func decodeAll(ctx context.Context, load func(context.Context, func(store.Row) error) error, add func([]state.Object)) (mended []state.Change, err error) {
	const together = 256
	type batch struct {
		rows    []store.Row
		text    []byte // of the rows, which load lends only
		objects []state.Object
		mended  []state.Change
		decoded chan struct{}
	}
	work, ctx := errgroup.WithContext(ctx)
	processors := runtime.GOMAXPROCS(0)
	todo, ordered := make(chan *batch), make(chan *batch, 4*processors)
	type room struct { // that a batch which has been decoded leaves to another
		rows []store.Row
		text []byte
	}
	rooms := make(chan room, 2*cap(ordered))
	for range processors {
		work.Go(func() (err error) {
			defer panics.CatchThen("start", func(failed error) { err = failed })
			var reads reader
			for b := range todo {
				for _, r := range b.rows {
					o, places, err := reads.object(r)
					if err != nil {
						return err
					}
					b.objects = append(b.objects, o)
					if why := mendedWhy(o, places); why != "" {
						b.mended = append(b.mended, state.Put(o, why).Warning("OutOfBounds"))
					}
				}
				select {
				case rooms <- room{b.rows[:0], b.text[:0]}:
				default:
				}
				b.rows, b.text = nil, nil
				close(b.decoded)
			}
			return nil
		})
	}
	work.Go(func() (err error) {
		defer panics.CatchThen("start", func(failed error) { err = failed })
		for b := range ordered {
			select {
			case <-b.decoded:
				add(b.objects)
				mended = append(mended, b.mended...)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	var now *batch
	hand := func() error {
		for _, to := range []chan *batch{ordered, todo} {
			select {
			case to <- now:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		now = nil
		return nil
	}
	err = load(ctx, func(r store.Row) error {
		if now == nil {
			now = &batch{objects: make([]state.Object, 0, together), decoded: make(chan struct{})}
			select {
			case r := <-rooms:
				now.rows, now.text = r.rows, r.text
			default:
				now.rows = make([]store.Row, 0, together)
			}
		}
		begin := len(now.text)
		now.text = append(now.text, r.Object...)
		r.Object = slices.Clip(now.text[begin:]) // nobody appends to the next one's
		if now.rows = append(now.rows, r); len(now.rows) < together {
			return nil
		}
		return hand()
	})
	if err == nil && now != nil {
		err = hand()
	}
	close(todo)
	close(ordered)
	if failed := work.Wait(); failed != nil && (err == nil || !errors.Is(failed, context.Canceled)) {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	return mended, nil
}

// mend is the news by which what was mended is remembered so, and told.
func mend(mended []state.Change) control.News {
	return func(s state.Snapshot, _ time.Time) (changes []state.Change, err error) {
		for _, c := range mended {
			if have := s.Get(state.KeyOf(c.Object)); have != nil { // whatever has become of it since
				c.Object = have.DeepCopyObject().(state.Object)
				changes = append(changes, c)
			}
		}
		return changes, nil
	}
}

// namespaces exist in every fleet, as in every Kubernetes cluster.
var namespaces = []string{metav1.NamespaceDefault, "kube-node-lease", "kube-public", metav1.NamespaceSystem}

// annotationDefault marks an object that came with the hub, with the spec it had
// then: one that nobody changed follows the next version.
const annotationDefault = "flotilla.dev/shipped-spec"

// furnish is the news by which a fleet gets what every fleet has: its namespaces
// and the board profiles that come with the hub.
func furnish(log *slog.Logger) control.News {
	return func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		for _, name := range namespaces {
			if s.Get(state.Key{Kind: state.Namespaces, Name: name}) == nil {
				changes = append(changes, state.Put(&corev1.Namespace{
					ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{corev1.LabelMetadataName: name}},
					Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
					Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
				}, ""))
			}
		}
		for _, class := range state.SystemClasses {
			have, _ := s.Get(state.KeyOf(&class)).(*schedulingv1.PriorityClass)
			if have != nil && have.Value == class.Value && !have.GlobalDefault {
				continue
			}
			next := class.DeepCopy()
			next.CreationTimestamp, next.Generation = metav1.NewTime(now), 1
			changes = append(changes, state.Put(next, ""))
		}
		profiles, err := firmwareconfigs.Defaults()
		if err != nil {
			return nil, err
		}
		for _, p := range profiles {
			shipped, err := json.Marshal(p.Spec)
			if err != nil {
				return nil, err
			}
			next := p.DeepCopy()
			next.CreationTimestamp = metav1.NewTime(now)
			if have, ok := s.Get(state.Key{Kind: state.BoardProfiles, Name: p.Name}).(*fleet.BoardProfile); ok && have != nil {
				var was fleet.BoardProfileSpec
				if json.Unmarshal([]byte(have.Annotations[annotationDefault]), &was) != nil || !apiequality.Semantic.DeepEqual(was, have.Spec) || apiequality.Semantic.DeepEqual(p.Spec, have.Spec) {
					continue // an administrator's, or the newest
				}
				next = have.DeepCopy()
				next.Spec = p.Spec
			}
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationDefault, string(shipped))
			changes = append(changes, state.Put(next, ""))
		}
		log.Debug("furnished", "changes", len(changes))
		return changes, nil
	}
}

// profileOf names the board profile that matches a device. Two that match alike
// are the administrator's to tell apart; until then the device has none.
func profileOf(s state.Snapshot, st corev1.NodeStatus, hardware json.RawMessage) string {
	var profiles []*fleet.BoardProfile
	for p := range state.Each[*fleet.BoardProfile](s, state.BoardProfiles, "") {
		profiles = append(profiles, p)
	}
	p, err := firmwareconfigs.Match(profiles, firmwareconfigs.BoardOf(st, hardware))
	if err != nil || p == nil {
		return ""
	}
	return p.Name
}
