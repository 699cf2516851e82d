package kube

import (
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestFieldSelectors(t *testing.T) {
	s := newServer(seeded())
	for selector, want := range map[string]string{
		"spec.nodeName=pi-1": "kiosk-1",
		"spec.nodeName=":     "kiosk-2",
		"spec.nodeName!=":    "guarded kiosk-1",
		"spec.host=pi-1":     "kiosk-1",
		"spec.host!=pi-1":    "guarded kiosk-2",
		"status.phase=Running,metadata.name!=guarded":   "kiosk-1",
		"metadata.name=kiosk-2":                         "kiosk-2",
		"metadata.namespace=default,spec.nodeName=pi-2": "guarded",
		"metadata.name=nope":                            "",
	} {
		for _, path := range []string{ns + "/pods", "/api/v1/pods"} {
			var list corev1.PodList
			send(t, s, "GET", path+"?fieldSelector="+url.QueryEscape(selector), "", "", 200, &list)
			var names []string
			for _, p := range list.Items {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != want {
				t.Errorf("%s with %s lists %q, want %q", path, selector, got, want)
			}
		}
	}
}

// The two API groups of events have different names for the selectable fields.
func TestFieldSelectorsOfEvents(t *testing.T) {
	s := newServer(seeded())
	const newer = "/apis/events.k8s.io/v1/namespaces/default/events"
	for _, c := range []struct {
		path, selector string
		code, want     int
	}{
		{ns + "/events", "involvedObject.name=kiosk-1,involvedObject.kind=Pod,involvedObject.fieldPath=", 200, 1},
		{ns + "/events", "involvedObject.name!=kiosk-1", 200, 0},
		{ns + "/events", "source=kubelet,reportingComponent=,reason=Started,type=Normal", 200, 1},
		{ns + "/events", "regarding.name=kiosk-1", 400, 0},
		{ns + "/events", "reportingController=", 400, 0},
		{newer, "regarding.name=kiosk-1,regarding.kind=Pod,reportingController=,reason=Started,type=Normal", 200, 1},
		{newer, "regarding.name!=kiosk-1", 200, 0},
		{newer, "involvedObject.name=kiosk-1", 400, 0},
		{newer, "source=kubelet", 400, 0},
		{newer, "reportingComponent=", 400, 0},
	} {
		var list struct{ Items []struct{} }
		send(t, s, "GET", c.path+"?fieldSelector="+url.QueryEscape(c.selector), "", "", c.code, &list)
		if len(list.Items) != c.want {
			t.Errorf("%s with %s lists %d events, want %d", c.path, c.selector, len(list.Items), c.want)
		}
	}
}

// A field selector may use every field that Kubernetes allows for the kind.
func TestFieldSelectorsOfOtherKinds(t *testing.T) {
	s := newServer(seeded())
	for path, selector := range map[string]string{
		"/apis/certificates.k8s.io/v1/certificatesigningrequests": "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet",
		"/api/v1/services":             "spec.clusterIP=None,spec.type!=ExternalName",
		"/apis/batch/v1/jobs":          "status.successful=1",
		ns + "/replicationcontrollers": "status.replicas=0",
		"/apis/apps/v1/replicasets":    "status.replicas=99",
		"/api/v1/namespaces":           "status.phase=Gone",
		"/api/v1/nodes":                "spec.unschedulable=true",
		ns + "/secrets":                "type=kubernetes.io/tls",
		ns + "/pods":                   "spec.restartPolicy=Never,spec.schedulerName=x,spec.serviceAccountName=x,spec.hostNetwork=true,status.podIP=10.0.0.1,status.podIPs=10.0.0.1,status.nominatedNodeName=pi-9",
	} {
		var list struct{ Items []struct{} }
		send(t, s, "GET", path+"?fieldSelector="+url.QueryEscape(selector), "", "", 200, &list)
		if len(list.Items) != 0 {
			t.Errorf("%s with %s lists %d objects, want none", path, selector, len(list.Items))
		}
	}
}
