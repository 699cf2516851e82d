package state_test

import (
	"fmt"
	"maps"
	"math/rand"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// FuzzIndexes compares every index with a full count after random changes.
func FuzzIndexes(f *testing.F) {
	for seed := range int64(20) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		r := rand.New(rand.NewSource(seed))
		s := state.Empty("x", noon)
		for range 60 {
			before := full(s)
			next, _ := state.Apply(s, []state.Change{anything(r)})
			if again := full(s); again != before {
				t.Fatalf("Apply has changed the old snapshot to\n%s\nit was\n%s", again, before)
			}
			s = next
			if got, want := indexed(s), full(s); got != want {
				t.Fatalf("the indexes have\n%s\nbut the tables have\n%s", got, want)
			}
		}
		var objects []state.Object
		for _, k := range state.Kinds() {
			objects = slices.AppendSeq(objects, s.All(k, ""))
		}
		if got := indexed(state.Load(state.Empty("x", noon), objects, s.Revision)); got != full(s) {
			t.Fatalf("the loaded snapshot has\n%s\nwant\n%s", got, full(s))
		}
		empty := state.Empty("x", noon)
		l := state.Loading(empty)
		for range 2 { // in any order, in batches, and a second time as replacements
			r.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
			l.Add(objects[:len(objects)/2])
			l.Add(objects[len(objects)/2:])
		}
		if got := indexed(l.Loaded(s.Revision)); got != full(s) {
			t.Fatalf("the snapshot loaded out of order has\n%s\nwant\n%s", got, full(s))
		}
		if got := full(empty); got != full(state.Empty("x", noon)) {
			t.Fatalf("the Loader has changed the original snapshot to\n%s", got)
		}
	})
}

// indexed describes the fleet from the snapshot's indexes.
func indexed(s state.Snapshot) string {
	w := &words{}
	for i := range s.Len(state.Nodes) {
		w.say("node", s.NodeAt(i).Name)
	}
	for i := range 5 {
		node, site := fmt.Sprint("n", i), fmt.Sprint("s", i)
		if i == 4 {
			node = ""
		} else if u := s.Usage(node); u.Pods > 0 {
			w.say("usage", node, u.Pods, u.Requests.Cpu().MilliValue(), u.Ports)
		}
		for p := range s.PodsOn(node) {
			w.say("on", node, p.Name, p.ResourceVersion)
		}
		for n := range s.NodesIn(site) {
			w.say("in", site, n.Name, n.ResourceVersion)
		}
		for n := range s.Waiting(site) {
			w.say("waits", site, n.Name, n.ResourceVersion)
		}
		for p := range s.PodsUsingClaim("default", fmt.Sprint("claim", i)) {
			w.say("claims", i, p.Name, p.ResourceVersion)
		}
		for v := range s.VolumesOn(node) {
			w.say("volume", node, v.Name, v.ResourceVersion)
		}
		for o := range s.Owned(types.UID(fmt.Sprint("owner", i)), state.Pods) {
			w.say("owned", i, o.GetName(), o.GetResourceVersion())
		}
	}
	for site, c := range s.Counts() {
		w.say("count", site, c)
	}
	w.say("sites", s.Sites())
	for o := range s.All(state.Pods, "") {
		if o := s.ByUID(o.GetUID()); o != nil {
			w.say("uid", o.GetUID(), o.GetName(), o.GetResourceVersion())
		}
	}
	for p := range s.AntiAffinityPods() {
		w.say("repels", p.Name, p.ResourceVersion)
	}
	for p := range s.AffinityPods() {
		w.say("leans", p.Name, p.ResourceVersion)
	}
	if lowest, ok := s.LowestPriority(); ok {
		w.say("lowest", lowest)
	}
	for n := range s.WithoutBlock() {
		w.say("bare", n.Name, n.ResourceVersion)
	}
	for _, p := range ranges {
		for b, nodes := range s.Overlapping(p) {
			for _, n := range slices.Sorted(slices.Values(nodes)) {
				w.say("overlaps", p, b, n)
			}
		}
		all := s.Blocks(p, p.Bits()+2)
		for i := range all.Len() {
			w.say("block in", p, all.At(i))
		}
	}
	return w.String()
}

