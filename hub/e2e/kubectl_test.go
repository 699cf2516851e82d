package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/e2e/kubectltest"
)

const shopYAML = `apiVersion: apps/v1
kind: Deployment
metadata: {name: shop, labels: {app: shop}}
spec:
  replicas: 3
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - name: main
        image: example.org/shop:1
        resources: {requests: {cpu: 50m, memory: 32Mi}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: watchman}
spec:
  selector: {matchLabels: {app: watchman}}
  template:
    metadata: {labels: {app: watchman}}
    spec:
      containers: [{name: main, image: "example.org/watchman:1"}]
`

// A kubectlCase is one kubectl command and its expected output.
type kubectlCase struct {
	args  string   // words separated by spaces; POD is a pod of the deployment, NODE the pod's node
	stdin string   // standard input
	code  int      // expected exit code
	want  []string // regular expressions
	not   []string // regular expressions that must not match
}

// workingDay runs the usual kubectl commands on eight simulated devices on three sites.
func (h *hub) workingDay(t *testing.T) {
	t.Helper()
	k := &kubectlUser{h, kubectl(t), "", ""}
	k.say(t, []kubectlCase{
		{args: "get nodes", want: []string{`(?m)^NAME\s+STATUS\s+ROLES\s+AGE\s+VERSION`, `(?m)^sim-0001\s+Ready\s+<none>\s+\d+s\s+v1\.\d+\.\d+\+flotilla`, `sim-0008`}},
		{args: "get nodes -o wide", want: []string{`INTERNAL-IP`, `OS-IMAGE`, `KERNEL-VERSION`, `CONTAINER-RUNTIME`, `sim-0003.*10\.100\.0\.4.*Debian.*docker://`}},
		{args: "get nodes -o name", want: []string{`^(node/sim-000\d\n){8}$`}},
		{args: "get node sim-0002 -o yaml", want: []string{`(?m)^kind: Node$`, `topology\.kubernetes\.io/zone: site-02`, `machineID: .*[0-9a-f]{8}`}},
		{args: "get nodes -L topology.kubernetes.io/zone", want: []string{`ZONE`, `sim-0004.*site-01`}},
		{args: "get nodes -l topology.kubernetes.io/zone=site-03", want: []string{`sim-0003`, `sim-0006`}, not: []string{`sim-0001`}},
		{args: "get node nobody", code: 1, want: []string{`Error from server \(NotFound\): nodes "nobody" not found`}},
		{args: "get leases -A", want: []string{`kube-node-lease\s+sim-0001\s+sim-0001`, `sim-0008`}},
		{args: "describe node sim-0001", want: []string{`Name:\s+sim-0001`, `Conditions:`, `Ready\s+True`, `KubeletReady`, `Capacity:`, `Allocatable:`, `RenewTime:`, `Container Runtime Version:\s+docker://`, `Non-terminated Pods:`}},
		{args: "get sites.flotilla.dev", want: []string{`site-01`, `site-03`}},
		{args: "get --raw /api/v1/nodes/sim-0001/proxy/logs/?query=kubelet&tailLines=1000", want: []string{`(?m)^20\S+Z level=INFO msg="connected to the hub" node=sim-0001 `}, not: []string{`sim-0002`}},
		{args: "get --raw /api/v1/nodes/sim-0001/proxy/logs/?query=docker", code: 1, want: []string{`BadRequest.*query: Unsupported value: "docker": supported values: "flotilla-device", "kubelet"`}},

		{args: "apply -f -", stdin: shopYAML, want: []string{`deployment.apps/shop created`, `daemonset.apps/watchman created`}},
		{args: "rollout status deployment/shop --timeout=3m", want: []string{`deployment "shop" successfully rolled out`}},
		{args: "rollout status daemonset/watchman --timeout=3m", want: []string{`daemon set "watchman" successfully rolled out`}},
		{args: "get deployments -o wide", want: []string{`(?m)^NAME\s+READY\s+UP-TO-DATE\s+AVAILABLE`, `shop\s+3/3\s+3\s+3\s+.*main\s+example.org/shop:1\s+app=shop`}},
		{args: "get daemonsets", want: []string{`watchman\s+8\s+8\s+8\s+8\s+8`}},
		{args: "get pods -A", want: []string{`(?m)^NAMESPACE\s+NAME\s+READY\s+STATUS`, `(?m)^default\s+shop-\S+\s+1/1\s+Running\s+0`}},
		{args: "get pods -o name -l app=watchman", want: []string{`^(pod/watchman-\S+\n){8}$`}},
		{args: "apply -f -", stdin: shopYAML, want: []string{`deployment.apps/shop unchanged`}},
	})
	k.find(t)
	k.say(t, []kubectlCase{
		{args: "get pod POD -o wide", want: []string{`POD\s+1/1\s+Running.*NODE`}},
		{args: "describe pod POD", want: []string{`Name:\s+POD`, `Node:\s+NODE`, `Controlled By:\s+ReplicaSet/shop-`, `Image:\s+example.org/shop:1`, `Tolerations:`, `Events:`, `Scheduled`, `Pulled`, `Started`}},
		{args: "logs POD", want: []string{`simulated .* start 1`}},
		{args: "logs deployment/shop --tail=1", want: []string{`simulated`}},
		{args: "get events", want: []string{`LAST SEEN\s+TYPE\s+REASON\s+OBJECT\s+MESSAGE`, `Scheduled`, `Started container main`}},
		{args: "get events -A --field-selector involvedObject.name=POD", want: []string{`pod/POD`}, not: []string{`watchman`}},
		{args: "get pods --field-selector spec.nodeName=NODE", want: []string{`POD`, `watchman-`}},

		{args: "set image deployment/shop main=example.org/shop:2", want: []string{`image updated`}},
		{args: "rollout status deployment/shop --timeout=3m", want: []string{`successfully rolled out`}},
		{args: "rollout history deployment/shop", want: []string{`REVISION`, `(?m)^1\s`, `(?m)^2\s`}},
		{args: "get deployment shop -o jsonpath={.spec.template.spec.containers[0].image}", want: []string{`^example.org/shop:2$`}},
		{args: "rollout undo deployment/shop", want: []string{`rolled back`}},
		{args: "rollout status deployment/shop --timeout=3m", want: []string{`successfully rolled out`}},
		{args: "get deployment shop -o jsonpath={.spec.template.spec.containers[0].image}", want: []string{`^example.org/shop:1$`}},
		{args: "scale deployment/shop --replicas=5", want: []string{`deployment.apps/shop scaled`}},
		{args: "wait deployment/shop --for=jsonpath={.status.availableReplicas}=5 --timeout=3m", want: []string{`condition met`}},

		{args: "label node sim-0001 shelf=3", want: []string{`node/sim-0001 labeled`}},
		{args: "get nodes -l shelf=3 -o name", want: []string{`^node/sim-0001\n$`}},
		{args: "label node sim-0001 shelf-", want: []string{`node/sim-0001 unlabeled`}},
		{args: "cordon sim-0001", want: []string{`node/sim-0001 cordoned`}},
		{args: "get node sim-0001", want: []string{`Ready,SchedulingDisabled`}},
		{args: "get node sim-0001 -o jsonpath={.spec.taints[*].key}", want: []string{`node.kubernetes.io/unschedulable`}},
		{args: "uncordon sim-0001", want: []string{`node/sim-0001 uncordoned`}},
		{args: "get node sim-0001 -o jsonpath={.spec.taints}", want: []string{`^$`}},
		{args: "taint node sim-0001 camera=true:NoSchedule", want: []string{`node/sim-0001 tainted`}},
		{args: "describe node sim-0001", want: []string{`Taints:\s+camera=true:NoSchedule`}},
		{args: "taint node sim-0001 camera:NoSchedule-", want: []string{`node/sim-0001 untainted`}},

		{args: "apply -f -", stdin: strings.Replace(shopYAML, "replicas:", "repliques:", 1), code: 1, want: []string{`unknown field "spec\.repliques"`}},
		{args: "apply -f -", stdin: strings.Replace(shopYAML, "cpu: 50m", "cpu: much", 1), code: 1, want: []string{`requests.cpu: expected an amount such as 100m`}},
		{args: "apply -f -", stdin: strings.Replace(shopYAML, "{app: shop}}\n  template", "{app: other}}\n  template", 1), code: 1, want: []string{`selector`}},
		{args: "taint node sim-0001 camera=true:Never", code: 1, want: []string{`invalid taint effect`}},
	})
	k.find(t)
	k.drain(t)
	k.watches(t)
	k.unplaceable(t)
	k.say(t, []kubectlCase{
		{args: "delete deployment shop", want: []string{`deployment.apps "shop" deleted`}},
		{args: "wait pod -l app=shop --for=delete --timeout=3m"},
		{args: "get pods -l app=shop", want: []string{`No resources found`}},
		{args: "delete -f - --wait=false", stdin: strings.SplitN(shopYAML, "---\n", 2)[1], want: []string{`daemonset.apps "watchman" deleted`}},
		{args: "delete node sim-0008", want: []string{`node "sim-0008" deleted`}},
	})
	for _, role := range []string{"viewer", "operator"} {
		k.as(t, role)
	}
}

