package kube

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/e2e/kubectltest"
	"flotilla.dev/shared/fleet"
)

const webYAML = `apiVersion: apps/v1
kind: Deployment
metadata: {name: site}
spec:
  replicas: 2
  selector: {matchLabels: {app: site}}
  template:
    metadata: {labels: {app: site}}
    spec:
      containers:
      - {name: site, image: "nginx:1.28"}
`

// serveTLS serves over TLS, because kubectl sends tokens only over TLS. It returns a kubeconfig for
// the role.
func serveTLS(t *testing.T, s *Server, role string) (kubeconfig string) {
	t.Helper()
	kubeconfig, _ = serveAsked(t, s, role)
	return kubeconfig
}

// The newest kubectl works with this package alone, without deciders. Package e2e runs every
// command line with every kubectl against a whole hub. Later commands depend on earlier ones.
func TestKubectl(t *testing.T) {
	t.Parallel()
	program := kubectltest.Build(t, kubectltest.Newest)
	fleetOf := seeded()
	fleetOf.put(&fleet.DeviceReport{
		ObjectMeta: metav1.ObjectMeta{Name: "pi-1", CreationTimestamp: metav1.NewTime(fakeStart)},
		Reported:   metav1.NewTime(fakeStart),
		Hardware:   runtime.RawExtension{Raw: []byte(`{"board":{"name":"raspberrypi4"},"temperatures":[{"name":"cpu","celsius":48.2}],"power":{"underVoltage":true},"disks":[{"name":"mmcblk0"}],"future":"kept"}`)},
	})
	config := serveTLS(t, newServer(fleetOf), "admin")
	for _, c := range []struct {
		args  string
		stdin string
		code  int
		want  []string // parts of the output
	}{
		{args: "version", want: []string{"Server Version: " + kubernetesVersion}},
		{args: "get --raw /", want: []string{`"paths": [`, `"/apis/apps/v1",`}},
		{args: "api-resources", want: []string{"deployments", "boardprofiles", "flotilla.dev/v1alpha1"}},
		{args: "get nodes", want: []string{"NAME   STATUS   ROLES    AGE", "pi-1   Ready"}},
		{args: "get nodes -o wide", want: []string{"SITE", "oslo", "raspberrypi4"}},
		{args: "get nodes -o name", want: []string{"node/pi-1\nnode/pi-2\n"}},
		{args: "get nodes -o json", want: []string{`"kind": "List"`, `"kind": "Node"`}},
		{args: "get nodes --chunk-size=1", want: []string{"pi-1", "pi-2"}},
		{args: "get nodes --sort-by=.metadata.name", want: []string{"pi-1"}},
		{args: "get node nope", code: 1, want: []string{`Error from server (NotFound): nodes "nope" not found`}},
		{args: "get foo", code: 1, want: []string{`the server doesn't have a resource type "foo"`}},
		{args: "get pods -A -o wide", want: []string{"default     kiosk-1   1/1     Running", "pi-1"}},
		{args: "get leases -n kube-node-lease", want: []string{"pi-1   pi-1"}},
		{args: "get events", want: []string{"Started container main"}},
		{args: "events", want: []string{"Started container main"}},
		{args: "get devicereports", want: []string{"NAME   BOARD          TEMPERATURE   POWER          STORAGE   AGE", "pi-1   raspberrypi4   48°C          UnderVoltage   OK "}},
		{args: "get dr -o wide", want: []string{"MODEL", "REPORTED"}},
		{args: "get dr pi-1 -o yaml", want: []string{"kind: DeviceReport", "    underVoltage: true", "  future: kept"}},
		{args: "get dr pi-1 -o jsonpath={.hardware.temperatures[0].celsius}", want: []string{"48.2"}},
		{args: "get dr --field-selector=metadata.name=pi-2", want: []string{"No resources found"}},
		{args: "get dr pi-2", code: 1, want: []string{`devicereports.flotilla.dev "pi-2" not found`}},
		{args: "describe devicereport pi-1", want: []string{"Celsius:", "48.2"}},
		{args: "explain devicereport.hardware.temperatures", want: []string{"celsius\t<number> -required-", "The sensor."}},
		{args: "delete devicereport pi-1", code: 1, want: []string{"device reports are read-only"}},
		{args: "label devicereport pi-1 a=b", code: 1, want: []string{"device reports are read-only"}},
		{args: "create --validate=false -f -", stdin: "{apiVersion: flotilla.dev/v1alpha1, kind: DeviceReport, metadata: {name: pi-2}}", code: 1, want: []string{"device reports are read-only"}},
		{args: "auth can-i list devicereports", want: []string{"yes"}},
		{args: "get svc", want: []string{"No resources found"}},
		{args: "describe node pi-1", want: []string{"RenewTime:", "kiosk-1", "Allocatable:"}},
		{args: "describe pod kiosk-1", want: []string{"Node:", "Started container main"}},
		{args: "cordon pi-1", want: []string{"node/pi-1 cordoned"}},
		{args: "get node pi-1", want: []string{"Ready,SchedulingDisabled"}},
		{args: "uncordon pi-1", want: []string{"node/pi-1 uncordoned"}},
		{args: "taint nodes pi-1 a=b:NoSchedule", want: []string{"node/pi-1 tainted"}},
		{args: "taint nodes pi-1 a:NoSchedule-", want: []string{"node/pi-1 untainted"}},
		{args: "taint nodes pi-1 nope-", code: 1},
		{args: "label node pi-1 shelf=3", want: []string{"node/pi-1 labeled"}},
		{args: "get nodes -l shelf=3 -L shelf", want: []string{"SHELF", "pi-1"}},
		{args: "annotate node pi-1 note=hello", want: []string{"node/pi-1 annotated"}},
		{args: "create configmap c1 --from-literal=a=b", want: []string{"configmap/c1 created"}},
		{args: "create secret generic s1 --from-literal=p=w", want: []string{"secret/s1 created"}},
		{args: "get secret s1 -o jsonpath={.data.p}", want: []string{"dw=="}},
		{args: "create namespace team-a", want: []string{"namespace/team-a created"}},
		{args: "create deployment d2 --image=busybox:1", want: []string{"deployment.apps/d2 created"}},
		{args: "apply -f -", stdin: webYAML, want: []string{"deployment.apps/site created"}},
		{args: "apply -f -", stdin: webYAML, want: []string{"deployment.apps/site unchanged"}},
		{args: "apply -f -", stdin: strings.Replace(webYAML, "1.28", "1.29", 1), want: []string{"deployment.apps/site configured"}},
		{args: "apply -f -", stdin: strings.Replace(webYAML, "replicas", "repliques", 1), code: 1, want: []string{`unknown field "spec.repliques"`}},
		{args: "set image deploy/site site=nginx:1.30", want: []string{"image updated"}},
		{args: "apply --server-side -f -", stdin: webYAML, code: 1, want: []string{"Apply failed with 1 conflict", "kubectl-set", ".image"}},
		{args: "apply --server-side --force-conflicts -f -", stdin: webYAML, want: []string{"serverside-applied"}},
		{args: "scale deploy site --replicas=1", want: []string{"deployment.apps/site scaled"}},
		{args: "rollout restart deploy/site", want: []string{"restarted"}},
		{args: "patch deploy site --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":2}]", want: []string{"patched"}},
		{args: "explain pod.spec.nodeName", want: []string{"FIELD: nodeName"}},
		{args: "explain pod.spec.containers.imagePullPolicy", want: []string{"ENUM:\n    Always\n    IfNotPresent\n    Never\n"}},
		{args: "explain pv.spec.persistentVolumeReclaimPolicy", want: []string{"ENUM:\n    Delete\n    Retain\n", "Possible enum values"}},
		{args: "explain site.spec", want: []string{"disruptionPolicy"}},
		{args: "diff -f -", stdin: strings.Replace(webYAML, "1.28", "1.27", 1), code: 1, want: []string{"+      - image: nginx:1.27"}},
		{args: "run r1 --image=busybox:1 --restart=Never", want: []string{"pod/r1 created"}},
		{args: "get all", want: []string{"pod/r1", "deployment.apps/site"}},
		{args: "logs kiosk-1", want: []string{"hello from main of kiosk-1"}},
		{args: "top nodes", want: []string{"pi-1", "250m"}},
		{args: "auth whoami", want: []string{"admin", "flotilla:admin"}},
		{args: "auth can-i delete pods", want: []string{"yes"}},
		{args: "wait --for=condition=Ready node/pi-1 --timeout=3m", want: []string{"condition met"}},
		{args: "wait --for=condition=Nope node/pi-1 --timeout=1s", code: 1, want: []string{"timed out"}},
		{args: "drain pi-2 --force --ignore-daemonsets --timeout=4s", code: 1, want: []string{"Cannot evict pod as it would violate the pod's disruption budget"}},
		{args: "delete pod r1", want: []string{`"r1" deleted`}},
		{args: "delete pod kiosk-1 --wait=false", want: []string{`"kiosk-1" deleted`}},
		{args: "get pod kiosk-1", want: []string{"Terminating"}},
		{args: "delete pod kiosk-1 --force", want: []string{`"kiosk-1" force deleted`}},
		{args: "delete deploy site d2", want: []string{`"site" deleted`, `"d2" deleted`}},
		{args: "delete namespace team-a --wait=false", want: []string{`"team-a" deleted`}},
		{args: "get ns team-a", want: []string{"Terminating"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			out, errs, code := kubectltest.RunInput(t, program, config, c.stdin, strings.Fields(c.args)...)
			out += errs
			if code != c.code {
				t.Errorf("exit %d, want %d:\n%s", code, c.code, out)
			}
			for _, part := range c.want {
				if !strings.Contains(out, part) {
					t.Errorf("%q is missing in\n%s", part, out)
				}
			}
		})
	}
}