// full describes the fleet in the same form from the snapshot's tables.
func full(s state.Snapshot) string {
	w := &words{}
	usage, counts := map[string]*state.Usage{}, map[string]state.SiteCount{}
	lowest, placed := int32(100), false
	for p := range s.Pods("") {
		w.say("on", p.Spec.NodeName, p.Name, p.ResourceVersion)
		w.say("uid", p.UID, p.Name, p.ResourceVersion)
		for _, ref := range p.OwnerReferences {
			w.say("owned", strings.TrimPrefix(string(ref.UID), "owner"), p.Name, p.ResourceVersion)
		}
		if p.Spec.NodeName == "" || state.Terminated(p) {
			continue
		}
		placed, lowest = true, min(lowest, *p.Spec.Priority)
		u := usage[p.Spec.NodeName]
		if u == nil {
			u = &state.Usage{Requests: corev1.ResourceList{}}
			usage[p.Spec.NodeName] = u
		}
		u.Pods++
		cpu := u.Requests[corev1.ResourceCPU]
		cpu.Add(*p.Spec.Containers[0].Resources.Requests.Cpu())
		u.Requests[corev1.ResourceCPU] = cpu
		u.Ports = append(u.Ports, state.HostPorts(p)...)
		if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil &&
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			w.say("repels", p.Name, p.ResourceVersion)
		} else if a != nil {
			w.say("leans", p.Name, p.ResourceVersion)
		}
	}
	if placed {
		w.say("lowest", lowest)
	}
	for node, u := range usage {
		w.say("usage", node, u.Pods, u.Requests.Cpu().MilliValue(), u.Ports)
	}
	for p := range s.Pods("") {
		for i := range 5 {
			if slices.Contains(slices.Collect(state.ClaimsOf(p)), fmt.Sprint("claim", i)) {
				w.say("claims", i, p.Name, p.ResourceVersion)
			}
		}
	}
	for v := range state.Each[*corev1.PersistentVolume](s, state.Volumes, "") {
		w.say("volume", state.NodeOfVolume(v), v.Name, v.ResourceVersion)
	}
	held := map[netip.Prefix]bool{}
	for n := range s.Nodes() {
		site := state.SiteOf(n)
		w.say("node", n.Name)
		w.say("in", site, n.Name, n.ResourceVersion)
		c := counts[site]
		c.Nodes++
		rec := s.Record(n.Name)
		switch reported := rec != nil && rec.Boot != ""; {
		case !reported: // whatever its Ready condition is
			c.NeverSeen++
		case state.ReadyOf(n) == corev1.ConditionTrue:
			c.Ready++
		default:
			c.NotReady++
		}
		if state.Waits(n) {
			w.say("waits", site, n.Name, n.ResourceVersion)
			c.Waiting++
		}
		counts[site] = c
		if !state.HasBlock(n) {
			w.say("bare", n.Name, n.ResourceVersion)
		}
		for _, b := range state.BlocksOf(n) {
			for _, p := range ranges {
				if p.Overlaps(b) {
					w.say("overlaps", p, b, n.Name)
				}
				if b.Bits() == p.Bits()+2 && p.Contains(b.Addr()) && !held[b] {
					w.say("block in", p, b)
				}
			}
			held[b] = true
		}
	}
	var all state.SiteTally
	for site, c := range counts {
		w.say("count", site, c)
		if c.Ready+c.NotReady > 0 {
			all.Counting++
		}
		if c.Full() {
			all.Full++
		}
	}
	w.say("sites", all)
	return w.String()
}

// words counts facts by their text.
type words map[string]int

func (w *words) say(words ...any) {
	if *w == nil {
		*w = map[string]int{}
	}
	(*w)[fmt.Sprintln(words...)]++
}

func (w *words) String() string {
	var b strings.Builder
	for _, line := range slices.Sorted(maps.Keys(*w)) {
		fmt.Fprint(&b, (*w)[line], " ", line)
	}
	return b.String()
}