// A kubectlUser runs kubectl and has chosen a pod and its node.
type kubectlUser struct {
	*hub
	program   string
	pod, node string
}

func (k *kubectlUser) fill(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "POD", k.pod), "NODE", k.node)
}

func (k *kubectlUser) say(t *testing.T, cases []kubectlCase) {
	t.Helper()
	for _, s := range cases {
		k.one(t, k.config, s)
	}
}

func (k *kubectlUser) one(t *testing.T, config string, s kubectlCase) {
	t.Helper()
	args := strings.Fields(k.fill(s.args))
	out, errs, code := kubectltest.RunInput(t, k.program, config, s.stdin, args...)
	both := out + errs
	if code != s.code {
		t.Errorf("kubectl %s: code %d, want %d: %s", s.args, code, s.code, both)
		return
	}
	for _, w := range s.want {
		w = k.fill(w) // an object's name is literal in a regular expression
		if !regexp.MustCompile(w).MatchString(both) {
			t.Errorf("kubectl %s: %q is missing in\n%s", s.args, w, both)
		}
	}
	for _, n := range s.not {
		if regexp.MustCompile(n).MatchString(both) {
			t.Errorf("kubectl %s: %q must not be in\n%s", s.args, n, both)
		}
	}
}

// find chooses a pod of the deployment.
func (k *kubectlUser) find(t *testing.T) {
	t.Helper()
	pods, err := k.pods("shop", "")
	for _, p := range pods {
		if p.DeletionTimestamp == nil && p.Spec.NodeName != "" {
			k.pod, k.node = p.Name, p.Spec.NodeName
			return
		}
	}
	t.Fatalf("the deployment has no pod: %d, %v", len(pods), err)
}

