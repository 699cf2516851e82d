package kube

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
)

var updateGoldens = flag.Bool("update", false, "rewrite the golden files")

// A request is sent with the role admin unless it has another role.
type request struct {
	role, method, path, accept, contentType, body string
	as                                            string // name of the user to impersonate
}

func (q request) do(h http.Handler) *httptest.ResponseRecorder {
	r := httptest.NewRequest(q.method, q.path, strings.NewReader(q.body))
	if q.role == "" {
		q.role = "admin"
	}
	if q.role != "nobody" {
		r.Header.Set("Authorization", "Bearer "+q.role)
	}
	if q.accept != "" {
		r.Header.Set("Accept", q.accept)
	}
	if q.contentType != "" {
		r.Header.Set("Content-Type", q.contentType)
	}
	if q.as != "" {
		r.Header.Set("Impersonate-User", q.as)
	}
	r.Header.Set("User-Agent", "tester/1.0")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const (
	ns    = "/api/v1/namespaces/default"
	apps  = "/apis/apps/v1/namespaces/default"
	smp   = "application/strategic-merge-patch+json"
	mp    = "application/merge-patch+json"
	jp    = "application/json-patch+json"
	ssa   = "application/apply-patch+yaml"
	aTab  = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	aMeta = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
	agg   = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
)

const configMap = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"a":"b"}}`

// Each case starts with a new fleet of two nodes and two pods.
var cases = []struct {
	name string
	request
}{
	{"no authentication", request{role: "nobody", method: "GET", path: "/api/v1/nodes"}},
	{"a viewer cannot read secrets", request{role: "viewer", method: "GET", path: ns + "/secrets"}},
	{"a viewer cannot delete", request{role: "viewer", method: "DELETE", path: ns + "/pods/kiosk-1"}},
	{"impersonation", request{method: "GET", path: "/api/v1/nodes", as: "bob"}},
	{"a path that is not served", request{method: "GET", path: "/api/v1/foos"}},
	{"a node has no namespace", request{method: "GET", path: ns + "/nodes"}},
	{"an object needs its namespace", request{method: "GET", path: "/api/v1/pods/kiosk-1"}},
	{"an unknown subresource", request{method: "GET", path: ns + "/pods/kiosk-1/exec2"}},
	{"the legacy discovery of all groups", request{method: "GET", path: "/apis"}},
	{"the legacy discovery of the core group names eviction's own group", request{method: "GET", path: "/api/v1"}},
	{"the aggregated discovery", request{method: "GET", path: "/apis", accept: agg}},
	{"a group", request{method: "GET", path: "/apis/policy"}},
	{"a group that is not served", request{method: "GET", path: "/apis/rbac.authorization.k8s.io"}},

	{"discovery is only read", request{method: "POST", path: "/api/v1", body: "{}"}},
	{"discovery in an unknown format", request{method: "GET", path: "/apis", accept: "text/html"}},
	{"a group as YAML", request{method: "GET", path: "/apis/policy", accept: "application/yaml"}},

	{"a node", request{method: "GET", path: "/api/v1/nodes/pi-1"}},
	{"a lease for people to read", request{method: "GET", path: "/apis/coordination.k8s.io/v1/namespaces/default/leases/leader?pretty"}},
	{"an error for people to read", request{method: "GET", path: "/api/v1/nodes/nope?pretty=true"}},
	{"a lease for programs to read", request{method: "GET", path: "/apis/coordination.k8s.io/v1/namespaces/default/leases/leader?pretty=0"}},
	{"a node as YAML", request{method: "GET", path: "/api/v1/nodes/pi-2", accept: "application/yaml"}},
	{"a missing node", request{method: "GET", path: "/api/v1/nodes/nope"}},
	{"a missing deployment is named with its group", request{method: "GET", path: apps + "/deployments/nope"}},
	{"an unknown format", request{method: "GET", path: "/api/v1/nodes", accept: "text/html"}},
	{"nodes as a table", request{method: "GET", path: "/api/v1/nodes", accept: aTab}},
	{"a table without its objects", request{method: "GET", path: "/api/v1/nodes?includeObject=None&limit=1", accept: aTab}},
	{"a table with an unknown includeObject", request{method: "GET", path: "/api/v1/nodes?includeObject=Some", accept: aTab}},
	{"pods by their metadata", request{method: "GET", path: ns + "/pods", accept: aMeta}},
	{"replication controllers are the empty list", request{method: "GET", path: ns + "/replicationcontrollers"}},
	{"a service cannot be created", request{method: "POST", path: ns + "/services", body: `{}`}},
	{"leases of nodes come from the hub's memory", request{method: "GET", path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/pi-1"}},
	{"leases of nodes cannot be written", request{method: "DELETE", path: "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/pi-1"}},
	{"an event in its newer shape", request{method: "GET", path: "/apis/events.k8s.io/v1/namespaces/default/events/kiosk-1.1"}},
	{"an event in its newer shape is created", request{method: "POST", path: "/apis/events.k8s.io/v1/namespaces/default/events", body: `{"metadata":{"name":"e"},"eventTime":"2026-11-20T12:00:00.000000Z","reportingController":"tester","reportingInstance":"tester-1","action":"Testing","reason":"Tested","type":"Normal","regarding":{"kind":"Pod","namespace":"default","name":"kiosk-1"},"note":"it works"}`}},
	{"an event in its newer shape is patched", request{method: "PATCH", path: "/apis/events.k8s.io/v1/namespaces/default/events/kiosk-1.1", contentType: smp, body: `{"series":{"count":2,"lastObservedTime":"2026-11-20T12:01:00.000000Z"}}`}},
	{"an event in its newer shape is applied", request{method: "PATCH", path: "/apis/events.k8s.io/v1/namespaces/default/events/kiosk-1.1?fieldManager=me", contentType: ssa, body: `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"kiosk-1.1"},"note":"applied"}`}},
	{"an event is deleted", request{method: "DELETE", path: "/apis/events.k8s.io/v1/namespaces/default/events/kiosk-1.1"}},
	{"custom resource definitions are the empty list", request{method: "GET", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"}},
	{"custom resource definitions as a table", request{method: "GET", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", accept: aTab}},
	{"custom resource definitions by their metadata", request{method: "GET", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", accept: aMeta}},
	{"a custom resource definition cannot be created", request{method: "POST", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body: `{}`}},

	{"a limit that is not a number", request{method: "GET", path: "/api/v1/nodes?limit=many"}},
	{"a limit below zero", request{method: "GET", path: "/api/v1/nodes?limit=-1"}},
	{"an invalid label selector", request{method: "GET", path: "/api/v1/nodes?labelSelector=a%20b"}},
	{"a field that cannot be selected", request{method: "GET", path: "/api/v1/nodes?fieldSelector=spec.podCIDR%3Dx"}},
	{"a revision that is not a number", request{method: "GET", path: "/api/v1/nodes?resourceVersion=x"}},
	{"a future revision", request{method: "GET", path: "/api/v1/nodes?resourceVersion=99999"}},
	{"an old revision cannot be listed exactly", request{method: "GET", path: "/api/v1/nodes?resourceVersion=1&resourceVersionMatch=Exact"}},
	{"resourceVersionMatch without resourceVersion", request{method: "GET", path: "/api/v1/nodes?resourceVersionMatch=NotOlderThan"}},
	{"an invalid continue token", request{method: "GET", path: "/api/v1/nodes?continue=x"}},
	{"a later page of another revision", request{method: "GET", path: "/api/v1/nodes?resourceVersion=4&continue=" + page{Rev: 4, Name: "pi-1"}.String()}},
	{"initial events of a list", request{method: "GET", path: "/api/v1/nodes?sendInitialEvents=true"}},
	{"a limit that is too large for a number", request{method: "GET", path: "/api/v1/nodes?limit=99999999999999999999"}},
	{"a timeout that is not a number", request{method: "GET", path: "/api/v1/nodes?watch=1&timeoutSeconds=soon"}},
	{"an invalid field selector", request{method: "GET", path: "/api/v1/nodes?fieldSelector=metadata.name"}},
	{"an invalid resourceVersionMatch", request{method: "GET", path: "/api/v1/nodes?resourceVersion=1&resourceVersionMatch=Sideways"}},
	{"a name with a slash in it", request{method: "GET", path: "/api/v1/nodes/a%2Fb"}},
	{"a path with a part missing", request{method: "GET", path: "/apis/apps/v1/namespaces//deployments"}},
	{"a path with ..", request{method: "GET", path: "/api/v1/nodes/%2e%2e"}},
	{"a version that is not served", request{method: "GET", path: "/apis/apps/v1beta2/deployments"}},
	{"a watch from a revision that is not a number", request{method: "GET", path: "/api/v1/nodes?watch=1&resourceVersion=x"}},

	{"a config map is created", request{method: "POST", path: ns + "/configmaps", body: configMap}},
	{"a config map from YAML", request{method: "POST", path: ns + "/configmaps", contentType: "application/yaml", body: "metadata:\n  name: c\ndata:\n  a: b\n"}},
	{"a dry run answers and creates nothing", request{method: "POST", path: ns + "/configmaps?dryRun=All", body: configMap}},
	{"an invalid dryRun", request{method: "POST", path: ns + "/configmaps?dryRun=Some", body: configMap}},
	{"a field manager that is too long", request{method: "POST", path: ns + "/configmaps?fieldManager=" + strings.Repeat("x", 129), body: configMap}},
	{"an empty body", request{method: "POST", path: ns + "/configmaps"}},
	{"a body that is not JSON", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":`}},
	{"an invalid body of protobuf", request{method: "POST", path: ns + "/configmaps", contentType: resource.MediaProto, body: "k8s\x00\x0a\xff\xff"}},
	{"a body of protobuf without its magic", request{method: "POST", path: ns + "/configmaps", contentType: resource.MediaProto, body: configMap}},
	{"an invalid content type", request{method: "POST", path: ns + "/configmaps", contentType: "application/json;;;", body: configMap}},
	{"a field of the wrong type", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"c"},"data":["a"]}`}},
	{"an invalid quantity", request{method: "POST", path: ns + "/pods", body: `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"a","image":"b","resources":{"limits":{"memory":"much"}}}]}}`}},
	{"a body of another kind", request{method: "POST", path: ns + "/configmaps", body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"c"}}`}},
	{"a body of another version", request{method: "POST", path: apps + "/deployments", body: `{"apiVersion":"apps/v1beta1","kind":"Deployment","metadata":{"name":"c"}}`}},
	{"a body in an unknown format", request{method: "POST", path: ns + "/configmaps", contentType: "text/plain", body: "x"}},
	{"a body for another namespace", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"c","namespace":"other"}}`}},
	{"an unknown field is refused with fieldValidation=Strict", request{method: "POST", path: ns + "/configmaps?fieldValidation=Strict", body: `{"metadata":{"name":"c"},"dada":{}}`}},
	{"an unknown field is warned about by default", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"c"},"dada":{},"data":{"a":"b","a":"c"}}`}},
	{"an unknown field is ignored with fieldValidation=Ignore", request{method: "POST", path: ns + "/configmaps?fieldValidation=Ignore", body: `{"metadata":{"name":"c"},"dada":{}}`}},
	{"an invalid fieldValidation", request{method: "POST", path: ns + "/configmaps?fieldValidation=Maybe", body: configMap}},
	{"an object without a name", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":{}}`}},
	{"an invalid name", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"A_b"}}`}},
	{"a resourceVersion at creation", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"c","resourceVersion":"1"}}`}},
	{"a missing namespace", request{method: "POST", path: "/api/v1/namespaces/nope/configmaps", body: configMap}},
	{"a namespace that is being deleted", request{method: "POST", path: "/api/v1/namespaces/leaving/configmaps", body: configMap}},
	{"a pod that exists", request{method: "POST", path: ns + "/pods", body: `{"metadata":{"name":"kiosk-1"},"spec":{"containers":[{"name":"a","image":"b"}]}}`}},
	{"a creation without a namespace", request{method: "POST", path: "/api/v1/configmaps", body: configMap}},
	{"a deletion of all pods without a namespace", request{method: "DELETE", path: "/api/v1/pods"}},
	{"a namespace is created with its defaults", request{method: "POST", path: "/api/v1/namespaces", body: `{"metadata":{"name":"team-a"}}`}},

	{"a name that differs from the path", request{method: "PUT", path: ns + "/configmaps/d", body: configMap}},
	{"an update creates nothing", request{method: "PUT", path: ns + "/configmaps/c", body: configMap}},
	{"an update of an older resourceVersion", request{method: "PUT", path: "/api/v1/nodes/pi-1", body: `{"metadata":{"name":"pi-1","resourceVersion":"1"}}`}},
	{"an update without a name", request{method: "PUT", path: "/api/v1/nodes/pi-1", body: `{"metadata":{"labels":{"a":"b"}}}`}},
	{"a scale without a name", request{method: "PUT", path: apps + "/deployments/web/scale", body: `{"spec":{"replicas":0}}`}},
	{"an update with another UID", request{method: "PUT", path: "/api/v1/nodes/pi-1", body: `{"metadata":{"name":"pi-1","uid":"x"}}`}},
	{"a lease's update needs its resourceVersion", request{method: "PUT", path: "/apis/coordination.k8s.io/v1/namespaces/default/leases/leader", body: `{"metadata":{"name":"leader"}}`}},
	{"a post to an object", request{method: "POST", path: ns + "/pods/kiosk-1", body: `{}`}},
	{"a put to a list", request{method: "PUT", path: ns + "/pods", body: `{}`}},
	{"namespaces are deleted one by one", request{method: "DELETE", path: "/api/v1/namespaces"}},

	{"a node is cordoned", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: smp, body: `{"spec":{"unschedulable":true}}`}},
	{"a label by a merge patch", request{method: "PATCH", path: "/api/v1/nodes/pi-2", contentType: mp, body: `{"metadata":{"labels":{"a":"b","topology.kubernetes.io/zone":null}}}`}},
	{"a JSON patch whose test fails", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: jp, body: `[{"op":"test","path":"/metadata/name","value":"x"}]`}},
	{"a JSON patch to a missing path", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: jp, body: `[{"op":"remove","path":"/spec/nope"}]`}},
	{"an invalid JSON patch", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: jp, body: `{}`}},
	{"a strategic patch with an unknown directive", request{method: "PATCH", path: apps + "/deployments/web", contentType: smp, body: `{"spec":{"template":{"spec":{"containers":[{"name":"web","$patch":"sideways"}]}}}}`}},
	{"a strategic patch of a list without its merge key", request{method: "PATCH", path: apps + "/deployments/web", contentType: smp, body: `{"spec":{"template":{"spec":{"containers":[{"image":"x"}]}}}}`}},
	{"a strategic patch whose order is not a list", request{method: "PATCH", path: apps + "/deployments/web", contentType: smp, body: `{"spec":{"template":{"spec":{"$setElementOrder/containers":"web"}}}}`}},
	{"an apply with a field twice", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me", contentType: ssa, body: "apiVersion: v1\nkind: ConfigMap\ndata: {a: b, a: c}"}},
	{"an apply with a field twice, strictly", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me&fieldValidation=Strict", contentType: ssa, body: "apiVersion: v1\nkind: ConfigMap\ndata: {a: b, a: c}"}},
	{"an apply with a field twice, with fieldValidation=Ignore", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me&fieldValidation=Ignore", contentType: ssa, body: "apiVersion: v1\nkind: ConfigMap\ndata: {a: b, a: c}"}},
	{"an apply of another kind", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me", contentType: ssa, body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"c"}}`}},
	{"an apply of a field of the wrong type", request{method: "PATCH", path: apps + "/deployments/web?fieldManager=me&force=true", contentType: ssa, body: `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":"many"}}`}},
	{"a merge patch that is a list", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: `[]`}},
	{"a patch in an unknown format", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: resource.MediaJSON, body: `{}`}},
	{"a patch that sets a wrong type", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: `{"spec":{"unschedulable":"maybe"}}`}},
	{"a patch with an unknown field", request{method: "PATCH", path: "/api/v1/nodes/pi-1?fieldValidation=Strict", contentType: mp, body: `{"spec":{"color":"red"}}`}},
	{"a JSON patch that copies its copies", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: jp, body: `[{"op":"add","path":"/x","value":["` + strings.Repeat("x", 1000) + `"]}` + strings.Repeat(`,{"op":"copy","from":"/x","path":"/x/-"}`, 20) + `]`}},
	{"a patch that is nested too deep", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: strings.Repeat(`{"spec":`, 20000) + "{}" + strings.Repeat("}", 20000)}},
	{"an apply that is nested too deep", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me", contentType: ssa, body: strings.Repeat(`{"data":`, 20000) + "{}" + strings.Repeat("}", 20000)}},
	{"a body that is too large", request{method: "POST", path: ns + "/configmaps", body: `{"metadata":{"name":"` + strings.Repeat("x", body.MaxBody) + `"}}`}},
	{"a patch of the name", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: `{"metadata":{"name":"x"}}`}},
	{"a patch of the UID", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: `{"metadata":{"uid":"x"}}`}},
	{"a patch of deletionTimestamp", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: `{"metadata":{"deletionTimestamp":"2026-11-20T12:00:00Z","deletionGracePeriodSeconds":3}}`}},
	{"a patch of the kind", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: `{"kind":"Pod"}`}},
	{"a patch of an older resourceVersion", request{method: "PATCH", path: "/api/v1/nodes/pi-1", contentType: mp, body: `{"metadata":{"resourceVersion":"1"}}`}},
	{"force is for apply only", request{method: "PATCH", path: "/api/v1/nodes/pi-1?force=true", contentType: mp, body: `{}`}},
	{"an apply needs its manager", request{method: "PATCH", path: ns + "/configmaps/c", contentType: ssa, body: configMap}},
	{"an apply creates", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me", contentType: ssa, body: configMap}},
	{"an apply with managed fields", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me", contentType: ssa, body: `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","managedFields":[{}]}}`}},
	{"an apply that is not YAML", request{method: "PATCH", path: ns + "/configmaps/c?fieldManager=me", contentType: ssa, body: "a: b: c"}},

	{"the scale of a deployment", request{method: "GET", path: apps + "/deployments/web/scale"}},
	{"a deployment is scaled", request{method: "PATCH", path: apps + "/deployments/web/scale", contentType: mp, body: `{"spec":{"replicas":5}}`}},
	{"the scale of a deployment as a table", request{method: "GET", path: apps + "/deployments/web/scale", accept: aTab}},
	{"a scale is applied", request{method: "PATCH", path: apps + "/deployments/web/scale?fieldManager=me&force=true", contentType: ssa, body: `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web"},"spec":{"replicas":5}}`}},
	{"an applied scale below zero", request{method: "PATCH", path: apps + "/deployments/web/scale?fieldManager=me", contentType: ssa, body: `{"metadata":{"name":"web"},"spec":{"replicas":-1}}`}},
	{"an applied scale of another name", request{method: "PATCH", path: apps + "/deployments/web/scale?fieldManager=me", contentType: ssa, body: `{"metadata":{"name":"other"},"spec":{"replicas":1}}`}},
	{"a scale below zero", request{method: "PATCH", path: apps + "/deployments/web/scale", contentType: mp, body: `{"spec":{"replicas":-1}}`}},
	{"a status without its spec", request{method: "PATCH", path: apps + "/deployments/web/status", contentType: mp, body: `{"spec":{"replicas":7},"status":{"replicas":1}}`}},
	{"a deployment leaves its status alone", request{method: "PATCH", path: apps + "/deployments/web", contentType: mp, body: `{"spec":{"replicas":7},"status":{"replicas":1}}`}},

	{"a running pod is deleted gracefully", request{method: "DELETE", path: ns + "/pods/kiosk-1", body: `{"gracePeriodSeconds":5}`}},
	{"a running pod is deleted without grace", request{method: "DELETE", path: ns + "/pods/kiosk-1?gracePeriodSeconds=0"}},
	{"a pod without a node is deleted at once", request{method: "DELETE", path: ns + "/pods/kiosk-2"}},
	{"a grace below zero", request{method: "DELETE", path: ns + "/pods/kiosk-1?gracePeriodSeconds=-1"}},
	{"a grace that is not a number", request{method: "DELETE", path: ns + "/pods/kiosk-1?gracePeriodSeconds=long"}},
	{"a deletion with an invalid body", request{method: "DELETE", path: ns + "/pods/kiosk-1", body: `{"gracePeriodSeconds":"long"}`}},
	{"a dry run of a deletion", request{method: "DELETE", path: ns + "/pods/kiosk-2", body: `{"dryRun":["All"]}`}},
	{"a deletion with another UID", request{method: "DELETE", path: ns + "/pods/kiosk-1", body: `{"preconditions":{"uid":"x"}}`}},
	{"a deployment is deleted in the background", request{method: "DELETE", path: apps + "/deployments/web", body: `{"propagationPolicy":"Background"}`}},
	{"a deployment is deleted after its pods", request{method: "DELETE", path: apps + "/deployments/web", body: `{"propagationPolicy":"Foreground"}`}},
	{"a deployment is deleted without its pods", request{method: "DELETE", path: apps + "/deployments/web", body: `{"propagationPolicy":"Orphan"}`}},
	{"an invalid propagationPolicy", request{method: "DELETE", path: apps + "/deployments/web", body: `{"propagationPolicy":"Sideways"}`}},
	{"a namespace is deleted", request{method: "DELETE", path: "/api/v1/namespaces/team"}},
	{"namespaces that the hub needs cannot be deleted", request{method: "DELETE", path: "/api/v1/namespaces/default"}},
	{"pods are deleted by a selector", request{method: "DELETE", path: ns + "/pods?labelSelector=app%3Dkiosk&fieldSelector=spec.nodeName%3D"}},

	{"a pod is bound", request{method: "POST", path: ns + "/pods/kiosk-2/binding", body: `{"metadata":{"name":"kiosk-2"},"target":{"kind":"Node","name":"pi-2"}}`}},
	{"a pod is bound without a target", request{method: "POST", path: ns + "/pods/kiosk-2/binding", body: `{"target":{"kind":"Node","name":"nope"}}`}},
	{"a pod is bound twice", request{method: "POST", path: ns + "/pods/kiosk-1/binding", body: `{"target":{"kind":"Node","name":"pi-2"}}`}},
	{"a pod is evicted", request{method: "POST", path: ns + "/pods/kiosk-1/eviction", body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"kiosk-1"}}`}},
	{"a disruption budget protects a pod", request{method: "POST", path: ns + "/pods/guarded/eviction", body: `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"guarded"}}`}},

	{"a log", request{method: "GET", path: ns + "/pods/kiosk-1/log"}},
	{"the log of an unknown container", request{method: "GET", path: ns + "/pods/kiosk-1/log?container=x"}},
	{"the log of a pod without a node", request{method: "GET", path: ns + "/pods/kiosk-2/log"}},
	{"invalid options of a log", request{method: "GET", path: ns + "/pods/kiosk-1/log?tailLines=-1&sinceSeconds=x&sinceTime=yesterday"}},
	{"a log of stdout alone", request{method: "GET", path: ns + "/pods/kiosk-1/log?stream=Stderr"}},
	{"a log of both outputs", request{method: "GET", path: ns + "/pods/kiosk-1/log?stream=All"}},
	{"a log of an unknown output", request{method: "GET", path: ns + "/pods/kiosk-1/log?stream=stderr"}},
	{"the metrics of a node", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/nodes"}},
	{"the metrics of pods, from their own devices only", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/pods"}},
	{"the metrics of nodes, as a table", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/nodes", accept: aTab}},
	{"the metrics of pods, as a table with whole objects", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/pods?includeObject=Object", accept: aTab}},
	{"the metrics of a pod, as a table without objects", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/kiosk-1?includeObject=None", accept: aTab}},
	{"the metrics of selected pods", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods?labelSelector=app%3Dguarded"}},
	{"the metrics of a pod", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/kiosk-1"}},
	{"the metrics of a pod without a node", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/kiosk-2"}},
	{"the metrics of a missing node", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/nodes/nope"}},
	{"the metrics of a node that was not measured", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/nodes/pi-2"}},
	{"the user's own identity", request{role: "viewer", method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", body: `{}`}},
	{"a self access review that is denied", request{role: "viewer", method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"resourceAttributes":{"verb":"delete","resource":"pods"}}}`}},
	{"a self access review that is allowed", request{role: "viewer", method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"resourceAttributes":{"verb":"list","group":"apps","resource":"deployments"}}}`}},
	{"an access review without attributes", request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{}}`}},
	{"an access review with both kinds of attributes", request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: `{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"},"nonResourceAttributes":{"verb":"get","path":"/"}}}`}},
	{"a rules review without a namespace", request{method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: `{"spec":{}}`}},
	{"a self rules review", request{role: "viewer", method: "POST", path: "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body: `{"spec":{"namespace":"default"}}`}},
}

var (
	anyTime   = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anyUID    = regexp.MustCompile(`"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"`) // random UIDs have version 4; those of the seed have version 8
	anyAge    = regexp.MustCompile(`"\d+[smhdy](\d+[smhdy])?"`)
	anyCells  = regexp.MustCompile(`"cells":\[[^]]*\]`)
	wellKnown = map[string]bool{"2026-11-20T12:00:00Z": true, "2026-11-20T12:01:00Z": true,
		"2026-11-20T12:01:00.000000Z": true}
)

// golden returns an answer as golden files contain it: names replace this run's times and UIDs.
func golden(w *httptest.ResponseRecorder) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %s\n", w.Code, w.Header().Get("Content-Type"))
	for _, line := range w.Header().Values("Warning") {
		fmt.Fprintf(&b, "Warning: %s\n", line)
	}
	if s := w.Header().Get("Retry-After"); s != "" {
		fmt.Fprintf(&b, "Retry-After: %s\n", s)
	}
	body := anyTime.ReplaceAllStringFunc(w.Body.String(), func(s string) string {
		if wellKnown[s] {
			return s
		}
		return "<now>"
	})
	body = anyUID.ReplaceAllStringFunc(body, func(s string) string {
		if strings.Contains(s, "c0ffee") {
			return s
		}
		return `"<uid>"`
	})
	body = anyCells.ReplaceAllStringFunc(body, func(s string) string { return anyAge.ReplaceAllString(s, `"<age>"`) })
	b.WriteString(strings.TrimRight(body, "\n"))
	return b.String() + "\n"
}

