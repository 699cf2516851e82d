package kube

import (
	"context"
	"net/http"
	"slices"
	"sort"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

const (
	// measuring is how long devices have to answer what they use. They need two
	// seconds to measure; who is later is left out.
	measuring = 8 * time.Second
	// measured is how many devices are asked at once.
	measured = 2000
)

// usage answers what devices and their pods use now. Nobody measures anything
// while nobody asks: each request asks the devices that it is about.
func (c *call) usage() error {
	f, err := resource.Negotiate(c.r, c.res.Media(), "Table")
	if err != nil {
		return err
	}
	about := state.Nodes
	if c.res.Kind == "PodMetrics" {
		about = state.Pods
	}
	snap := c.Fleet.Snapshot()
	if c.verb == "get" {
		return c.usageOf(snap, about, f)
	}
	// Selectors select by the objects that the usage is of.
	_, sel, err := c.options(about)
	if err != nil {
		return err
	}
	var nodes []string
	for o := range c.view.Walk(snap, sel, "", "") {
		if n := asked(snap, o); n != "" {
			nodes = append(nodes, n)
		}
	}
	slices.Sort(nodes)
	seen := c.measure(slices.Compact(nodes))
	t := metav1.TypeMeta{Kind: c.res.Kind + "List", APIVersion: c.res.GroupVersion().String()}
	m := metav1.ListMeta{ResourceVersion: resource.FormatRev(snap.Revision)}
	if about == state.Nodes {
		list := &metricsv1beta1.NodeMetricsList{TypeMeta: t, ListMeta: m, Items: []metricsv1beta1.NodeMetrics{}}
		for _, s := range seen {
			if n := snap.Node(s.node); n != nil {
				list.Items = append(list.Items, s.ofNode(n))
			}
		}
		if f.As == "Table" {
			return c.write(http.StatusOK, usageTable(usageRows(list.Items, nodeRow), m, f), f.Media)
		}
		return c.write(http.StatusOK, list, f.Media)
	}
	list := &metricsv1beta1.PodMetricsList{TypeMeta: t, ListMeta: m, Items: []metricsv1beta1.PodMetrics{}}
	for _, s := range seen {
		for _, u := range s.Pods {
			if p := s.pod(snap, u); p != nil && sel.Matches(p) {
				list.Items = append(list.Items, s.ofPod(p, u))
			}
		}
	}
	sort.Slice(list.Items, func(i, j int) bool { return byName(&list.Items[i].ObjectMeta, &list.Items[j].ObjectMeta) < 0 })
	if f.As == "Table" {
		return c.write(http.StatusOK, usageTable(usageRows(list.Items, podRow), m, f), f.Media)
	}
	return c.write(http.StatusOK, list, f.Media)
}

// usageOf answers what one node or pod uses.
func (c *call) usageOf(snap state.Snapshot, about state.Kind, f resource.Form) error {
	o := snap.Get(state.Key{Kind: about, Namespace: c.namespace, Name: c.name})
	if o == nil {
		return c.missing()
	}
	node := asked(snap, o)
	if node == "" {
		return c.unmeasured("it is not running, or its device is silent")
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), measuring)
	defer cancel()
	u, err := c.Metrics.Usage(ctx, node)
	if err != nil {
		return c.unmeasured(err.Error())
	}
	s := measurement{node: node, Usage: u}
	if n, ok := o.(*corev1.Node); ok {
		m := s.ofNode(n)
		m.TypeMeta = c.res.TypeMeta()
		if f.As == "Table" {
			return c.write(http.StatusOK, usageTable([]usageRow{nodeRow(m)}, metav1.ListMeta{}, f), f.Media)
		}
		return c.write(http.StatusOK, &m, f.Media)
	}
	for _, u := range s.Pods {
		if p := s.pod(snap, u); p != nil && p.Namespace == c.namespace && p.Name == c.name {
			m := s.ofPod(p, u)
			m.TypeMeta = c.res.TypeMeta()
			if f.As == "Table" {
				return c.write(http.StatusOK, usageTable([]usageRow{podRow(m)}, metav1.ListMeta{}, f), f.Media)
			}
			return c.write(http.StatusOK, &m, f.Media)
		}
	}
	return c.unmeasured("its device says nothing of it")
}

// unmeasured is the answer where there is no measurement: tools take it as that.
func (c *call) unmeasured(why string) error {
	e := apierrors.NewNotFound(c.res.GroupResource(), c.name)
	e.ErrStatus.Message += ": it was not measured: " + why
	return e
}

// asked returns the node whose device knows what an object uses, "" where nobody
// does. A silent device is not asked: its answer would only be waited for.
func asked(snap state.Snapshot, o state.Object) string {
	n, ok := o.(*corev1.Node)
	if p, isPod := o.(*corev1.Pod); isPod && p.Spec.NodeName != "" && !state.Terminated(p) {
		n, ok = snap.Node(p.Spec.NodeName), true
	}
	if !ok || n == nil || state.ReadyOf(n) == corev1.ConditionUnknown {
		return ""
	}
	return n.Name
}

// A measurement is what one device has answered.
type measurement struct {
	node string
	wire.Usage
}

// measure asks devices, and returns what came in time, by name.
func (c *call) measure(nodes []string) (list []measurement) {
	ctx, cancel := context.WithTimeout(c.r.Context(), measuring)
	defer cancel()
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, measured)
	)
	for _, node := range nodes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			defer panics.Catch("usage")
			u, err := c.Metrics.Usage(ctx, node)
			if err != nil {
				c.Log.Debug("ask a device what it uses", "node", node, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			list = append(list, measurement{node, u})
		})
	}
	wg.Wait()
	sort.Slice(list, func(i, j int) bool { return list[i].node < list[j].node })
	return list
}

// pod returns the pod that a device speaks of, nil if it is not one of its own.
func (s *measurement) pod(snap state.Snapshot, u wire.PodUsage) *corev1.Pod {
	p := snap.Pod(u.Namespace, u.Name)
	if p == nil || p.UID != u.UID || p.Spec.NodeName != s.node {
		return nil
	}
	return p
}

func (s *measurement) ofNode(n *corev1.Node) metricsv1beta1.NodeMetrics {
	return metricsv1beta1.NodeMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: metav1.NewTime(s.Time.UTC())},
		Timestamp:  metav1.NewTime(s.Time.UTC()), Window: s.Window, Usage: s.Node,
	}
}

func (s *measurement) ofPod(p *corev1.Pod, u wire.PodUsage) metricsv1beta1.PodMetrics {
	m := metricsv1beta1.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels, CreationTimestamp: metav1.NewTime(s.Time.UTC())},
		Timestamp:  metav1.NewTime(s.Time.UTC()), Window: s.Window, Containers: []metricsv1beta1.ContainerMetrics{},
	}
	for _, ct := range u.Containers {
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: ct.Name, Usage: ct.Usage})
	}
	return m
}