// drain drains a node and uncordons it.
func (k *kubectlUser) drain(t *testing.T) {
	t.Helper()
	k.say(t, []kubectlCase{
		{args: "drain NODE --timeout=30s", code: 1, want: []string{`DaemonSet-managed Pods`}},
		{args: "drain NODE --ignore-daemonsets --timeout=3m", want: []string{`node/\S+ (already )?cordoned`, `evicting pod default/POD`, `node/\S+ drained`}},
		{args: "get pod POD", code: 1, want: []string{`NotFound`}},
		{args: "wait deployment/shop --for=jsonpath={.status.availableReplicas}=5 --timeout=3m", want: []string{`condition met`}},
		{args: "get pods -l app=shop -o wide", not: []string{k.node}},
		{args: "uncordon NODE", want: []string{`uncordoned`}},
	})
}

// watches checks that kubectl get -w prints a change when it happens.
func (k *kubectlUser) watches(t *testing.T) {
	t.Helper()
	nodes := start(t, k.program, "--kubeconfig", k.config, "get", "nodes", "-w")
	pods := start(t, k.program, "--kubeconfig", k.config, "get", "pods", "-l", "app=shop", "-w", "-o", "wide")
	says := func(p *process, want string) {
		t.Helper()
		await(t, "kubectl -w prints "+want, patience, func() error {
			if !regexp.MustCompile(want).MatchString(p.output.String()) {
				return errors.New(p.output.String())
			}
			return nil
		})
	}
	says(nodes, `sim-0008`)
	says(pods, `shop-`)
	k.kubectl("cordon", "sim-0005")
	says(nodes, `(?m)^sim-0005\s+Ready,SchedulingDisabled`)
	k.kubectl("uncordon", "sim-0005")
	k.kubectl("scale", "deployment/shop", "--replicas=6")
	says(pods, `(?m)^shop-\S+\s+0/1\s+Pending(.*\n)+shop-\S+\s+1/1\s+Running`)
	k.kubectl("scale", "deployment/shop", "--replicas=5")
	says(pods, `(?m)^shop-\S+\s+1/1\s+Terminating`)
	for _, p := range []*process{nodes, pods} {
		p.end(syscall.SIGINT)
	}
}

