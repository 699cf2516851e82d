package frame

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/diagnose"
	"flotilla.dev/hub/kube/table"
	"flotilla.dev/hub/search"
	"flotilla.dev/hub/state"
)

// StatusesOf returns the choices of a list's filter by status.
func StatusesOf(list string) [][2]string {
	for _, k := range state.Kinds() {
		if how := shownAs(k); how.list == list {
			return how.statuses
		}
	}
	return nil
}

// podWords are statuses that are always suggested, even if no pod has them.
var podWords = []string{"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "OOMKilled", "Error", "Evicted",
	"ContainerCreating", "Completed", "Unknown"}

// HasOption tells whether a value is one of the options.
func HasOption(pairs [][2]string, value string) bool {
	return slices.ContainsFunc(pairs, func(p [2]string) bool { return p[0] != "" && strings.EqualFold(p[0], value) })
}

// manyHave is how many values an error names.
const manyHave = 6

// known tells, for keys with few values, whether a value exists, and which values do.
func (a *Request) known(list string) search.Known {
	return func(key, value string) (bool, []string) {
		if key == "condition" {
			value, _, _ = strings.Cut(value, "=")
		}
		switch key {
		case "node":
			if a.Node(value) != nil {
				return true, nil
			}
		case "status":
			if HasOption(StatusesOf(list), value) || list == search.Pods &&
				slices.ContainsFunc(podWords, func(w string) bool { return strings.EqualFold(w, value) }) {
				return true, nil
			}
		case "site", "condition", "namespace":
		default:
			return true, nil
		}
		have := a.Values(list, key)
		if slices.ContainsFunc(have, func(v string) bool { return strings.EqualFold(v, value) }) {
			return true, nil
		}
		if key == "node" {
			have = slices.DeleteFunc(have,
				func(v string) bool { return !strings.HasPrefix(v, value[:min(2, len(value))]) })
		}
		if len(have) > manyHave && key != "status" {
			have = append(have[:manyHave], "others")
		}
		return false, have
	}
}

// listed visits the objects of a list.
func (a *Request) listed(list string, visit func(state.Object)) {
	for _, k := range state.Kinds() {
		if shownAs(k).list != list {
			continue
		}
		for o := range a.All(k, "") {
			if k != state.ReplicaSets || IsListed(o) {
				visit(o)
			}
		}
	}
}

// Values lists the values of a search key among a list's objects, sorted; statuses are in the
// menu's order.
func (a *Request) Values(list, key string) []string {
	found := map[string]bool{}
	eachOf := func(visit func(state.Object)) { a.listed(list, visit) }
	switch key {
	case "status":
		var all []string
		for _, p := range StatusesOf(list) {
			if p[0] != "" {
				all = append(all, p[0])
			}
		}
		if list == search.Pods {
			for p := range a.Pods("") {
				found[table.PodStatus(p)] = true
			}
			for _, w := range podWords {
				found[w] = true
			}
			for _, w := range slices.Sorted(maps.Keys(found)) {
				if !HasOption(PodStatuses, w) {
					all = append(all, w)
				}
			}
		}
		return all
	case "site":
		for name := range a.Counts() {
			found[name] = true
		}
		for s := range a.All(state.Sites, "") {
			found[s.GetName()] = true
		}
	case "namespace":
		for ns := range a.All(state.Namespaces, "") {
			found[ns.GetName()] = true
		}
	case "node":
		for n := range a.Nodes() {
			found[n.Name] = true
		}
	case "board":
		for n := range a.Nodes() {
			found[BoardName(n)] = true
		}
	case "agent":
		for n := range a.Nodes() {
			found[n.Status.NodeInfo.KubeletVersion] = true
		}
	case "condition":
		eachOf(func(o state.Object) {
			for _, c := range diagnose.Conditions(o) {
				found[c.Type] = true
			}
		})
	case "label":
		eachOf(func(o state.Object) {
			for k := range o.GetLabels() {
				found[k] = true
			}
		})
	case "image":
		if list != search.Workloads {
			for p := range a.Pods("") {
				addImages(found, &p.Spec)
			}
			break
		}
		eachOf(func(o state.Object) { addImages(found, state.PodSpecOf(o)) })
	case "owner":
		if list == search.Pods {
			for p := range a.Pods("") {
				found[OwnerOf(a.Snapshot, p)] = true
			}
			break
		}
		eachOf(func(o state.Object) {
			if ref := metav1.GetControllerOf(o); ref != nil {
				found[strings.ToLower(ref.Kind)+"/"+ref.Name] = true
			}
		})
	}
	delete(found, "")
	return slices.Sorted(maps.Keys(found))
}

// ValuesOf lists the values of a label or a condition among a list's objects, sorted.
func (a *Request) ValuesOf(list, key, name string) []string {
	if key == "condition" {
		return []string{"False", "True", "Unknown"}
	}
	found := map[string]bool{}
	a.listed(list, func(o state.Object) {
		for key, v := range o.GetLabels() {
			if _, short, _ := strings.Cut(key, "/"); strings.EqualFold(key, name) || strings.EqualFold(short, name) {
				found[v] = true
			}
		}
	})
	return slices.Sorted(maps.Keys(found))
}

func addImages(found map[string]bool, s *corev1.PodSpec) {
	for _, c := range s.Containers {
		found[c.Image] = true
	}
	for _, c := range s.InitContainers {
		found[c.Image] = true
	}
}
