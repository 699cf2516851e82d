package kube

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/hub/kube/resource"
)

// A usageRow is what a row of a table of measurements shows.
type usageRow struct {
	of     metav1.ObjectMeta
	usage  corev1.ResourceList
	window time.Duration
	whole  runtime.Object
}

// usageTable lays measurements out as the metrics server does.
func usageTable(rows []usageRow, m metav1.ListMeta, f resource.Form) runtime.Object {
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()}, ListMeta: m, Rows: []metav1.TableRow{},
		ColumnDefinitions: []metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: "Name of what was measured."},
			{Name: "cpu", Type: "string", Format: "quantity"}, {Name: "memory", Type: "string", Format: "quantity"},
			{Name: "Window", Type: "string", Format: "duration", Description: "How long was measured."},
		},
	}
	for _, r := range rows {
		row := metav1.TableRow{Cells: []any{r.of.Name, r.usage.Cpu().String(), r.usage.Memory().String(), r.window.String()}}
		switch f.Include {
		case metav1.IncludeMetadata:
			row.Object = runtime.RawExtension{Object: &metav1.PartialObjectMetadata{
				TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()}, ObjectMeta: r.of,
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

// podRow sums up a pod's containers.
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

// usageRows are the rows of a list.
func usageRows[T any](items []T, row func(T) usageRow) (rows []usageRow) {
	for _, item := range items {
		rows = append(rows, row(item))
	}
	return rows
}

// byName compares what was measured by namespace and name.
func byName(a, b *metav1.ObjectMeta) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