// unplaceable checks that a pod that fits no node reports why.
func (k *kubectlUser) unplaceable(t *testing.T) {
	t.Helper()
	text := `{apiVersion: v1, kind: Pod, metadata: {name: giant}, spec: {containers: [{name: main, image: "example.org/giant:1", resources: {requests: {memory: 900Gi}}}]}}`
	k.kubectlWith(text, "apply", "-f", "-")
	await(t, "the pod has the reason why it is Pending", patience, func() error {
		if out := k.kubectl("describe", "pod", "giant"); !strings.Contains(out,
			"0/8 nodes are available: 8 Insufficient memory") {
			return errors.New(out)
		}
		return nil
	})
	k.say(t, []kubectlCase{
		{args: "get pod giant", want: []string{`0/1\s+Pending`}},
		{args: "delete pod giant --grace-period=0 --force", want: []string{`pod "giant" (force )?deleted`}},
	})
}

// as checks what a role may do and what it may not do.
func (k *kubectlUser) as(t *testing.T, role string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "kubeconfig")
	text := output(t, program(t, "hub", here), "kubeconfig", "--data-dir", k.dir, "--server", "https://"+k.https, "--role",
		role, "--user", "kari")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	k.one(t, config, kubectlCase{args: "get nodes", want: []string{`sim-0001`}})
	k.one(t, config, kubectlCase{args: "get --raw /api/v1/nodes/sim-0001/proxy/logs/?query=kubelet&pattern=level&tailLines=1", want: []string{`^20\S+Z level=.*\n$`}})
	change, secrets := kubectlCase{args: "label node sim-0001 by=kari", want: []string{`labeled`}},
		kubectlCase{args: "get secrets -A"}
	if role == "viewer" {
		change = kubectlCase{args: change.args, code: 1, want: []string{`Forbidden`, `kari`, `viewer`}}
		secrets = kubectlCase{args: secrets.args, code: 1, want: []string{`Forbidden`}}
	}
	k.one(t, config, change)
	k.one(t, config, secrets)
}

// kubectl prints the same objects as JSON and as YAML.
func TestOutputsAgree(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.simulate(1, 1)
	for _, kind := range []string{"nodes", "pods", "deployments", "daemonsets", "leases", "events", "sites"} {
		var fromJSON, fromYAML corev1.List
		if err := json.Unmarshal([]byte(h.kubectl("get", kind, "-A", "-o", "json")), &fromJSON); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if err := yaml.Unmarshal([]byte(h.kubectl("get", kind, "-A", "-o", "yaml")), &fromYAML); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if fromJSON.Kind != "List" || fromYAML.Kind != "List" || len(fromJSON.Items) != len(fromYAML.Items) {
			t.Errorf("%s: %d items as JSON, %d as YAML", kind, len(fromJSON.Items), len(fromYAML.Items))
		}
		if kind == "nodes" && len(fromJSON.Items) != 1 {
			t.Error(fmt.Sprint(len(fromJSON.Items), " nodes"))
		}
	}
}
