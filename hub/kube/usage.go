package kube

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sort"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

const (
	// measureTimeout is how long devices may take to answer. A measurement takes two seconds. Later
	// answers are ignored.
	measureTimeout = 8 * time.Second
	// maxMeasured is the number of concurrent requests to devices.
	maxMeasured = 2000
)

// usage answers the current usage of devices and their pods. Nothing is measured in advance: each
// request asks its devices.
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
	// Selectors select nodes or pods, not their metrics.
	_, sel, err := c.options(about)
	if err != nil {
		return err
	}
	var nodes []string
	for o := range c.view.Walk(snap, sel, "", "") {
		if n := nodeOf(snap, o); n != "" {
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

// usageOf answers the usage of one node or pod.
func (c *call) usageOf(snap state.Snapshot, about state.Kind, f resource.Form) error {
	o := snap.Get(state.Key{Kind: about, Namespace: c.namespace, Name: c.name})
	if o == nil {
		return c.missing()
	}
	node := nodeOf(snap, o)
	if node == "" {
		return c.notMeasured("it is not running, or its device is silent")
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), measureTimeout)
	defer cancel()
	u, err := c.Metrics.Usage(ctx, node)
	if err != nil {
		return c.notMeasured(err.Error())
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
	return c.notMeasured("its device did not report it")
}

// notMeasured answers that there is no measurement, in the form that kubectl top expects.
func (c *call) notMeasured(why string) error {
	e := apierrors.NewNotFound(c.res.GroupResource(), c.name)
	e.ErrStatus.Message += ": it was not measured: " + why
	return e
}

// nodeOf returns the node whose device can measure an object. It returns "" if the object has no
// node, or if the device is silent, because the request would wait in vain.
func nodeOf(snap state.Snapshot, o state.Object) string {
	n, ok := o.(*corev1.Node)
	if p, isPod := o.(*corev1.Pod); isPod && p.Spec.NodeName != "" && !state.Terminated(p) {
		n, ok = snap.Node(p.Spec.NodeName), true
	}
	if !ok || n == nil || state.ReadyOf(n) == corev1.ConditionUnknown {
		return ""
	}
	return n.Name
}

// A measurement is one device's answer.
type measurement struct {
	node string
	wire.Usage
}

// measure sends requests to devices, and returns the answers that arrived in time, sorted by name.
func (c *call) measure(nodes []string) (list []measurement) {
	ctx, cancel := context.WithTimeout(c.r.Context(), measureTimeout)
	defer cancel()
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		slots = make(chan struct{}, maxMeasured)
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

// pod returns the pod that a device's answer names, or nil if the pod is not on that device.
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
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, Labels: p.Labels,
			CreationTimestamp: metav1.NewTime(s.Time.UTC())},
		Timestamp: metav1.NewTime(s.Time.UTC()), Window: s.Window, Containers: []metricsv1beta1.ContainerMetrics{},
	}
	for _, ct := range u.Containers {
		m.Containers = append(m.Containers, metricsv1beta1.ContainerMetrics{Name: ct.Name, Usage: ct.Usage})
	}
	return m
}

// A usageRow is a table's row about one measurement.
type usageRow struct {
	of     metav1.ObjectMeta
	usage  corev1.ResourceList
	window time.Duration
	whole  runtime.Object
}

// usageTable returns a table with the columns of metrics-server.
func usageTable(rows []usageRow, m metav1.ListMeta, f resource.Form) runtime.Object {
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()}, ListMeta: m,
		Rows: []metav1.TableRow{},
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: "Name of the measured node or pod."},
			{Name: "cpu", Type: "string", Format: "quantity"}, {Name: "memory", Type: "string", Format: "quantity"},
			{Name: "Window", Type: "string", Format: "duration", Description: "Time over which the usage was measured."},
		},
	}
	for _, r := range rows {
		row := metav1.TableRow{Cells: []any{r.of.Name, r.usage.Cpu().String(), r.usage.Memory().String(), r.window.String()}}
		switch f.Include {
		case metav1.IncludeMetadata:
			row.Object = runtime.RawExtension{Object: &metav1.PartialObjectMetadata{
				TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()},
				ObjectMeta: r.of,
			}}
		case metav1.IncludeObject:
			row.Object = runtime.RawExtension{Object: r.whole}
		}
		t.Rows = append(t.Rows, row)
	}
	return f.Versioned(t)
}

func nodeRow(m metricsv1beta1.NodeMetrics) usageRow {
	m.TypeMeta = metav1.TypeMeta{Kind: "NodeMetrics", APIVersion: metricsv1beta1.SchemeGroupVersion.String()}
	return usageRow{m.ObjectMeta, m.Usage, m.Window.Duration, &m}
}

// podRow adds up a pod's containers.
func podRow(m metricsv1beta1.PodMetrics) usageRow {
	m.TypeMeta = metav1.TypeMeta{Kind: "PodMetrics", APIVersion: metricsv1beta1.SchemeGroupVersion.String()}
	r := usageRow{m.ObjectMeta, corev1.ResourceList{}, m.Window.Duration, &m}
	for _, c := range m.Containers {
		for name, q := range c.Usage {
			sum := r.usage[name]
			sum.Add(q)
			r.usage[name] = sum
		}
	}
	return r
}

// usageRows returns the rows of a list.
func usageRows[T any](items []T, row func(T) usageRow) (rows []usageRow) {
	for _, item := range items {
		rows = append(rows, row(item))
	}
	return rows
}

// byName compares measurements by namespace and name.
func byName(a, b *metav1.ObjectMeta) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