// The refusal of a viewer names the user, verb and resource.
func TestKubectlAsViewer(t *testing.T) {
	config := serveTLS(t, newServer(seeded()), "viewer")
	_, errs, code := kubectltest.Run(t, kubectltest.Build(t, kubectltest.Newest), config, "label", "node", "pi-1", "a=b")
	if code == 0 || !strings.Contains(errs, `User "viewer" cannot patch resource "nodes"`) {
		t.Errorf("label: exit %d: %s", code, errs)
	}
}

// kubectl get -w prints a change when it happens.
func TestKubectlWatches(t *testing.T) {
	f := seeded()
	config := serveTLS(t, newServer(f), "viewer")
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, kubectltest.Build(t, kubectltest.Newest), "get", "pods", "-o", "wide", "-w")
	cmd.Env = kubectltest.Env(t, config)
	lines, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	var out bytes.Buffer
	await := func(part string) {
		t.Helper()
		buf := make([]byte, 4096)
		for !strings.Contains(out.String(), part) {
			n, err := lines.Read(buf)
			out.Write(buf[:n])
			if err != nil {
				t.Fatalf("%q is missing in\n%s", part, out.String())
			}
		}
	}
	await("kiosk-2")
	f.put(fakePod("late", "pi-2"))
	await("late")
	f.remove(fakePod("late", ""))
	f.put(fakePod("later", "pi-1"))
	await("later")
}
