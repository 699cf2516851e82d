package inventory

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const startup = time.Minute

func list(t *testing.T, text string) List {
	t.Helper()
	l, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestAListIsReadStrictly(t *testing.T) {
	for _, c := range []struct{ rule, text, wrong string }{
		{"YAML", "- name: pi-1\n  site: oslo\n- name: pi-2\n  state: shutdown\n- {name: pi-3, state: gone}\n", ""},
		{"JSON", `[{"name": "pi-1", "site": "oslo", "state": "present"}, {"name": "pi-2", "state": "shutdown"}, {"name": "pi-3", "state": "gone"}]`, ""},
		{"an empty file is refused", "", "it lists no machine"},
		{"an empty list is refused", "[]", "it lists no machine"},
		{"a list of comments is refused", "# machines\n", "it lists no machine"},
		{"a misspelt field", "- name: pi-1\n  sate: gone\n", "field sate not found"},
		{"a misspelt state", "- name: pi-1\n  state: gnoe\n", `entry 1: state of pi-1 is "gnoe"; write present, shutdown or gone`},
		{"an entry without a name", "- name: pi-1\n- site: oslo\n", "entry 2: it has no name"},
		{"a name that no node can have", "- name: Pi_1\n", `entry 1: "Pi_1" is not a valid node name`},
		{"one machine twice", "- name: pi-1\n- name: pi-1\n  state: gone\n", "entry 2: pi-1 is listed twice"},
		{"one field twice", "- name: pi-1\n  name: pi-2\n", "already defined"},
		{"an invalid site name", "- name: pi-1\n  site: a b\n", `"a b" is not a valid site name`},
		{"not a list", "pi-1: present\n", "it is not a list of machines"},
		{"a page of HTML", "<!doctype html><html><body>Sign in</body></html>", "it is not a list of machines"},
		{"a second document", "- name: pi-1\n---\n- name: pi-2\n", "there is more after the list"},
		{"half a JSON list", `[{"name": "pi-1"}, {"name": "pi`, "it is not a list of machines"},
		{"more than the limit", strings.Repeat("#", MaxSize) + "\n- name: a\n", "more than 4194304 bytes"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			l, err := Parse([]byte(c.text))
			switch {
			case c.wrong == "":
				a, _ := l.Of("pi-1")
				b, _ := l.Of("pi-2")
				d, ok := l.Of("pi-3")
				if err != nil || l.Len() != 3 || a != (Machine{"pi-1", "oslo", Present}) || b.State != Shutdown ||
					d.State != Gone || !ok {
					t.Errorf("%v, pi-1 is %v, pi-2 %v, pi-3 %v", err, a, b, d)
				}
			case err == nil || !strings.Contains(err.Error(), c.wrong):
				t.Errorf("the error is %v, want %q", err, c.wrong)
			case l.Len() != 0:
				t.Errorf("a list with a mistake has %d machines", l.Len())
			}
		})
	}
}

func node(name string, ready corev1.ConditionStatus, change ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour))}}
	if ready != "" {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	}
	for _, f := range change {
		f(n)
	}
	return n
}

func off(n *corev1.Node) {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "camera", Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: TaintShutdown, Effect: corev1.TaintEffectNoSchedule})
}

func at(site string) func(*corev1.Node) {
	return func(n *corev1.Node) { metav1.SetMetaDataLabel(&n.ObjectMeta, corev1.LabelTopologyZone, site) }
}

func made(ago time.Duration) func(*corev1.Node) {
	return func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(noon.Add(-ago)) }
}

