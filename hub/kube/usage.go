package kube

import (
	"cmp"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"flotilla.dev/hub/state"
)

// usage answers what the devices and their pods use, as last measured. It is
// looked up by the objects that it is about, so that selectors select by those.
func (c *call) usage() error {
	f, err := negotiate(c.r, c.res.media())
	if err != nil {
		return err
	}
	about := state.Nodes
	if c.res.Kind == "PodMetrics" {
		about = state.Pods
	}
	snap := c.Fleet.Snapshot()
	if c.verb == "get" {
		if snap.Get(state.Key{Kind: about, Namespace: c.namespace, Name: c.name}) == nil {
			return c.missing()
		}
		for _, m := range c.Metrics.NodeMetrics() {
			if about == state.Nodes && m.Name == c.name {
				m.TypeMeta = c.res.typeMeta()
				return c.write(http.StatusOK, &m, f.media)
			}
		}
		for _, m := range c.Metrics.PodMetrics() {
			if about == state.Pods && m.Namespace == c.namespace && m.Name == c.name {
				m.TypeMeta = c.res.typeMeta()
				return c.write(http.StatusOK, &m, f.media)
			}
		}
		return c.missing()
	}
	_, sel, err := c.options(about)
	if err != nil {
		return err
	}
	wanted := func(m *metav1.ObjectMeta) bool {
		of := snap.Get(state.Key{Kind: about, Namespace: m.Namespace, Name: m.Name})
		if of != nil && m.Labels == nil {
			m.Labels = of.GetLabels()
		}
		return of != nil && sel.matches(of)
	}
	t := metav1.TypeMeta{Kind: c.res.Kind + "List", APIVersion: c.res.GroupVersion().String()}
	if about == state.Nodes {
		list := &metricsv1beta1.NodeMetricsList{TypeMeta: t, Items: []metricsv1beta1.NodeMetrics{}}
		for _, m := range c.Metrics.NodeMetrics() {
			if wanted(&m.ObjectMeta) {
				list.Items = append(list.Items, m)
			}
		}
		slices.SortFunc(list.Items, func(a, b metricsv1beta1.NodeMetrics) int { return cmp.Compare(a.Name, b.Name) })
		return c.write(http.StatusOK, list, f.media)
	}
	list := &metricsv1beta1.PodMetricsList{TypeMeta: t, Items: []metricsv1beta1.PodMetrics{}}
	for _, m := range c.Metrics.PodMetrics() {
		if wanted(&m.ObjectMeta) {
			list.Items = append(list.Items, m)
		}
	}
	slices.SortFunc(list.Items, func(a, b metricsv1beta1.PodMetrics) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return c.write(http.StatusOK, list, f.media)
}

func (r *resource) typeMeta() metav1.TypeMeta {
	return metav1.TypeMeta{Kind: r.Kind, APIVersion: r.GroupVersion().String()}
}
