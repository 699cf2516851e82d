package serve

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	jsonquick "github.com/go-json-experiment/json"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/bound"
)

// FuzzRows: what is read of a row is what encoding/json reads of it when it is mended, and what
// that refuses is refused.
func FuzzRows(f *testing.F) {
	for _, row := range []string{
		`nodes {"metadata":{"name":"a","creationTimestamp":"2026-11-24T06:45:49Z","labels":{"a":"b","c":"a"},"managedFields":[{"time":null,"fieldsV1":{"f:a":{}}}]},"spec":{"podCIDRs":["10.0.0.0/26"],"taints":[{"key":"k","effect":"NoExecute","timeAdded":"2026-11-24T06:45:49+01:00"}]},"status":{"capacity":{"cpu":"4","memory":"3884Mi","pods":110,"x":null,"y":0.5},"allocatable":{"cpu":"1500m"},"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":null,"lastTransitionTime":"2026-11-24T06:45:49.123456789Z"}],"images":[{"names":["x"],"sizeBytes":12}]}}`,
		`nodes {"metadata":{"name":"a"},"STATUS":{"Capacity":{"cpu":1e3}},"status":{"capacity":{"memory":"1\u004di"}}}`,
		`nodes {"metadata":{"name":"a"},"status":{"capacity":{"cpu":"1","cpu":"2"},"capacity":{"memory":"1"}}}`,
		`nodes {"metadata":{"name":"a","creationTimestamp":"2026-11-24T06:45:4\u0039Z"}}`,
		`nodes {"metadata":{"name":"a","creationTimestamp":"yesterday"}}`,
		`nodes {"metadata":{"name":"a","creationTimestamp":17}}`,
		`nodes {"metadata":{"name":"a","labels":{"a":1}}}`,
		`nodes {"metadata":{"name":"a","labels":{"a":"` + "\xff" + `"}}}`,
		`nodes {"metadata":{"name":"a"}} {}`,
		`nodes {"metadata":{"name":"a"`,
		`nodes null`,
		`nodes {"metadata":{"name":"a","labels":{"a":"a\u003cb\\n","b":"a"},"annotations":{},"finalizers":["x"]},"spec":{"podCIDR":"10.0.0.0/26","unschedulable":true,"taints":[{"key":"k","value":"v","effect":"NoExecute","timeAdded":null},{"key":"k\"","effect":""}]},"status":{"conditions":[{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-24T06:45:49Z","lastTransitionTime":null,"reason":"r","message":"m"}],"addresses":[{"type":"Hostname","address":"a"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"m","systemUUID":"","bootID":"","kernelVersion":"k","osImage":"o","containerRuntimeVersion":"c","kubeletVersion":"v","kubeProxyVersion":"","operatingSystem":"l","architecture":"a"},"images":[{"names":["a","b"],"sizeBytes":1}]}}`,
		`nodes {"metadata":{"name":"a","labels":{"a":"b","a":"c"},"labels":{"d":"e"}},"metadata":{"uid":"u"},"spec":{"podCIDRs":[]},"spec":{"podCIDRs":["a"],"podCIDRs":["b","c"]}}`,
		`nodes {"metadata":{"name":"a"},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"conditions":[],"images":[{"names":["a"}]}}`,
		`nodes {"metadata":{"name":"a"},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":10250}},"daemonEndpoints":{"kubeletEndpoint":{"Port":0}}}}`,
		`nodes {"metadata":{"name":"a","uid":"` + "b\x1fcdefghij" + `"}}`,
		`nodes {"metadata":{"name":"a","uid":"bcdefghijkl` + "\xe4\xb8\xad\xff" + `"}}`,
		`nodes {"metadata":{"name":"a","uid":"abcdefgh\ud800ij"},"spec":{"externalID":"\`,
		`nodes {"metadata":{"name":"a",},"spec":{}}`,
		`nodes {"metadata":{"name":"a"},"spec":{},}`,
		`nodes {"metadata":{"name":"a"}"spec":{}}`,
		`nodes {"metadata":{"name":"a","generation":12345678901234567890}}`,
		`records {"metadata":{"name":"a"},"boot":"b","pastBoots":["c"],"agentVersion":"1","enrolled":"2026-11-24T06:45:49Z","key":"k","token":"t","site":"s","given":{"labels":{"a":"b"},"taints":[{"key":"k","effect":"NoSchedule"}]},"generation":12,"digest":"d","leaseSeconds":10,"paused":true,"history":[{"at":"2026-11-24T06:45:49.000000Z","ready":"True","out":true},{"at":null,"ready":"","out":false}]}`,
		`records {"metadata":{"name":"a"},"given":null,"generation":012,"leaseSeconds":1e1}`,
		`records {"metadata":{"name":"a"},"given":{"labels":{"a":"b"}},"given":{"labels":{"c":"d"}},"generation":1234567890,"leaseSeconds":-1}`,
		`records {"metadata":{"name":"a"},"enrolled":null,"expires":"2027-01-01T00:00:00Z","transitions":["2026-11-24T06:45:49.000001Z",null],"given":{},"history":[{"at":"2026-11-24T06:45:49.000000Z","ready":"True"}]}`,
		`records {"metadata":{"name":"a"},"transitions":["2026-11-24T06:45:49Z"]}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"100m"}},"ports":[{"containerPort":80}],"livenessProbe":{"httpGet":{"port":"http"},"periodSeconds":3}}],"overhead":{"cpu":"1e2"}}}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":80}}}]}}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":[]}}}]}}`,
		`secrets {"metadata":{"name":"a"},"data":{"k":"aGFsbG8="},"immutable":true}`,
		`secrets {"metadata":{"name":"a"},"data":{"k":"aGFs bG8=","n":null}}`,
		`configmaps {"metadata":{"name":"a"},"binaryData":{"k":[104]}}`,
		`events {"metadata":{"name":"a","namespace":"default"},"eventTime":null,"lastTimestamp":"2026-11-24T06:45:49Z","count":1,"series":{"lastObservedTime":"2026-11-24T06:45:49.000000Z"}}`,
		`events {"metadata":{"name":"a"},"count":1.5}`,
		`controllerrevisions {"metadata":{"name":"a"},"data":{"spec":{"template":{"spec":{"overhead":{"cpu":"1"}}}}},"revision":9007199254740993}`,
		`sites {"metadata":{"name":"a"},"spec":{"nodeMonitorGracePeriod":"40s"}}`,
		`boardprofiles {"metadata":{"name":"a"},"spec":{"labels":{"a":"b"},"title":"x"}}`,
		`devicereports {"metadata":{"name":"a"},"reported":"2026-11-24T06:45:49Z","hardware":{"board": {"model":"x"}}}`,
		`nodes {"metadata":{"name":"a"},"status":{"capacity":{"cpu":"1e999999999","memory":" 1Gi ","x":"","y":"0x1"}}}`,
		`nodes {"metadata":{"name":"a"},"status":{"capacity":{"cpu":"1e40"}}}`,
		`pods {"metadata":{"name":"a"},"spec":{"containers":[{"resources":{"limits":{"cpu":1e999}}}],"overhead":{"cpu":"` + strings.Repeat("9", 400) + `"}}}`,
		`controllerrevisions {"metadata":{"name":"a"},"data":{"spec":{"template":{"spec":{"overhead":{"cpu":"1e99"}}}}},"revision":1}`,
		`controllerrevisions {"metadata":{"name":"a"},"data":{"x":"1e99"},"revision":1}`,
		`records {"metadata":{"name":"a"},"transitions":["2026-11-24T06:45:49.00001+Z"],"history":[{"at":"2026-11-24T24:45:49.000000Z"}]}`,
		`deployments {"metadata":{"name":"a"},"spec":{"replicas":3,"strategy":{"rollingUpdate":{"maxSurge":"25%","maxUnavailable":1}}}}`,
	} {
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row string) {
		kind, text, _ := strings.Cut(row, " ")
		want, err := state.New(state.Kind(kind))
		if err != nil {
			return
		}
		got, _ := state.New(state.Kind(kind))
		mended, broken := new(bound.Repairer).Repair([]byte(text), want)
		std, quickly := json.Unmarshal(mended, want), jsonquick.Unmarshal([]byte(text), got, quick)
		if quickly == nil && (std != nil || len(broken) > 0) {
			t.Fatalf("%s is read, want %v", text, std)
		}
		if quickly == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("%s is\n%#v, want\n%#v", text, got, want)
		}
		lent := []byte(text)
		read, places, err := new(reader).object(store.Row{Kind: kind, Name: want.GetName(), Namespace: want.GetNamespace(), Object: lent})
		for i := range lent {
			lent[i] = 'x' // the text of the next row
		}
		if (err == nil) != (std == nil) || err == nil && !slices.Equal(places, broken) {
			t.Fatalf("%s: %v, mended in %q, want %v, in %q", text, err, places, std, broken)
		}
		if a, _ := json.Marshal(read); err == nil {
			if b, _ := json.Marshal(want); string(a) != string(b) {
				t.Fatalf("%s is\n%s, want\n%s", text, a, b)
			}
		}
	})
}

// Objects that are read share their lists of resources, and what is odd in one row changes no other's.
func TestRowsShareTheirResources(t *testing.T) {
	var k reader
	read := func(kind, text string) state.Object {
		o, places, err := k.object(store.Row{Kind: kind, Name: "a", Object: []byte(text)})
		if err != nil || len(places) > 0 {
			t.Fatal(err, places)
		}
		return o
	}
	node := func(list string) *corev1.Node {
		return read("nodes", `{"metadata":{"name":"a"},"status":{"capacity":`+list+`,"allocatable":`+list+`,"conditions":[{"type":"A"},{"type":"B"},{"type":"Ready","status":"True"}]}}`).(*corev1.Node)
	}
	const list = `{"cpu":"4","memory":"1Gi"}`
	one, other := node(list), node(list)
	at := func(l corev1.ResourceList) uintptr { return reflect.ValueOf(l).Pointer() }
	if at(one.Status.Capacity) != at(other.Status.Allocatable) {
		t.Error("they do not share their resources")
	}
	twice := read("nodes", `{"metadata":{"name":"a"},"status":{"capacity":`+list+`,"capacity":{"pods":"7"}}}`).(*corev1.Node)
	if l := twice.Status.Capacity; len(l) != 3 || l.Pods().Value() != 7 {
		t.Errorf("what is there twice is %v", l)
	}
	if l := one.Status.Capacity; len(l) != 2 || l.Cpu().Value() != 4 || l.Memory().Value() != 1<<30 {
		t.Errorf("another row has made of its resources %v", l)
	}
	for i := range 2 * mostLists { // more than are known, and one that is long
		if n := node(fmt.Sprintf(`{"cpu":"%d"}`, i)); n.Status.Capacity.Cpu().Value() != int64(i) {
			t.Fatalf("%d is %v", i, n.Status.Capacity)
		}
	}
	if n := node(`{"cpu":"3"` + strings.Repeat(" ", 2*longestList) + `}`); n.Status.Capacity.Cpu().Value() != 3 {
		t.Errorf("it is %v", n.Status.Capacity)
	}
	if len(k.lists) > mostLists {
		t.Errorf("%d lists are known", len(k.lists))
	}
	c := one.Status.Conditions
	if len(c) != 3 || cap(c) != 3 || c[2].Status != corev1.ConditionTrue || &c[0] == &other.Status.Conditions[0] {
		t.Errorf("the conditions are %v, with room for %d", c, cap(c))
	}
	few := read("nodes", `{"metadata":{"name":"a"},"status":{"conditions":[{"type":"C"}]}}`).(*corev1.Node).Status.Conditions
	if !reflect.DeepEqual(few, []corev1.NodeCondition{{Type: "C"}}) {
		t.Errorf("something of another row is left in %v", few)
	}
}
