package kube

import (
	"testing"

	"flotilla.dev/shared/fleet"
)

// A write that names the UID of another object is refused.
func TestAWriteWithAnotherUIDIsRefused(t *testing.T) {
	for _, c := range []struct {
		name, method, path, contentType, body string
		code                                  int
	}{
		{"a pod is bound with another UID", "POST", ns + "/pods/kiosk-2/binding", "", `{"metadata":{"name":"kiosk-2","uid":"another"},"target":{"name":"pi-2"}}`, 409},
		{"a pod is bound with an old version", "POST", ns + "/pods/kiosk-2/binding", "", `{"metadata":{"name":"kiosk-2","resourceVersion":"1"},"target":{"name":"pi-2"}}`, 409},
		{"a scale is replaced", "PUT", apps + "/deployments/web/scale", "", `{"metadata":{"name":"web","uid":"another"},"spec":{"replicas":7}}`, 409},
		{"a scale is patched", "PATCH", apps + "/deployments/web/scale", mp, `{"metadata":{"uid":"another"},"spec":{"replicas":7}}`, 409},
		{"a scale is patched by operations", "PATCH", apps + "/deployments/web/scale", jp, `[{"op":"replace","path":"/metadata/uid","value":"another"},{"op":"replace","path":"/spec/replicas","value":7}]`, 409},
		{"a scale is applied", "PATCH", apps + "/deployments/web/scale?fieldManager=m&force=true", ssa, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"web","uid":"another"},"spec":{"replicas":7}}`, 409},
		{"an eviction", "POST", ns + "/pods/kiosk-2/eviction", "", `{"metadata":{"name":"kiosk-2"},"deleteOptions":{"preconditions":{"uid":"another"}}}`, 409},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := seeded()
			before := f.Snapshot().Revision
			w := request{method: c.method, path: c.path, contentType: c.contentType, body: c.body}.do(newServer(f))
			if w.Code != c.code {
				t.Errorf("%d %s, want %d", w.Code, w.Body, c.code)
			}
			if f.Snapshot().Revision != before {
				t.Error("the write must be refused")
			}
		})
	}
	f := seeded()
	s, pod := newServer(f), f.Snapshot().Pod("default", "kiosk-2")
	send(t, s, "POST", ns+"/pods/kiosk-2/binding", "", `{"metadata":{"name":"kiosk-2","uid":"`+string(pod.UID)+
		`","resourceVersion":"`+pod.ResourceVersion+`"},"target":{"name":"pi-2"}}`, 201, nil)
}

// resourceVersion 0 means any version.
func TestVersionZeroMeansAnyVersion(t *testing.T) {
	for _, c := range []struct {
		name, method, path, contentType, body string
		code                                  int
	}{
		{"an object is replaced", "PUT", ns + "/configmaps/c", "", `{"metadata":{"name":"c","resourceVersion":"0"},"data":{"a":"2"}}`, 200},
		{"an object is patched", "PATCH", ns + "/configmaps/c", mp, `{"metadata":{"resourceVersion":"0"},"data":{"a":"2"}}`, 200},
		{"an object is applied", "PATCH", ns + "/configmaps/c?fieldManager=m&force=true", ssa, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","resourceVersion":"0"},"data":{"a":"2"}}`, 200},
		{"a scale is replaced", "PUT", apps + "/deployments/web/scale", "", `{"metadata":{"name":"web","resourceVersion":"0"},"spec":{"replicas":7}}`, 200},
		{"a scale is patched", "PATCH", apps + "/deployments/web/scale", mp, `{"metadata":{"resourceVersion":"0"},"spec":{"replicas":7}}`, 200},
		{"an object is created", "POST", ns + "/configmaps", "", `{"metadata":{"name":"d","resourceVersion":"0"}}`, 201},
		{"a kind that requires a version is not replaced with version 0", "PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/l", "", `{"metadata":{"name":"l","resourceVersion":"0"}}`, 422},
		{"a kind that requires a version is not patched with version 0", "PATCH", "/apis/coordination.k8s.io/v1/namespaces/default/leases/l", mp, `{"metadata":{"resourceVersion":"0"},"spec":{"holderIdentity":"h"}}`, 422},
		{"a kind that requires a version can be patched without one", "PATCH", "/apis/coordination.k8s.io/v1/namespaces/default/leases/l", mp, `{"spec":{"holderIdentity":"h"}}`, 200},
		{"a kind that requires a version can be applied without one", "PATCH", "/apis/coordination.k8s.io/v1/namespaces/default/leases/l?fieldManager=m&force=true", ssa, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"l"},"spec":{"holderIdentity":"h"}}`, 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := seeded()
			s := newServer(f)
			send(t, s, "POST", ns+"/configmaps", "", `{"metadata":{"name":"c"},"data":{"a":"1"}}`, 201, nil)
			send(t, s, "POST", "/apis/coordination.k8s.io/v1/namespaces/default/leases", "",
				`{"metadata":{"name":"l"}}`, 201, nil)
			send(t, s, c.method, c.path, c.contentType, c.body, c.code, nil)
		})
	}
}

// A Binding's labels and annotations become the pod's, where they are allowed.
func TestAPodHasItsBindingsLabels(t *testing.T) {
	f := seeded()
	s := newServer(f)
	const at = ns + "/pods/kiosk-2/binding"
	with := func(metadata string) string {
		return `{"metadata":{"name":"kiosk-2",` + metadata + `},"target":{"kind":"Node","name":"pi-2"}}`
	}
	was := f.Snapshot().Pod("default", "kiosk-2")
	for _, wrong := range []string{
		`"labels":{"chosen":"by hand!"}`, `"annotations":{"a b":"c"}`,
		`"annotations":{"` + fleet.RuntimeHandlerAnnotation + `":"another"}`,
	} {
		send(t, s, "POST", at, "", with(wrong), 422, nil)
	}
	send(t, s, "POST", at+"?dryRun=All", "", with(`"labels":{"a":"b"}`), 201, nil)
	if f.Snapshot().Pod("default", "kiosk-2") != was {
		t.Error("a refused binding or a dry run must not change the pod")
	}
	send(t, s, "POST", at, "", with(`"labels":{"app":"told","zone":"a"},"annotations":{"scheduler/score":"7"}`), 201, nil)
	p := f.Snapshot().Pod("default", "kiosk-2")
	if p.Spec.NodeName != "pi-2" || p.Labels["app"] != "told" || p.Labels["zone"] != "a" ||
		p.Annotations["scheduler/score"] != "7" {
		t.Errorf("the pod is on %q with labels %v and annotations %v", p.Spec.NodeName, p.Labels, p.Annotations)
	}
	for k, v := range was.Labels {
		if k != "app" && p.Labels[k] != v {
			t.Errorf("label %s is %q, want %q as before", k, p.Labels[k], v)
		}
	}
}
