//lint:file-ignore SA1019 clients read Endpoints

package publish

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

var start = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func at(name, ns string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name, Namespace: ns} }

func hub(address string) *state.Advertisement {
	return &state.Advertisement{ObjectMeta: at(state.HubName, ""), Address: address, Port: 8443, Root: "PEM"}
}

// settled applies changes and the decider's plans until the decider settles. It asks only about the
// changes.
func settled(t *testing.T, s state.Snapshot, changes ...state.Change) state.Snapshot {
	t.Helper()
	s, done := state.Apply(s, changes)
	for range 3 {
		plan := Decider{}.Decide(s, state.Touched(Decider{}.Touches, done), start)
		if len(plan.Changes) == 0 {
			if all := (Decider{}).Decide(s, Decider{}.Subjects(s), start); len(all.Changes) > 0 {
				t.Errorf("asked about everything, the decider wants %v", all.Changes)
			}
			return s
		}
		s, done = state.Apply(s, plan.Changes)
	}
	t.Fatal("the decider does not settle")
	return s
}

func with(t *testing.T, objects ...state.Object) state.Snapshot {
	t.Helper()
	var changes []state.Change
	for _, o := range objects {
		changes = append(changes, state.Put(o, ""))
	}
	return settled(t, state.Empty("hub", start), changes...)
}

func ns(name string) *corev1.Namespace { return &corev1.Namespace{ObjectMeta: at(name, "")} }

// all returns the keys of all objects but namespaces and the advertisement.
func all(s state.Snapshot) (keys []string) {
	for _, k := range state.Kinds() {
		if k == state.Namespaces || k == state.Advertisements {
			continue
		}
		for o := range s.All(k, "") {
			keys = append(keys, state.KeyOf(o).String())
		}
	}
	slices.Sort(keys)
	return keys
}

