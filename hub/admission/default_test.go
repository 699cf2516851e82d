package admission

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/state"
)

func asYAML(t *testing.T, v any) string {
	t.Helper()
	b, err := yaml.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestDefaultsOfAPod(t *testing.T) {
	p := parse[*corev1.Pod](t, `
metadata: {name: kiosk, namespace: shop}
spec:
  hostNetwork: true
  volumes: [{name: nothing}, {name: data, image: {reference: data}}, {name: more, image: {reference: "data:1"}}, {name: host, hostPath: {path: /x}}, {name: conf, configMap: {name: c}}, {name: who, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]
  containers:
  - name: web
    image: kiosk
    ports: [{containerPort: 8080}]
    env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    livenessProbe: {httpGet: {port: 8080}}
    resources: {limits: {cpu: 100u, memory: 64Mi}, requests: {memory: 32Mi}}
`)
	Default(p, Settings{NotReadySeconds: 10, UnreachableSeconds: 20})
	want := `metadata:
  name: kiosk
  namespace: shop
spec:
  containers:
  - env:
    - name: NODE
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: spec.nodeName
    image: kiosk
    imagePullPolicy: Always
    livenessProbe:
      failureThreshold: 3
      httpGet:
        path: /
        port: 8080
        scheme: HTTP
      periodSeconds: 10
      successThreshold: 1
      timeoutSeconds: 1
    name: web
    ports:
    - containerPort: 8080
      hostPort: 8080
      protocol: TCP
    resources:
      limits:
        cpu: 1m
        memory: 64Mi
      requests:
        cpu: 1m
        memory: 32Mi
    terminationMessagePath: /dev/termination-log
    terminationMessagePolicy: File
  dnsPolicy: ClusterFirst
  enableServiceLinks: true
  hostNetwork: true
  restartPolicy: Always
  schedulerName: default-scheduler
  securityContext: {}
  terminationGracePeriodSeconds: 30
  tolerations:
  - effect: NoExecute
    key: node.kubernetes.io/not-ready
    operator: Exists
    tolerationSeconds: 10
  - effect: NoExecute
    key: node.kubernetes.io/unreachable
    operator: Exists
    tolerationSeconds: 20
  - effect: NoSchedule
    key: node.kubernetes.io/memory-pressure
    operator: Exists
  volumes:
  - emptyDir: {}
    name: nothing
  - image:
      pullPolicy: Always
      reference: data
    name: data
  - image:
      pullPolicy: IfNotPresent
      reference: data:1
    name: more
  - hostPath:
      path: /x
      type: ""
    name: host
  - configMap:
      defaultMode: 420
      name: c
    name: conf
  - downwardAPI:
      defaultMode: 420
      items:
      - fieldRef:
          apiVersion: v1
          fieldPath: metadata.name
        path: name
    name: who
status:
  phase: Pending
  qosClass: Burstable
`
	if got := asYAML(t, p); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

func TestDefaultsOfATemplate(t *testing.T) {
	d := parse[*appsv1.Deployment](t, `
metadata: {name: kiosk, namespace: shop}
spec:
  selector: {matchLabels: {app: kiosk}}
  template: {metadata: {labels: {app: kiosk}}, spec: {containers: [{name: web, image: "kiosk:1", resources: {limits: {cpu: 1}}}]}}
`)
	Default(d, normal)
	s := d.Spec.Template.Spec
	if s.RestartPolicy != corev1.RestartPolicyAlways || s.Containers[0].ImagePullPolicy != corev1.PullIfNotPresent {
		t.Errorf("the template lacks defaults: %s", asYAML(t, s))
	}
	if s.Tolerations != nil || s.Containers[0].Resources.Requests != nil || s.EnableServiceLinks != nil {
		t.Errorf("the template has defaults that only pods have: %s", asYAML(t, s))
	}
	if got := asYAML(t, d.Spec.Strategy) + asYAML(t, []int32{*d.Spec.Replicas, *d.Spec.RevisionHistoryLimit,
		*d.Spec.ProgressDeadlineSeconds}); got !=
		"rollingUpdate:\n  maxSurge: 25%\n  maxUnavailable: 25%\ntype: RollingUpdate\n- 1\n- 10\n- 600\n" {
		t.Errorf("the Deployment's defaults are\n%s", got)
	}
	ds := sample(t, state.DaemonSets).(*appsv1.DaemonSet)
	if got := asYAML(t, ds.Spec.UpdateStrategy); got != "rollingUpdate:\n  maxSurge: 0\n  maxUnavailable: 1\ntype: RollingUpdate\n" {
		t.Errorf("the DaemonSet's defaults are\n%s", got)
	}
}

func TestDefaultsOfOtherKinds(t *testing.T) {
	s := sample(t, state.Secrets).(*corev1.Secret)
	if s.StringData != nil || string(s.Data[".dockerconfigjson"]) != `{"auths":{}}` {
		t.Errorf("stringData is not moved to data: %v", s)
	}
	ns := sample(t, state.Namespaces).(*corev1.Namespace)
	if ns.Labels["kubernetes.io/metadata.name"] != "shop" || ns.Status.Phase != corev1.NamespaceActive {
		t.Errorf("the namespace lacks defaults: %v", ns)
	}
	n := parse[*corev1.Node](t, `{metadata: {name: pi}, spec: {podCIDR: 10.1.0.0/24}, status: {capacity: {cpu: "4"}}}`)
	Default(n, normal)
	if n.Status.Allocatable.Cpu().String() != "4" || len(n.Spec.PodCIDRs) != 1 {
		t.Errorf("the node lacks defaults: %v", n)
	}
}

func TestAnImageWithoutAFixedTagIsAlwaysPulled(t *testing.T) {
	for image, want := range map[string]corev1.PullPolicy{
		"kiosk": corev1.PullAlways, "kiosk:latest": corev1.PullAlways, "host:5000/kiosk": corev1.PullAlways,
		"kiosk:1": corev1.PullIfNotPresent, "host:5000/kiosk:1": corev1.PullIfNotPresent,
		"kiosk@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": corev1.PullIfNotPresent,
		"Not A Reference": corev1.PullIfNotPresent,
	} {
		if got := pullPolicy(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

func TestQualityOfService(t *testing.T) {
	for name, c := range map[string]struct {
		containers string
		want       corev1.PodQOSClass
	}{
		"a pod without requests and limits is best effort":       {"[{name: a, image: a}]", corev1.PodQOSBestEffort},
		"a pod with requests of zero is best effort":             {"[{name: a, image: a, resources: {requests: {cpu: 0}}}]", corev1.PodQOSBestEffort},
		"a pod with only limits of cpu and memory is guaranteed": {"[{name: a, image: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]", corev1.PodQOSGuaranteed},
		"a pod with requests below its limits is burstable":      {"[{name: a, image: a, resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}}]", corev1.PodQOSBurstable},
		"a pod with only a memory limit is burstable":            {"[{name: a, image: a, resources: {limits: {memory: 1Gi}}}]", corev1.PodQOSBurstable},
		"a pod with one container without limits is burstable":   {"[{name: a, image: a, resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b, image: b}]", corev1.PodQOSBurstable},
		"a pod with only a storage limit is best effort":         {"[{name: a, image: a, resources: {limits: {ephemeral-storage: 1Gi}}}]", corev1.PodQOSBestEffort},
		"a pod with limits for both containers is guaranteed":    {"[{name: a, image: a, resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b, image: b, resources: {limits: {cpu: 2, memory: 2Gi}}}]", corev1.PodQOSGuaranteed},
	} {
		t.Run(name, func(t *testing.T) {
			p := parse[*corev1.Pod](t, "metadata: {name: a, namespace: b}\nspec: {containers: "+c.containers+"}")
			Default(p, normal)
			if p.Status.QOSClass != c.want {
				t.Errorf("got %s, want %s", p.Status.QOSClass, c.want)
			}
		})
	}
}

func TestPriorityClasses(t *testing.T) {
	p := aPod(t, "priorityClassName: system-node-critical")
	expect(t, Validate(p, normal), "")
	if p.Spec.Priority == nil || *p.Spec.Priority != 2000001000 {
		t.Errorf("priority is %v", p.Spec.Priority)
	}
	expect(t, Validate(aPod(t, "priorityClassName: Gold"), normal), "spec.priorityClassName: Invalid value")
	expect(t, Validate(aPod(t, "priorityClassName: system-node-critical\npriority: 5"), normal),
		"spec.priority: Forbidden")
	expect(t, Validate(aPod(t, "priority: 1000000001"), normal),
		"spec.priority: Invalid value: 1000000001: must be less than")
	expect(t, Validate(aPod(t, "priority: -5"), normal), "")
}

// The cases of section S9 in hub/testdata/scenarios.txt.
func TestDefaultTolerations(t *testing.T) {
	const (
		notReady    = "{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 300}"
		unreachable = "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 300}"
	)
	for _, c := range []struct{ name, have, want string }{
		{"a pod without tolerations gets both", "", notReady + "," + unreachable},
		{"an unrelated toleration stays first", "{key: foo, operator: Equal, value: bar, effect: NoSchedule, tolerationSeconds: 700}",
			"{key: foo, operator: Equal, value: bar, effect: NoSchedule, tolerationSeconds: 700}," + notReady + "," + unreachable},
		{"the pod's seconds for not-ready stay", "{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 700}",
			"{key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 700}," + unreachable},
		{"the pod's seconds for unreachable stay", "{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 700}",
			"{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 700}," + notReady},
		{"the pod's seconds for both stay", notReady + "," + unreachable, notReady + "," + unreachable},
		{"a toleration without an effect covers every effect", "{key: node.kubernetes.io/unreachable, operator: Exists}",
			"{key: node.kubernetes.io/unreachable, operator: Exists}," + notReady},
		{"a toleration without a key covers every key", "{operator: Exists}", "{operator: Exists}"},
		{"a toleration without a key for another effect does not count", "{operator: Exists, effect: NoSchedule}",
			"{operator: Exists, effect: NoSchedule}," + notReady + "," + unreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := aPod(t, "tolerations: ["+c.have+"]").Spec.Tolerations
			want := parse[*corev1.Pod](t, "spec: {tolerations: ["+c.want+"]}").Spec.Tolerations
			if asYAML(t, got) != asYAML(t, want) {
				t.Errorf("got:\n%swant:\n%s", asYAML(t, got), asYAML(t, want))
			}
		})
	}
}
