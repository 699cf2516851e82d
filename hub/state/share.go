package state

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// An Interner makes the objects of a fleet share equal strings and lists, up to a limit. It is for
// one goroutine.
type Interner struct {
	words map[string]string
	lists map[string]corev1.ResourceList // by content
	key   []byte
}

// Limits of an Interner: longer strings, and new ones beyond the count, are not shared.
const (
	maxInterned       = 8192
	maxInternedLength = 256
)

// Share makes an object share its strings with earlier objects. No other goroutine may have the
// object yet.
func (k *Interner) Share(o Object) {
	switch o := o.(type) {
	case *corev1.Node:
		o.Labels, o.Annotations = k.shareMap(o.Labels, o.Name), k.shareMap(o.Annotations, o.Name)
		shareWords(&o.Status, k.word)
		o.Status.Capacity, o.Status.Allocatable = k.list(o.Status.Capacity), k.list(o.Status.Allocatable)
		if c := o.Status.Conditions; cap(c) > len(c) { // drops the decoder's spare capacity
			o.Status.Conditions = append(make([]corev1.NodeCondition, 0, len(c)), c...)
		}
	case *corev1.Event:
		o.Namespace, o.Reason, o.Type = k.word(o.Namespace), k.word(o.Reason), k.word(o.Type)
		about := &o.InvolvedObject
		about.Kind, about.Namespace, about.APIVersion = k.word(about.Kind), k.word(about.Namespace), k.word(about.APIVersion)
		o.Source.Component, o.ReportingController = k.word(o.Source.Component), k.word(o.ReportingController)
	case *Record:
		o.Boot, o.AgentVersion, o.Site, o.Token = k.word(o.Boot), k.word(o.AgentVersion), k.word(o.Site), k.word(o.Token)
	}
}

// ShareStatus replaces strings that all nodes repeat (condition types, reasons and messages,
// versions, resource names, images) by the result of one.
func ShareStatus(st *corev1.NodeStatus, one func(string) string) {
	shareWords(st, one)
	st.Capacity, st.Allocatable = resources(st.Capacity, one), resources(st.Allocatable, one)
}

func shareWords(st *corev1.NodeStatus, one func(string) string) {
	for i := range st.Conditions {
		c := &st.Conditions[i]
		c.Type = corev1.NodeConditionType(one(string(c.Type)))
		c.Status = corev1.ConditionStatus(one(string(c.Status)))
		c.Reason, c.Message = one(c.Reason), one(c.Message)
	}
	n := &st.NodeInfo
	n.KernelVersion, n.OSImage, n.OperatingSystem, n.Architecture = one(n.KernelVersion), one(n.OSImage),
		one(n.OperatingSystem), one(n.Architecture)
	n.ContainerRuntimeVersion, n.KubeletVersion = one(n.ContainerRuntimeVersion), one(n.KubeletVersion)
	for _, i := range st.Images {
		for j := range i.Names {
			i.Names[j] = one(i.Names[j])
		}
	}
}

func resources(list corev1.ResourceList, one func(string) string) corev1.ResourceList {
	if list == nil {
		return nil
	}
	out := make(corev1.ResourceList, len(list))
	for name, q := range list {
		out[corev1.ResourceName(one(string(name)))] = q
	}
	return out
}

// list returns an equal list of resources: the shared one if there is one.
func (k *Interner) list(l corev1.ResourceList) corev1.ResourceList {
	if len(l) == 0 {
		return l
	}
	k.key = k.key[:0]
	for _, name := range slices.Sorted(maps.Keys(l)) {
		q := l[name]
		k.key = append(append(append(append(k.key, name...), '='), q.String()...), ' ')
	}
	if known, ok := k.lists[string(k.key)]; ok {
		return known
	}
	l = resources(l, k.word)
	if k.lists == nil {
		k.lists = map[string]corev1.ResourceList{}
	}
	if len(k.lists) < maxInterned && len(k.key) <= maxInternedLength {
		k.lists[string(k.key)] = l
	}
	return l
}

func (k *Interner) word(s string) string {
	if s == "" || len(s) > maxInternedLength {
		return s
	}
	if known, ok := k.words[s]; ok {
		return known
	}
	if k.words == nil {
		k.words = map[string]string{}
	}
	if len(k.words) < maxInterned {
		k.words[s] = s
	}
	return s
}

// shareMap shares the keys and values of a node's labels or annotations. Values that equal the
// node's name share own, because the name is unique in the fleet.
func (k *Interner) shareMap(m map[string]string, own string) map[string]string {
	out := m
	if len(m) >= 8 { // as large as a small map, which grows on the first write
		out = make(map[string]string, len(m))
	}
	for key, v := range m {
		if v == own {
			v = own // the name's own memory
		} else {
			v = k.word(v)
		}
		out[k.word(key)] = v // a map keeps the newest key string
	}
	return out
}
