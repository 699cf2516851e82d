package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// memory adapts the store for the control loop.
type memory struct {
	store interface {
		Commit(ctx context.Context, c store.Commit) error
	}
}

func (m memory) Commit(ctx context.Context, rows []control.Row, rev uint64) error {
	c := store.Commit{Rev: rev, Rows: make([]store.Row, 0, len(rows))}
	for _, r := range rows {
		row := store.Row{
			Kind: string(r.Key.Kind), Namespace: r.Key.Namespace, Name: r.Key.Name, UID: r.UID, Rev: r.Rev, Object: r.Object,
		}
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

// Room implements control.SpaceProber.
func (m memory) Room(ctx context.Context) bool {
	s, ok := m.store.(control.SpaceProber)
	return ok && s.Room(ctx)
}

// storeRepairs returns the News that stores repaired objects and reports them.
func storeRepairs(mended []state.Change) control.News {
	return func(s state.Snapshot, _ time.Time) (changes []state.Change, err error) {
		for _, c := range mended {
			if have := s.Get(state.KeyOf(c.Object)); have != nil { // unless it has been deleted since
				c.Object = have.DeepCopyObject().(state.Object)
				changes = append(changes, c)
			}
		}
		return changes, nil
	}
}

// namespaces exist in every fleet, as in every Kubernetes cluster.
var namespaces = []string{metav1.NamespaceDefault, "kube-node-lease", "kube-public", metav1.NamespaceSystem}

// annotationDefault holds the spec that an object had when the hub created it. If the spec is
// unchanged, a newer hub may replace it.
const annotationDefault = "flotilla.dev/shipped-spec"

// fillDefaults returns the News that adds the hub's default objects: namespaces, priority classes
// and board profiles.
func fillDefaults(log *slog.Logger) control.News {
	return func(s state.Snapshot, now time.Time) (changes []state.Change, err error) {
		for _, name := range namespaces {
			if s.Get(state.Key{Kind: state.Namespaces, Name: name}) == nil {
				changes = append(changes, state.Put(&corev1.Namespace{
					ObjectMeta: metav1.ObjectMeta{
						Name: name, CreationTimestamp: metav1.NewTime(now), Labels: map[string]string{corev1.LabelMetadataName: name},
					},
					Spec:   corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
					Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
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
				if json.Unmarshal([]byte(have.Annotations[annotationDefault]), &was) != nil ||
					!apiequality.Semantic.DeepEqual(was, have.Spec) || apiequality.Semantic.DeepEqual(p.Spec, have.Spec) {
					continue // an administrator has changed it, or it is up to date
				}
				next = have.DeepCopy()
				next.Spec = p.Spec
			}
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, annotationDefault, string(shipped))
			changes = append(changes, state.Put(next, ""))
		}
		log.Debug("added the default objects", "changes", len(changes))
		return changes, nil
	}
}

// profileOf returns the board profile that matches a device. If two match equally well it returns
// none, until an administrator resolves that.
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
