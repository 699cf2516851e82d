package incidents

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

// A replacement says where the pods are that were made for those that had to leave.
type replacement struct {
	left, made int            // pods that had to leave, and pods made for them
	at         time.Time      // when the last one was made
	on         map[string]int // pods by site; "": they wait for a node
	one        *corev1.Pod    // the first pod made
	href       string         // the page of the only pod
}

// replacedBy finds the pods that replace those which an incident of a site made leave. A node's
// history has the names of the pods that left; the name without its last part is their controller's.
func replacedBy(s state.Snapshot, i *fleet.Incident, end time.Time) (r replacement) {
	if i.Site == "" || i.Moved == nil {
		return r
	}
	left := map[string][]time.Time{} // by namespace and controller
	for n := range s.NodesIn(i.Site) {
		rec := s.Record(n.Name)
		if rec == nil {
			continue
		}
		for _, e := range rec.Evicted {
			cut := strings.LastIndexByte(e.Pod, '-')
			if cut < 0 || e.At.Time.Before(i.Since.Time) || e.At.After(end) {
				continue
			}
			left[e.Pod[:cut]] = append(left[e.Pod[:cut]], e.At.Time)
			r.left++
		}
	}
	made := map[string][]*corev1.Pod{}
	for p := range s.Pods("") {
		ref := metav1.GetControllerOfNoCopy(p)
		if ref == nil || p.DeletionTimestamp != nil {
			continue
		}
		if of := p.Namespace + "/" + ref.Name; left[of] != nil {
			made[of] = append(made[of], p)
		}
	}
	r.on = map[string]int{}
	for of, times := range left {
		slices.SortFunc(times, time.Time.Compare)
		slices.SortFunc(made[of], func(x, y *corev1.Pod) int {
			return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), strings.Compare(x.Name, y.Name))
		})
		for _, p := range made[of] {
			if len(times) > 0 && !p.CreationTimestamp.Time.Before(times[0].Truncate(time.Second)) {
				times = times[1:]
				r.add(s, p)
			}
		}
	}
	if r.made == 1 {
		r.href = frame.PodHref(r.one)
	}
	return r
}

func (r *replacement) add(s state.Snapshot, p *corev1.Pod) {
	site := ""
	if n := s.Node(p.Spec.NodeName); n != nil {
		site = state.SiteOf(n)
	}
	r.on[site]++
	r.made++
	r.at = format.Later(r.at, p.CreationTimestamp.Time)
	if r.one == nil {
		r.one = p
	}
}

// mostSites is how many sites a line names if there are two more at least.
const mostSites = 3

// text is such as "5 pods were made for the 6 that had to leave: 4 on oslo, 1 without a node".
func (r *replacement) text() string {
	var parts []string
	sites := slices.SortedFunc(maps.Keys(r.on), func(x, y string) int {
		return cmp.Or(r.on[y]-r.on[x], strings.Compare(x, y))
	})
	sites = slices.DeleteFunc(sites, func(site string) bool { return site == "" })
	for n, site := range sites {
		if n == mostSites && len(sites) > n+1 {
			others := 0
			for _, site := range sites[n:] {
				others += r.on[site]
			}
			parts = append(parts, fmt.Sprintf("%d on %s", others, format.Plural(len(sites)-n, "other site")))
			break
		}
		parts = append(parts, fmt.Sprintf("%d on %s", r.on[site], site))
	}
	if n := r.on[""]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d without a node", n))
	}
	where := strings.Join(parts, ", ")
	switch {
	case r.left == 1 && r.one.Spec.NodeName == "":
		return "Pod " + r.one.Name + " was made for it, and has no node"
	case r.left == 1:
		return "Pod " + r.one.Name + " was made for it, on " + r.one.Spec.NodeName
	case r.made == 1:
		return fmt.Sprintf("1 pod was made for the %d that had to leave: %s", r.left, where)
	case r.made == r.left:
		return fmt.Sprintf("%d pods were made for those that had to leave: %s", r.made, where)
	}
	return fmt.Sprintf("%d pods were made for the %d that had to leave: %s", r.made, r.left, where)
}