func expect(t *testing.T, s state.Snapshot, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := all(s); !slices.Equal(got, want) {
		t.Errorf("there are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func of(ns string) []string {
	return []string{"serviceaccounts/" + ns + "/default", "configmaps/" + ns + "/kube-root-ca.crt"}
}

var kubernetes = []string{"services/default/kubernetes", "endpoints/default/kubernetes",
	"endpointslices/default/kubernetes"}

func TestEveryNamespaceHasItsServiceAccountAndCA(t *testing.T) {
	s := with(t, hub("10.0.0.5"), ns("default"), ns("shop"))
	expect(t, s, slices.Concat(of("default"), of("shop"), kubernetes)...)
	s = settled(t, s, state.Put(ns("new"), ""))
	expect(t, s, slices.Concat(of("default"), of("shop"), of("new"), kubernetes)...)
	s = settled(t, s, state.Remove(ns("shop"), ""))
	// its ConfigMaps stay: package workload empties namespaces
	expect(t, s, slices.Concat(of("default"), of("new"), kubernetes, of("shop")[1:])...)
}

func TestADeletedNamespaceGetsNothing(t *testing.T) {
	s := with(t, hub("10.0.0.5"), ns("shop"))
	dying := ns("shop")
	dying.DeletionTimestamp = &metav1.Time{Time: start}
	account, root := state.Key{Kind: state.ServiceAccounts, Namespace: "shop", Name: "default"},
		state.Key{Kind: state.ConfigMaps, Namespace: "shop", Name: "kube-root-ca.crt"}
	s = settled(t, s, state.Put(dying, ""), state.Remove(s.Get(account), ""), state.Remove(s.Get(root), ""))
	expect(t, s)
}

func TestDeletedAndChangedObjectsAreRestored(t *testing.T) {
	s := with(t, hub("10.0.0.5"), ns("default"))
	want := all(s)
	for _, text := range want {
		kind, rest, _ := strings.Cut(text, "/")
		_, name, _ := strings.Cut(rest, "/")
		was := s.Get(state.Key{Kind: state.Kind(kind), Namespace: "default", Name: name})
		s = settled(t, s, state.Remove(was, ""))
		is := s.Get(state.KeyOf(was))
		if is == nil || is.GetUID() == was.GetUID() {
			t.Errorf("%s is not published again: %v", text, is)
		}
	}
	expect(t, s, want...)

	changed := s.Get(state.Key{Kind: state.ConfigMaps, Namespace: "default",
		Name: "kube-root-ca.crt"}).DeepCopyObject().(*corev1.ConfigMap)
	changed.Data, changed.BinaryData, changed.Immutable, changed.Labels = map[string]string{"ca.crt": "mine"},
		map[string][]byte{"x": {1}}, new(true), map[string]string{"a": "b"}
	s = settled(t, s, state.Put(changed, ""))
	is := s.Get(state.KeyOf(changed)).(*corev1.ConfigMap)
	if len(is.Data) != 1 || is.Data["ca.crt"] != "PEM" || is.BinaryData != nil || is.Immutable != nil ||
		is.UID != changed.UID || is.Labels["a"] != "b" {
		t.Errorf("the restored object is %+v", is)
	}
}

func TestTheServicePointsToTheHub(t *testing.T) {
	key := func(k state.Kind) state.Key { return state.Key{Kind: k, Namespace: "default", Name: "kubernetes"} }
	s := with(t, ns("default"))
	expect(t, s, of("default")[0])
	for _, tt := range []struct {
		address string
		family  corev1.IPFamily
		form    discoveryv1.AddressType
	}{{"10.0.0.5", corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4}, {"fd00::5", corev1.IPv6Protocol,
		discoveryv1.AddressTypeIPv6}, {"10.0.0.6", corev1.IPv4Protocol, discoveryv1.AddressTypeIPv4}} {
		s = settled(t, s, state.Put(hub(tt.address), ""))
		svc := s.Get(key(state.Services)).(*corev1.Service)
		if p := svc.Spec.Ports; svc.Spec.ClusterIP != tt.address || svc.Spec.IPFamilies[0] != tt.family || len(p) != 1 ||
			p[0].Port != 8443 || svc.Labels["component"] != "apiserver" || svc.Labels["provider"] != "kubernetes" {
			t.Errorf("%s: the service is %+v", tt.address, svc)
		}
		ep := s.Get(key(state.Endpoints)).(*corev1.Endpoints)
		if got := fmt.Sprint(ep.Subsets[0].Addresses[0].IP, " ", ep.Subsets[0].Ports[0].Port); got != tt.address+" 8443" {
			t.Errorf("the endpoints are %s", got)
		}
		if e := s.Get(key(state.EndpointSlices)).(*discoveryv1.EndpointSlice); e.AddressType != tt.form ||
			e.Endpoints[0].Addresses[0] != tt.address || *e.Ports[0].Port != 8443 ||
			e.Labels[discoveryv1.LabelServiceName] != "kubernetes" {
			t.Errorf("the slice is %+v", e)
		}
	}
	for _, address := range []string{"", "gateway.local", "10.0.0.5:8443"} {
		s = settled(t, s, state.Put(hub(address), ""))
		expect(t, s, of("default")...)
	}
}

func TestObjectsThatUsersCannotCreateAreRemoved(t *testing.T) {
	s := with(t, hub("10.0.0.5"), ns("default"), &corev1.ServiceAccount{ObjectMeta: at("robot", "default")},
		&corev1.Service{ObjectMeta: at("web", "default")},
		&corev1.Service{ObjectMeta: at("kubernetes", "default"), Spec: corev1.ServiceSpec{ExternalName: "evil"}},
		&corev1.ServiceAccount{ObjectMeta: at("default", "gone")}, &discoveryv1.EndpointSlice{ObjectMeta: at("x", "gone")},
		&corev1.ServiceAccount{ObjectMeta: at("default", "default"), Secrets: []corev1.ObjectReference{{Name: "token"}},
			AutomountServiceAccountToken: new(true)})
	expect(t, s, slices.Concat(of("default"), kubernetes)...)
	a := s.Get(state.Key{Kind: state.ServiceAccounts, Namespace: "default", Name: "default"}).(*corev1.ServiceAccount)
	if a.Secrets != nil || *a.AutomountServiceAccountToken {
		t.Errorf("the account is %+v", a)
	}
	if svc := s.Get(state.Key{Kind: state.Services, Namespace: "default",
		Name: "kubernetes"}).(*corev1.Service); svc.Spec.ExternalName != "" {
		t.Errorf("the service is %+v", svc)
	}
}

// TestTouchesEveryChangeOfPublishedObjects changes published objects one at a time, like a user or
// a restored database. The incremental decision equals that of a start.
func TestTouchesEveryChangeOfPublishedObjects(t *testing.T) {
	s := with(t, hub("10.0.0.5"), ns("default"), ns("shop"))
	for i := range 40 {
		var o state.Object
		switch i % 5 {
		case 0:
			o = ns(fmt.Sprint("n", i))
		case 1:
			o = &corev1.ServiceAccount{ObjectMeta: at(fmt.Sprint("a", i), []string{"shop", "gone"}[i%2])}
		case 2:
			o = &corev1.ConfigMap{ObjectMeta: at("kube-root-ca.crt", "shop"), Data: map[string]string{"x": fmt.Sprint(i)}}
		case 3:
			o = hub([]string{"10.0.0.5", "", "10.0.0.9"}[i%3])
		case 4:
			o = &corev1.Endpoints{ObjectMeta: at("kubernetes", "default")}
		}
		o.SetUID(types.UID(fmt.Sprint("uid-", i)))
		s = settled(t, s, state.Put(o, ""))
	}
}
