package kube

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"flotilla.dev/hub/kube/resource"
)

const (
	protoFirst = resource.MediaProto + "," + resource.MediaJSON
	protoMeta  = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
	aggSwapped = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList,application/json" // the order of parameters that Headlamp sends
	reviews    = "/apis/authorization.k8s.io/v1"
	mayI       = `{"kind":"SelfSubjectAccessReview","apiVersion":"authorization.k8s.io/v1","spec":{"resourceAttributes":{"namespace":"default","verb":"delete","group":"apps","resource":"deployments"}}}`
)

// k9s and Headlamp send these requests, and kubectl does not. Their WebSockets and informers have
// their own tests.
func TestRequestsOfK9sAndHeadlamp(t *testing.T) {
	for _, c := range []struct {
		name string
		request
		code int
		want []string // parts of the answer's text
		kind string   // prefix of the answer's media type
	}{
		{"k9s asks for the version again and again", request{method: "GET", path: "/version"}, 200, []string{`"gitVersion": "v1.37.0`}, resource.MediaJSON},
		{"k9s reads the aggregated discovery", request{method: "GET", path: "/apis", accept: agg}, 200, []string{`"metrics.k8s.io"`, `"events.k8s.io"`, `"apiextensions.k8s.io"`}, "application/json;g=apidiscovery.k8s.io;v=v2"},
		{"k9s reviews access for each view", request{method: "POST", path: reviews + "/selfsubjectaccessreviews", accept: protoFirst, contentType: resource.MediaJSON, body: mayI}, 201, []string{"k8s\x00", "SelfSubjectAccessReview"}, resource.MediaProto},
		{"k9s lists nodes by their metadata", request{method: "GET", path: "/api/v1/nodes", accept: protoMeta}, 200, []string{"k8s\x00", "PartialObjectMetadataList", "pi-1"}, resource.MediaProto},
		{"k9s lists the metrics of nodes", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/nodes", accept: protoFirst}, 200, []string{"k8s\x00", "NodeMetricsList", "250m"}, resource.MediaProto},
		{"k9s lists the metrics of pods", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/namespaces/default/pods", accept: protoFirst}, 200, []string{"k8s\x00", "PodMetricsList", "kiosk-1"}, resource.MediaProto},
		{"k9s lists events of their own group", request{method: "GET", path: "/apis/events.k8s.io/v1/events", accept: aTab}, 200, []string{`"kind":"Table"`, `"Last Seen"`, "Started container main"}, resource.MediaJSON},
		{"k9s looks for custom resources", request{method: "GET", path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", accept: resource.MediaJSON}, 200, []string{`"items":[]`}, resource.MediaJSON},
		{"k9s' pulses list jobs", request{method: "GET", path: "/apis/batch/v1/jobs"}, 200, []string{`"kind":"JobList"`}, resource.MediaJSON},
		{"k9s requests nodes in a namespace", request{method: "GET", path: "/api/v1/namespaces/default/nodes"}, 404, nil, "text/plain"},

		{"Headlamp reads the discovery with its parameters in another order", request{method: "GET", path: "/apis", accept: aggSwapped}, 200, []string{`"APIGroupDiscoveryList"`}, "application/json;g=apidiscovery.k8s.io;v=v2"},
		{"Headlamp reviews all rules at login", request{method: "POST", path: reviews + "/selfsubjectrulesreviews", contentType: resource.MediaJSON, body: `{"kind":"SelfSubjectRulesReview","apiVersion":"authorization.k8s.io/v1","spec":{"namespace":"default"}}`}, 201, []string{`"resourceRules":[`, `"incomplete":false`}, resource.MediaJSON},
		{"Headlamp reads its identity", request{method: "POST", path: "/apis/authentication.k8s.io/v1/selfsubjectreviews", contentType: resource.MediaJSON, body: `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`}, 201, []string{`"username":"admin"`}, resource.MediaJSON},
		{"Headlamp reviews access for each button", request{role: "viewer", method: "POST", path: reviews + "/selfsubjectaccessreviews", contentType: resource.MediaJSON, body: mayI}, 201, []string{`"allowed":false`}, resource.MediaJSON},
		{"Headlamp shows the documents", request{method: "GET", path: "/openapi/v2", accept: resource.MediaJSON}, 200, []string{`"swagger":"2.0"`, `io.k8s.api.core.v1.Pod"`}, resource.MediaJSON},
		{"Headlamp lists the metrics of nodes", request{method: "GET", path: "/apis/metrics.k8s.io/v1beta1/nodes", accept: resource.MediaJSON}, 200, []string{`"usage":{"cpu":"250m"`}, resource.MediaJSON},
		{"Headlamp's scale button", request{method: "PATCH", path: apps + "/deployments/web/scale", contentType: mp, body: `{"spec":{"replicas":3}}`}, 200, []string{`"kind":"Scale"`, `"replicas":3`}, resource.MediaJSON},
		{"Headlamp first edits with a POST", request{method: "POST", path: apps + "/deployments", contentType: resource.MediaJSON, body: webJSON}, 409, []string{`"AlreadyExists"`}, resource.MediaJSON},
		{"Headlamp then edits with a PUT", request{method: "PUT", path: apps + "/deployments/web", contentType: resource.MediaJSON, body: webJSON}, 200, []string{`"replicas":1`, `"generation":2`}, resource.MediaJSON},
		{"Headlamp looks for stateful sets", request{method: "GET", path: "/apis/apps/v1/statefulsets"}, 200, []string{`"kind":"StatefulSetList"`}, resource.MediaJSON},
		{"Headlamp looks for claims", request{method: "GET", path: "/api/v1/persistentvolumeclaims"}, 200, []string{`"PersistentVolumeClaimList"`}, resource.MediaJSON},
		{"Headlamp looks for ingresses", request{method: "GET", path: "/apis/networking.k8s.io/v1/ingresses"}, 200, []string{`"items":[]`}, resource.MediaJSON},
		{"Headlamp looks for gateways", request{method: "GET", path: "/apis/gateway.networking.k8s.io/v1/gateways"}, 404, nil, "text/plain"},
		{"Headlamp reads the kubelet's storage", request{method: "GET", path: "/api/v1/nodes/pi-1/proxy/stats/summary"}, 404, nil, resource.MediaJSON},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := c.do(newServer(seeded()))
			if w.Code != c.code || !strings.HasPrefix(w.Header().Get("Content-Type"), c.kind) {
				t.Errorf("%d %s, want %d %s: %s", w.Code, w.Header().Get("Content-Type"), c.code, c.kind, w.Body)
			}
			for _, part := range c.want {
				if !strings.Contains(w.Body.String(), part) {
					t.Errorf("%q is missing in %s", part, w.Body)
				}
			}
		})
	}
}

const webJSON = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"default"},"spec":{"replicas":1,"selector":{"matchLabels":{"app":"web"}},` +
	`"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"nginx:1.28"}]}}}}`

// k9s watches the list of custom resource definitions, so the watch of an empty list also begins
// with a bookmark.
func TestWatchListOfTheEmptyLists(t *testing.T) {
	for _, path := range []string{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"/apis/networking.k8s.io/v1/ingresses"} {
		bubble(t, func(t *testing.T, f *fakeFleet, s *Server) {
			w := openWatch(t, s, path+"?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true", resource.MediaJSON)
			defer w.cancel()
			if frames := w.expect("BOOKMARK 5"); frames[0].Object.Metadata.Annotations["k8s.io/initial-events-end"] != "true" {
				t.Errorf("the bookmark has the annotations %v", frames[0].Object.Metadata.Annotations)
			}
			f.touch(fakeNode("pi-1", ""), "a", "b")
			w.expect()
		})
	}
}

// The answer to any query is a result, or a Status with the right code. A refusal changes nothing.
func FuzzQuery(f *testing.F) {
	for _, c := range cases {
		if _, q, ok := strings.Cut(c.path, "?"); ok {
			f.Add(q)
		}
	}
	f.Add("labelSelector=a+in+(b,c),!d&fieldSelector=metadata.name!=x&limit=1&continue=eyJydiI6MSwic3RhcnQiOiJhIn0")
	f.Add("container=main&tailLines=1&sinceTime=2026-11-20T12:00:00Z&stream=Stdout")
	f.Fuzz(func(t *testing.T, query string) {
		u, err := url.Parse("/?" + query)
		if err != nil || strings.ContainsAny(query, " \r\n\x00") || u.Query().Has("watch") || u.Query().Has("follow") {
			return // the request is impossible or does not end
		}
		fake := seeded()
		s := newServer(fake)
		for _, q := range []request{
			{method: "GET", path: ns + "/pods"}, {method: "GET", path: "/api/v1/nodes", accept: aTab}, {method: "GET", path: ns + "/pods/kiosk-1/log"},
			{method: "POST", path: ns + "/configmaps", body: configMap}, {method: "DELETE", path: ns + "/pods/kiosk-2"}, {method: "DELETE", path: ns + "/secrets"},
		} {
			before := fake.Snapshot().Revision
			q.path += "?" + query
			w := q.do(s)
			if w.Code >= 500 && w.Code != http.StatusGatewayTimeout { // a future revision is answered with 504
				t.Errorf("%s %s: %d %s", q.method, q.path, w.Code, w.Body)
			}
			if after := fake.Snapshot().Revision; w.Code >= 400 && after != before {
				t.Errorf("%s %s: refused with %d, but changed the fleet", q.method, q.path, w.Code)
			}
		}
	})
}