func TestAPI(t *testing.T) {
	const file = "testdata/api.golden"
	have, err := os.ReadFile(file)
	if err != nil && !*updateGoldens {
		t.Fatal(err)
	}
	want := map[string]string{}
	for part := range strings.SplitSeq(string(have), "\n# ") {
		name, rest, _ := strings.Cut(strings.TrimPrefix(part, "# "), "\n")
		want[name] = strings.TrimRight(rest, "\n") + "\n"
	}
	var all strings.Builder
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := seeded()
			before := f.Snapshot().Revision
			w := c.do(newServer(f))
			got := c.method + " " + c.path + "\n" + golden(w)
			fmt.Fprintf(&all, "# %s\n%s\n", c.name, got)
			if !*updateGoldens && got != want[c.name] {
				t.Errorf("got\n%s\nwant\n%s", got, want[c.name])
			}
			if w.Code >= 400 && f.Snapshot().Revision != before {
				t.Errorf("a request refused with %d must not change the fleet", w.Code)
			}
		})
	}
	if *updateGoldens {
		if err := os.WriteFile(file, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Warnings are limited to the size of a header that clients accept.
func TestWarningsAreLimited(t *testing.T) {
	for what, lines := range map[string][]string{
		"many":             slices.Repeat([]string{"unknown field \"x\""}, 100_000),
		"long ones":        slices.Repeat([]string{strings.Repeat("é", 1<<20)}, 20),
		"both":             append(slices.Repeat([]string{"short"}, 3000), strings.Repeat("x", 1<<20)),
		"a few":            {"one", "two", strings.Repeat("x", 4000)},
		"within the limit": nil,
	} {
		w := httptest.NewRecorder()
		c := &call{w: w}
		c.warn(lines...)
		c.warn(lines...)
		size := 0
		for _, line := range w.Header()["Warning"] {
			if size += len(line); !utf8.ValidString(line) {
				t.Errorf("%s: a warning is cut within a character: %.20q", what, line)
			}
		}
		more := strings.Contains(strings.Join(w.Header()["Warning"], ""), "more warnings are omitted")
		if few := what == "a few" || lines == nil; size > 64<<10 || more == few ||
			few && len(w.Header()["Warning"]) != 2*len(lines) {
			t.Errorf("%s: %d warnings of %d bytes; omitted ones are counted: %v", what, len(w.Header()["Warning"]), size, more)
		}
	}
}