var ranges = []netip.Prefix{
	netip.MustParsePrefix("10.64.0.0/14"), netip.MustParsePrefix("10.64.0.0/22"), netip.MustParsePrefix("10.64.1.0/24"),
	netip.MustParsePrefix("10.64.1.64/26"),
	netip.MustParsePrefix("10.64.1.7/32"), netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("fd00::/62"),
	netip.MustParsePrefix("::/0"),
}

func anything(r *rand.Rand) state.Change {
	i, j := r.Intn(4), r.Intn(4)
	if r.Intn(5) == 0 {
		rec := &state.Record{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Boot: []string{"", "b", "c"}[r.Intn(3)]}
		if r.Intn(5) == 0 {
			return state.Remove(rec, "")
		}
		return state.Put(rec, "")
	}
	if r.Intn(6) == 0 {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v", j)}}
		if i > 0 {
			v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: []string{fmt.Sprint("n", i)}}}}}}}
		}
		if r.Intn(4) == 0 {
			return state.Remove(v, "")
		}
		return state.Put(v, "")
	}
	if r.Intn(2) == 0 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("node", i)),
			Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("s", j)}}}
		n.CreationTimestamp = metav1.NewTime(noon.Add(time.Duration(r.Intn(3)) * time.Second))
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: []corev1.ConditionStatus{"True",
			"False", "Unknown"}[r.Intn(3)], LastTransitionTime: metav1.NewTime(noon.Add(time.Duration(r.Intn(9)) * time.Second))}}
		if r.Intn(3) == 0 {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}}
		}
		if r.Intn(4) > 0 {
			n.Spec.PodCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(r.Intn(5)), byte(r.Intn(256))}),
				[]int{14, 16, 22, 23, 24, 24, 24, 26, 28, 32}[r.Intn(10)]).Masked().String()
			if n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}; r.Intn(4) == 0 {
				n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, fmt.Sprintf("fd00:0:0:%d::/64", r.Intn(3)))
			}
		}
		if r.Intn(5) == 0 {
			return state.Remove(n, "")
		}
		return state.Put(n, "")
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", r.Intn(8))}}
	if p.UID = types.UID("pod" + p.Name); r.Intn(3) == 0 {
		p.UID += "again"
	}
	if r.Intn(2) == 0 {
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(fmt.Sprint("owner", i))}}
	}
	if j > 0 {
		p.Spec.NodeName = fmt.Sprint("n", i)
	}
	for range r.Intn(3) {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: fmt.Sprint("claim", r.Intn(4))}}})
	}
	p.Spec.Priority = new(int32(r.Intn(3)))
	p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(r.Intn(3)), resource.DecimalSI)}}}}
	if r.Intn(3) == 0 {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}}
	}
	switch term := (corev1.PodAffinityTerm{TopologyKey: "k"}); r.Intn(8) {
	case 0:
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
	case 1:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: term}}}}
	case 2, 3:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term}}}
	}
	if r.Intn(4) == 0 {
		p.Status.Phase = corev1.PodSucceeded
	}
	if r.Intn(5) == 0 {
		return state.Remove(p, "")
	}
	return state.Put(p, "")
}

func TestNodesAreInOrderOfFailureAndAge(t *testing.T) {
	s := state.Empty("x", noon)
	for i, name := range []string{"c", "a", "b"} {
		at := metav1.NewTime(noon.Add(-time.Duration(i) * time.Millisecond))
		failed := metav1.NewTime(noon.Add(-time.Duration(i) * time.Second))
		s, _ = state.Apply(s, []state.Change{state.Put(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: at},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
				Status: corev1.ConditionFalse, LastTransitionTime: failed}}},
		}, "")})
	}
	for name, walk := range map[string]func(func(*corev1.Node) bool){"Waiting": s.Waiting(state.DefaultSite),
		"WithoutBlock": s.WithoutBlock()} {
		var got string
		for n := range walk {
			got += n.Name
		}
		if got != "bac" {
			t.Errorf("the order of %s is %s, want bac", name, got)
		}
	}
}