func TestChangesFromTheList(t *testing.T) {
	held := func(n *corev1.Node) { n.Finalizers = []string{"example.org/wait"} }
	for _, c := range []struct {
		rule string
		list string
		node *corev1.Node
		want string // sentence of the change; empty: no change
	}{
		{"a silent node whose machine is gone is deleted", "- {name: pi-1, state: gone}", node("pi-1", "Unknown"), "delete node pi-1: it is not ready, and the inventory says that its machine is gone"},
		{"a node that reports not ready is deleted", "- {name: pi-1, state: gone}", node("pi-1", "False"), "delete node pi-1"},
		{"a node that has never reported is deleted", "- {name: pi-1, state: gone}", node("pi-1", ""), "delete node pi-1"},
		{"a machine that is not in the list is gone", "- name: another", node("pi-1", "Unknown"), "delete node pi-1: it is not ready, and the inventory does not list its machine"},
		{"a ready node is never deleted, whatever the list says", "- {name: pi-1, state: gone}", node("pi-1", "True"), ""},
		{"a ready node that is missing in the list is not deleted", "- name: another", node("pi-1", "True"), ""},
		{"a silent node whose machine is present stays", "- name: pi-1", node("pi-1", "Unknown"), ""},
		{"a node in its startup grace period stays", "- name: another", node("pi-1", "", made(startup)), ""},
		{"after the startup grace period a node is deleted", "- name: another", node("pi-1", "", made(startup+time.Second)), "delete node pi-1"},
		{"a site's startup grace period takes precedence", "- name: another", node("pi-1", "", at("slow"), made(10*time.Minute)), ""},
		{"without a list nothing changes", "", node("pi-1", "Unknown"), ""},
		{"a missing list adds no taint", "", node("pi-1", "Unknown", off), ""},
		{"without a list a ready node still loses the taint", "", node("pi-1", "True", off), "untaint pi-1 node.cloudprovider.kubernetes.io/shutdown:NoSchedule: it is ready"},
		{"a finalizer holds a deletion", "- {name: pi-1, state: gone}", node("pi-1", "Unknown", held), "delete node pi-1"},
		{"a silent node whose machine has been shut down is tainted", "- {name: pi-1, state: shutdown}", node("pi-1", "Unknown"), "taint pi-1 node.cloudprovider.kubernetes.io/shutdown:NoSchedule"},
		{"once", "- {name: pi-1, state: shutdown}", node("pi-1", "Unknown", off), ""},
		{"a ready node is not tainted", "- {name: pi-1, state: shutdown}", node("pi-1", "True"), ""},
		{"a node that is ready again loses the taint", "- {name: pi-1, state: shutdown}", node("pi-1", "True", off), "untaint pi-1 node.cloudprovider.kubernetes.io/shutdown:NoSchedule: it is ready"},
		{"a node whose machine is present again loses the taint", "- name: pi-1", node("pi-1", "Unknown", off), "untaint pi-1 node.cloudprovider.kubernetes.io/shutdown:NoSchedule: the inventory says that its machine is present"},
		{"a node without a site gets the site of the list", "- {name: pi-1, site: oslo}", node("pi-1", "True"), "node pi-1 is on site oslo, as the inventory says"},
		{"a node with a site keeps it", "- {name: pi-1, site: oslo}", node("pi-1", "True", at("bergen")), ""},
	} {
		t.Run(c.rule, func(t *testing.T) {
			s := state.Empty("test", noon.Add(-24*time.Hour))
			slow := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "slow"}}
			slow.Spec.NodeStartupGracePeriod = &metav1.Duration{Duration: time.Hour}
			s, _ = state.Apply(s, []state.Change{state.Put(c.node, ""), state.Put(slow, "")})
			var l List
			if c.list != "" {
				l = list(t, c.list)
			}
			changes := Decide(s, l, startup, noon)
			if c.want == "" {
				if len(changes) > 0 {
					t.Fatalf("Decide wants to %s", changes[0])
				}
				return
			}
			if len(changes) != 1 || !strings.HasPrefix(changes[0].Why, c.want) || changes[0].Reason == "" {
				t.Fatalf("Decide wants %v, want %q", changes, c.want)
			}
			s, _ = state.Apply(s, changes)
			if again := Decide(s, l, startup, noon); len(again) > 0 {
				t.Errorf("a second Decide wants to %s", again[0])
			}
			n := s.Node("pi-1")
			if (n == nil) != (strings.HasPrefix(c.want, "delete") && len(c.node.Finalizers) == 0) {
				t.Errorf("afterwards the node is %v", n)
			}
			if strings.HasPrefix(c.want, "untaint") && (len(n.Spec.Taints) != 1 || n.Spec.Taints[0].Key != "camera") {
				t.Errorf("the node's taints are %v", n.Spec.Taints)
			}
		})
	}
}

func TestAStartingHubDeletesNoNode(t *testing.T) {
	l := list(t, "- name: another")
	for why, s := range map[string]state.Snapshot{
		"the hub has just started":      state.Empty("test", noon.Add(-startup)),
		"the hub stood still until now": state.Empty("test", noon.Add(-24*time.Hour)).Listen(noon.Add(-startup)),
	} {
		s, _ = state.Apply(s, []state.Change{state.Put(node("pi-1", "Unknown"), "")})
		if changes := Decide(s, l, startup, noon); len(changes) > 0 {
			t.Errorf("%s: Decide wants to %s", why, changes[0])
		}
		if changes := Decide(s, l, startup, noon.Add(time.Second)); len(changes) != 1 {
			t.Errorf("%s: after the grace period Decide wants %v", why, changes)
		}
	}
}

// BenchmarkDecide measures the work after each read, outside of the loop.
func BenchmarkDecide(b *testing.B) {
	var puts []state.Change
	var text strings.Builder
	for i := range 100_000 {
		name := fmt.Sprintf("n%06d", i)
		puts = append(puts, state.Put(node(name, "True", at("oslo")), ""))
		fmt.Fprintf(&text, "- name: %s\n", name)
	}
	s, _ := state.Apply(state.Empty("test", noon), puts)
	l, err := Parse([]byte(text.String()))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		Decide(s, l, startup, noon)
	}
}
