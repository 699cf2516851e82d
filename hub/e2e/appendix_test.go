package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/kubectltest"
)

// manifests are the files that the command lines use.
var manifests = map[string]string{
	"pod.yaml": podYAML,
	"bad.yaml": strings.NewReplacer("solo", "badpod", "spec:\n", "spec:\n  colour: red\n").Replace(podYAML),
	"ds.yaml": `apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  selector: {matchLabels: {app: agent}}
  template:
    metadata: {labels: {app: agent}}
    spec: {containers: [{name: agent, image: "example.org/agent:1"}]}
`,
	"cm.yaml":                 "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: team-a}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: pruned, namespace: team-a}\n",
	"cm2.yaml":                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kept, namespace: team-a}\n",
	"dep.yaml":                deploymentYAML,
	"dep2.yaml":               strings.NewReplacer("web:1", "web:2", "replicas: 2", "replicas: 3").Replace(deploymentYAML),
	"kust/kustomization.yaml": "configMapGenerator: [{name: k-gen, literals: [a=b]}]\nresources: [plain.yaml]\n",
	"kust/plain.yaml":         "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: k-plain}\ndata: {c: d}\n",
	"edit.sh":                 "#!/bin/sh\nsed -i 's/a: b/a: edited/' \"$1\"\n",
}

const podYAML = `apiVersion: v1
kind: Pod
metadata: {name: solo, labels: {app: solo}}
spec:
  nodeName: sim-0001
  containers: [{name: main, image: "example.org/solo:1"}]
`

const deploymentYAML = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "example.org/web:1"}]}
`

// A row is a kubectl command line and its expected result. DIR in args is the directory of the
// manifests.
type row struct {
	args   []string
	stdin  string
	code   int
	from   string   // first minor version that supports the command; "" for all
	until  string   // the command runs until it prints this, and is then ended
	during string   // a second command line, which is repeated until then; N is a number
	want   []string // regular expressions that match one of the outputs
	not    []string
}

func words(s string) []string { return strings.Fields(s) }

// resize changes the requests of a pod through its subresource.
func resize(requests string) []string {
	return []string{"patch", "pod", "sized", "--subresource=resize", "-p",
		`{"spec":{"containers":[{"name":"main","resources":{"requests":` + requests + `}}]}}`}
}

const sized = `apiVersion: v1
kind: Pod
metadata: {name: sized}
spec:
  nodeName: sim-0001
  containers: [{name: main, image: "example.org/sized:1", resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 32Mi}}}]
`

// nowhere is a deployment whose pod fits no node.
const nowhere = `apiVersion: apps/v1
kind: Deployment
metadata: {name: nowhere}
spec:
  selector: {matchLabels: {app: nowhere}}
  template:
    metadata: {labels: {app: nowhere}}
    spec: {nodeSelector: {no: where}, containers: [{name: web, image: "example.org/web:1"}]}
`

const stateful = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: default, labels: {app: db}}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: busybox, volumeMounts: [{name: data, mountPath: /data}]}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
`

const controller = `apiVersion: v1
kind: ReplicationController
metadata: {name: old, namespace: default}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: old}}
    spec: {containers: [{name: c, image: busybox}]}
---
apiVersion: v1
kind: PodTemplate
metadata: {name: old, namespace: default}
template:
  metadata: {labels: {app: old}}
  spec: {containers: [{name: c, image: busybox}]}
`

// appendix has the command lines that users and tools run. They are in an order in which each finds
// its objects: three devices, two workloads and a single pod.
//
// `create token` and `autoscale` must be refused, because their kinds are not implemented.
var appendix = []row{
	{args: words("version"), want: []string{`Server Version: v1\.\d+\.\d+\+flotilla`}},
	{args: words("cluster-info"), want: []string{`Kubernetes control plane.* is running at`}},
	{args: words("get nodes"), want: []string{`(?m)^NAME\s+STATUS\s+ROLES\s+AGE\s+VERSION$`, `(?m)^sim-0001\s+Ready\s+<none>`, `sim-0003`}},
	{args: words("get nodes -o wide"), want: []string{`SITE\s+BOARD\s+LAST-SEEN`, `sim-0002\s+Ready.*docker://\S+\s+site-02\s+\S+\s+\d+s`}},
	{args: words("get nodes -o json"), want: []string{`"kind": "List"`, `"kind": "Node"`}},
	{args: words("get nodes -o yaml"), want: []string{`(?m)^kind: List$`, `(?m)^  kind: Node$`}},
	{args: words("get nodes -o name"), want: []string{`^(node/sim-000\d\n){3}$`}},
	{args: words("get node sim-0001"), want: []string{`^NAME.*\nsim-0001\s+Ready.*\n$`}},
	{args: words("get node nope"), code: 1, want: []string{`Error from server \(NotFound\): nodes "nope" not found`}},
	{args: words("get nodes -l topology.kubernetes.io/zone=site-01 --show-labels"), want: []string{`LABELS`, `sim-0001.*topology.kubernetes.io/zone=site-01`}, not: []string{`sim-0002`}},
	{args: words("get nodes -L topology.kubernetes.io/zone"), want: []string{`ZONE`, `sim-0002.*site-02`}},
	{args: words("get nodes --field-selector metadata.name=sim-0001"), want: []string{`sim-0001`}, not: []string{`sim-0002`}},
	{args: words("get nodes --sort-by=.metadata.name"), want: []string{`(?s)sim-0001.*sim-0002.*sim-0003`}},
	{args: words("get nodes -o custom-columns=N:.metadata.name"), want: []string{`^N\nsim-0001\nsim-0002\nsim-0003\n$`}},
	{args: words("get nodes -o jsonpath={.items[*].metadata.name}"), want: []string{`^sim-0001 sim-0002 sim-0003$`}},
	{args: words("get nodes -w"), until: `sim-0003`, want: []string{`^NAME\s+STATUS`}},
	{args: words("get nodes -w --output-watch-events"), until: `sim-0003`, want: []string{`^EVENT\s+NAME\s+STATUS`, `ADDED\s+sim-0001`}},
	{args: words("get nodes --watch-only"), during: "annotate node sim-0002 watched=N --overwrite", until: `sim-0002`, not: []string{`sim-0001`}},
	{args: words("get node sim-0001 -w"), until: `sim-0001`, not: []string{`sim-0002`}},
	{args: words("get nodes -w -o json"), until: `"name": "sim-0003"`, want: []string{`"kind": "Node"`}},
	{args: words("describe node sim-0001"), want: []string{`Name:\s+sim-0001`, `Ready\s+True`, `Allocatable:`, `RenewTime:`, `Non-terminated Pods:`, `RegisteredNode`}},
	{args: words("get ns"), want: []string{`default\s+Active`, `kube-node-lease\s+Active`}},
	{args: words("get leases -n kube-node-lease"), want: []string{`NAME\s+HOLDER\s+AGE`, `sim-0003\s+sim-0003`}},

	{args: words("create -f DIR/pod.yaml"), want: []string{`pod/solo created`}},
	{args: words("create -f DIR/pod.yaml"), code: 1, want: []string{`Error from server \(AlreadyExists\).*pods "solo" already exists`}},
	{args: words("apply -f DIR/bad.yaml"), code: 1, want: []string{`(?i)unknown field "spec.colour"`}},
	{args: words("apply -f DIR/bad.yaml --validate=warn"), want: []string{`(?i)Warning: unknown field "spec.colour"`, `pod/badpod created`}},
	{args: words("apply -f DIR/bad.yaml --validate=false"), want: []string{`pod/badpod (configured|unchanged)`}},
	{args: words("delete -f DIR/bad.yaml --now"), want: []string{`pod "badpod" deleted`}},
	{args: words("diff -f DIR/dep.yaml"), code: 1, want: []string{`\+kind: Deployment`, `\+  uid: `}},
	{args: words("apply -f DIR/dep.yaml"), want: []string{`deployment.apps/web created`}},
	{args: words("apply -f DIR/ds.yaml"), want: []string{`daemonset.apps/agent created`}},
	{args: words("rollout status deploy/web --timeout=3m"), want: []string{`deployment "web" successfully rolled out`}},
	{args: words("rollout status ds/agent --timeout=3m"), want: []string{`daemon set "agent" successfully rolled out`}},
	{args: words("diff -f DIR/dep2.yaml"), code: 1, want: []string{`-  replicas: 2`, `\+  replicas: 3`, `\+      - image: example.org/web:2`}},
	{args: words("apply -f DIR/dep2.yaml --dry-run=server"), want: []string{`deployment.apps/web configured \(server dry run\)`}},
	{args: words("apply -f DIR/dep2.yaml --dry-run=client"), want: []string{`deployment.apps/web configured \(dry run\)`}},
	{args: words("apply -f DIR/dep2.yaml"), want: []string{`deployment.apps/web configured`}},
	{args: words("rollout history deploy/web"), want: []string{`REVISION`, `(?m)^1\s`, `(?m)^2\s`}},
	{args: words("rollout restart deploy/web"), want: []string{`deployment.apps/web restarted`}},
	{args: words("rollout undo deploy/web"), want: []string{`deployment.apps/web rolled back`}},
	{args: words("rollout pause deploy/web"), want: []string{`deployment.apps/web paused`}},
	{args: words("rollout resume deploy/web"), want: []string{`deployment.apps/web resumed`}},
	{args: words("rollout restart ds/agent"), want: []string{`daemonset.apps/agent restarted`}},
	{args: words("rollout status ds/agent --timeout=3m"), want: []string{`successfully rolled out`}},
	{args: words("rollout history ds/agent"), want: []string{`REVISION`, `(?m)^1\s`, `(?m)^2\s`}},
	{args: words("rollout undo ds/agent"), want: []string{`daemonset.apps/agent rolled back`}},
	{args: words("rollout status ds/agent --timeout=3m"), want: []string{`successfully rolled out`}},
	{args: words("scale deploy/web --replicas=1"), want: []string{`deployment.apps/web scaled`}},
	{args: words("set image deploy/web web=example.org/web:3"), want: []string{`deployment.apps/web image updated`}},
	{args: words("rollout status deploy/web --timeout=3m"), want: []string{`successfully rolled out`}},
	{args: words("autoscale deploy/web --max=3"), code: 1, want: []string{`(?i)error`}},
	{args: words("apply --server-side -f DIR/dep.yaml"), code: 1, want: []string{`Apply failed with \d conflicts?`, `\.spec\.replicas|\.image`}},
	{args: words("apply --server-side --force-conflicts -f DIR/dep.yaml"), want: []string{`deployment.apps/web serverside-applied`}},
	{args: words("apply -k DIR/kust"), want: []string{`configmap/k-gen-\w+ created`, `configmap/k-plain created`}},
	{args: words("apply --server-side --force-conflicts -k DIR/kust"), want: []string{`configmap/k-gen-\w+ serverside-applied`, `configmap/k-plain serverside-applied`}},
	{args: words("delete -k DIR/kust"), want: []string{`configmap "k-gen-\w+" deleted`, `configmap "k-plain" deleted`}},
	{args: words("rollout status deploy/web --timeout=3m"), want: []string{`successfully rolled out`}},

	{args: words("get all"), want: []string{`pod/solo`, `deployment.apps/web\s+2/2`, `replicaset.apps/web-`, `daemonset.apps/agent\s+3\s+3\s+3\s+3\s+3`}},
	{args: words("get pods -A"), want: []string{`NAMESPACE\s+NAME\s+READY\s+STATUS\s+RESTARTS\s+AGE`, `default\s+solo\s+1/1\s+Running\s+0`}},
	{args: words("get pods -A -o wide"), want: []string{`IP\s+NODE\s+NOMINATED NODE\s+READINESS GATES`, `solo\s+1/1\s+Running\s+0\s+\S+\s+10\.\S+\s+sim-0001`}},
	{args: words("get pods -w"), until: `solo`, want: []string{`^NAME\s+READY`}},
	{args: words("get pod solo -o yaml"), want: []string{`(?m)^kind: Pod$`, `phase: Running`}, not: []string{`managedFields`}},
	{args: words("describe pod solo"), want: []string{`Name:\s+solo`, `Node:\s+sim-0001/`, `Started container main`}},
	{args: words("describe deploy web"), want: []string{`Replicas:\s+2 desired \| 2 updated`, `NewReplicaSet:\s+web-`, `Progressing\s+True`}},
	{args: words("describe ds agent"), want: []string{`Desired Number of Nodes Scheduled: 3`, `Pods Status:\s+3 Running`}},
	{args: words("describe ns default"), want: []string{`Status:\s+Active`}},
	{args: words("get deploy,rs,ds"), want: []string{`deployment.apps/web`, `replicaset.apps/web-`, `daemonset.apps/agent`}},
	{args: words("get deploy web -o yaml --show-managed-fields"), want: []string{`managedFields:`, `operation: Apply`}},
	{args: words("logs solo"), want: []string{`simulated`}},
	{args: words("logs solo --tail=3 --timestamps"), want: []string{`\d{4}-\d\d-\d\dT\S+Z simulated`}},
	{args: words("logs -f solo"), until: `simulated`},
	{args: words("logs -l app=agent --prefix"), want: []string{`\[pod/agent-\w+/agent\] simulated`}},
	{args: words("logs deploy/web"), want: []string{`simulated`}},
	{args: words("logs solo -p"), code: 1, want: []string{`(?i)previous`}},
	{args: words("exec solo -- echo hi"), want: []string{`^hi\n$`}},
	{args: []string{"exec", "solo", "-c", "main", "--", "sh", "-c", "exit 3"}, code: 3, want: []string{`exit code 3`}},
	{args: words("exec -i solo -- cat"), stdin: "over and back\n", want: []string{`^over and back\n$`}},
	{args: words("exec -it solo -- echo tty"), want: []string{`tty`}},
	{args: words("exec deploy/web -- echo hi"), want: []string{`^hi\n$`}},
	{args: words("debug solo --image=busybox --profile=baseline -c look -- sleep 1h")},
	{args: words("get pod solo -o jsonpath={.spec.ephemeralContainers[*].name}{.status.ephemeralContainerStatuses[*].state}"), want: []string{`^look.*running`}},
	{args: words("logs solo -c look"), want: []string{`simulated`}},
	{args: words("exec solo -c look -- echo hi"), want: []string{`^hi\n$`}},
	{args: words("debug solo --image=busybox --profile=general -c more"), code: 1, want: []string{`capability SYS_PTRACE is not allowed`}},
	{args: words("debug node/sim-0001 --image=busybox --profile=general"), code: 1, want: []string{`is invalid`, `--allow-host-pid`}},
	{args: words("create -f -"), stdin: sized, want: []string{`pod/sized created`}},
	{args: resize(`{"cpu":"20m"}`), from: "1.32", want: []string{`pod/sized patched`}},
	{args: words("get pod sized -o jsonpath={.spec.containers[0].resources.requests.cpu}/{.status.containerStatuses[0].resources.requests.cpu}"), from: "1.32", want: []string{`^20m/20m$`}},
	{args: resize(`{"memory":"64Mi"}`), from: "1.32", code: 1, want: []string{`must be less than or equal to memory limit`}},
	{args: []string{"patch", "pod", "sized", "-p", `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"30m"}}}]}}`}, code: 1, want: []string{`pod updates may not change fields other than`}},
	{args: words("delete pod sized"), want: []string{`pod "sized" deleted`}},
	{args: words("create -f -"), stdin: nowhere, want: []string{`deployment.apps/nowhere created`}},
	{args: words("get incidents.flotilla.dev"), want: []string{`NAME\s+STATE\s+CAUSE\s+SITE\s+SINCE\s+NODES\s+PODS\s+SHORT\s+MESSAGE`, `(?m)^nowhere-place-\w+\s+Open\s+CannotBePlaced\s+<none>\s+\S+\s+0\s+1\s+1\s+Deployment nowhere cannot be placed`}},
	{args: words("get incidents -o wide"), want: []string{`SEVERITY\s+ABOUT\s+MOVES`, `Warning\s+Deployment/nowhere`}},
	{args: words("describe incidents"), want: []string{`Cause:\s+CannotBePlaced`, `State:\s+Open`}},
	{args: words("explain incident.state"), want: []string{`KIND:\s+Incident`, `Open or Closed`}},
	{args: words("delete incidents --all"), code: 1, want: []string{`clients can patch only their fields acknowledged and note`}},
	{args: words("delete deploy nowhere"), want: []string{`deployment.apps "nowhere" deleted`}},
	{args: words("wait incidents --all --for=jsonpath={.state}=Closed --timeout=3m"), want: []string{`condition met`}},
	{args: words("exec nope -- echo hi"), code: 1, want: []string{`pods "nope" not found`}},
	{args: words("attach solo"), until: `command prompt`},
	{args: words("cp DIR/pod.yaml solo:/tmp/pod.yaml")},
	{args: words("port-forward pod/solo 0:80"), until: `Forwarding from 127\.0\.0\.1:\d+ -> 80`},

	{args: words("label node sim-0001 foo=bar"), want: []string{`node/sim-0001 labeled`}},
	{args: words("label node sim-0001 foo=baz"), code: 1, want: []string{`--overwrite`}},
	{args: words("label node sim-0001 foo=baz --overwrite"), want: []string{`node/sim-0001 labeled`}},
	{args: words("label node sim-0001 foo-"), want: []string{`node/sim-0001 unlabeled`}},
	{args: words("annotate node sim-0001 note=hello"), want: []string{`node/sim-0001 annotated`}},
	{args: words("annotate node sim-0001 note-"), want: []string{`node/sim-0001 annotated`}},
	{args: words("taint nodes sim-0002 k=v:NoSchedule"), want: []string{`node/sim-0002 tainted`}},
	{args: words("taint nodes sim-0002 k=v2:NoSchedule --overwrite"), want: []string{`node/sim-0002 modified`}},
	{args: words("taint nodes sim-0002 k:NoSchedule-"), want: []string{`node/sim-0002 untainted`}},
	{args: words("taint nodes sim-0002 nope-"), code: 1, want: []string{`taint "nope" not found`}},
	{args: words("cordon sim-0001"), want: []string{`node/sim-0001 cordoned`}},
	{args: words("cordon sim-0001"), want: []string{`node/sim-0001 already cordoned`}},
	{args: words("uncordon sim-0001"), want: []string{`node/sim-0001 uncordoned`}},
	{args: words("drain sim-0001 --dry-run=server --ignore-daemonsets --delete-emptydir-data --force"), want: []string{`node/sim-0001 drained \(server dry run\)`}},
	{args: words("get pod solo"), want: []string{`solo\s+1/1\s+Running`}},
	{args: words("drain sim-0001"), code: 1, want: []string{`node/sim-0001 cordoned`, `cannot delete.*DaemonSet-managed Pods`}},
	{args: words("drain sim-0001 --ignore-daemonsets --delete-emptydir-data --force --timeout=3m"), want: []string{`evicting pod default/solo`, `node/sim-0001 drained`}},
	{args: words("drain sim-0002 --ignore-daemonsets --delete-emptydir-data --force --disable-eviction --timeout=3m"), want: []string{`node/sim-0002 drained`}},
	{args: words("uncordon sim-0001 sim-0002"), want: []string{`node/sim-0001 uncordoned`, `node/sim-0002 uncordoned`}},

	{args: []string{"patch", "deploy", "web", "-p", `{"spec":{"replicas":2}}`}, want: []string{`deployment.apps/web patched`}},
	{args: []string{"patch", "deploy", "web", "--type=merge", "-p", `{"spec":{"replicas":1}}`}, want: []string{`deployment.apps/web patched`}},
	{args: []string{"patch", "deploy", "web", "--type=json", "-p", `[{"op":"replace","path":"/spec/replicas","value":2}]`}, want: []string{`deployment.apps/web patched`}},
	{args: []string{"patch", "deploy", "web", "--subresource=scale", "--type=merge", "-p", `{"spec":{"replicas":1}}`}, want: []string{`scale.autoscaling/web patched`}},
	{args: words("edit cm nope"), code: 1, want: []string{`configmaps "nope" not found`}},
	{args: words("create configmap c1 --from-literal=a=b"), want: []string{`configmap/c1 created`}},
	{args: words("create secret generic s1 --from-literal=p=w"), want: []string{`secret/s1 created`}},
	{args: words("create ns team-a"), want: []string{`namespace/team-a created`}},
	{args: words("create deployment d2 --image=busybox"), want: []string{`deployment.apps/d2 created`}},
	{args: words("create token default"), code: 1, want: []string{`service accounts have no tokens`}},
	{args: words("create job j --image=busybox"), want: []string{`job.batch/j created`}},
	{args: words("create cronjob nightly --image=busybox --schedule=@daily"), want: []string{`cronjob.batch/nightly created`}},
	{args: words("create cronjob never --image=busybox --schedule=soon"), code: 1, want: []string{`"never" is invalid: spec.schedule: Invalid value: "soon"`}},
	{args: words("create job once --from=cronjob/nightly"), want: []string{`job.batch/once created`}},
	{args: words("get jobs,cj"), want: []string{`NAME\s+STATUS\s+COMPLETIONS\s+DURATION\s+AGE`, `job.batch/once\s+Running\s+0/1`, `NAME\s+SCHEDULE\s+TIMEZONE\s+SUSPEND\s+ACTIVE\s+LAST SCHEDULE\s+AGE`, `(?i)cronjob.batch/nightly\s+@daily\s+<none>\s+false`}},
	{args: words("get jobs --field-selector status.successful=0 -o name"), want: []string{`job.batch/j`, `job.batch/once`}},
	{args: words("describe job j"), want: []string{`Completions:\s+1`, `Pods Statuses:\s+1 Active`, `SuccessfulCreate.*job-controller`}},
	{args: words("describe cj nightly"), want: []string{`Concurrency Policy:\s+Allow`, `Successful Job History Limit:\s+3`}},
	{args: words("explain cronjob.spec.jobTemplate"), want: []string{`KIND:\s+CronJob`}},
	{args: []string{"patch", "cj", "nightly", "-p", `{"spec":{"suspend":true}}`}, want: []string{`cronjob.batch/nightly patched`}},
	{args: words("delete job j once"), want: []string{`job.batch "once" deleted`}, not: []string{`Warning`}},
	{args: words("delete cj nightly"), want: []string{`cronjob.batch "nightly" deleted`}},
	{args: words("apply -f -"), stdin: "apiVersion: flotilla.dev/v1alpha1\nkind: FirmwareRollout\nmetadata: {name: fr1}\nspec: {selector: {matchLabels: {nobody: here}}, profile: raspberrypi-4}\n", want: []string{`firmwarerollout.flotilla.dev/fr1 created`}},
	{args: words("apply -f -"), stdin: "apiVersion: flotilla.dev/v1alpha1\nkind: FirmwareRollout\nmetadata: {name: fr2}\nspec: {selector: {}, profile: raspberrypi-4}\n", code: 1, want: []string{`spec.selector: Required value: an empty selector would select every node`}},
	{args: words("get firmwarerollouts"), want: []string{`NAME\s+PHASE\s+NODES\s+KEPT\s+BAD\s+TRYING\s+SITE\s+AGE\s+MESSAGE`, `fr1\s+Pending\s+0`}},
	{args: words("describe fr fr1"), want: []string{`Phase:\s+Pending`, `Max Unavailable Per Site:\s+1`}},
	{args: []string{"patch", "fr", "fr1", "--type", "merge", "-p", `{"spec":{"undo":true}}`}, want: []string{`firmwarerollout.flotilla.dev/fr1 patched`}},
	{args: words("explain firmwarerollout.spec.window"), want: []string{`KIND:\s+FirmwareRollout`, `FirmwareWindow is when`}},
	{args: []string{"patch", "fr", "fr1", "--type=merge", "-p", `{"spec":{"paused":true}}`}, want: []string{`firmwarerollout.flotilla.dev/fr1 patched`}},
	{args: words("delete fr fr1"), want: []string{`firmwarerollout.flotilla.dev "fr1" deleted`}},
	{args: words("run r1 --image=busybox --restart=Never"), want: []string{`pod/r1 created`}},
	{args: words("get cm c1 -o yaml"), want: []string{`(?m)^  a: b$`}},
	{args: words("replace -f -"), stdin: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c1}\ndata: {a: b, e: f}\n", want: []string{`configmap/c1 replaced`}},
	{args: words("edit cm c1"), want: []string{`configmap/c1 edited`}},
	{args: words("get cm c1 -o jsonpath={.data}"), want: []string{`"a":"edited"`, `"e":"f"`}},
	{args: words("expose deploy web --port=80"), code: 1, want: []string{`services are not implemented.*hostPort`}},

	{args: words("get ing"), want: []string{`No resources found`}},
	{args: words("create -f -"), stdin: stateful, want: []string{`statefulset.apps/db created`}},
	{args: words("rollout status sts/db --timeout=3m"), want: []string{`(?i)rolling update complete 2 pods|partitioned roll out complete`}},
	{args: words("get sts,pvc"), want: []string{`statefulset.apps/db\s+2/2`, `persistentvolumeclaim/data-db-0\s+Bound`, `persistentvolumeclaim/data-db-1\s+Bound`}},
	{args: words("get sts db -o wide"), want: []string{`NAME\s+READY\s+AGE\s+CONTAINERS\s+IMAGES`, `db\s+2/2\s+\S+\s+c\s+busybox`}},
	{args: words("get pods -l app=db -L apps.kubernetes.io/pod-index"), want: []string{`db-0.*\s0\n`, `db-1.*\s1\n`}},
	{args: words("describe sts db"), want: []string{`Replicas:\s+2 desired \| 2 total`, `Update Strategy:\s+RollingUpdate`, `Volume Claims:`, `SuccessfulCreate.*statefulset-controller`}},
	{args: words("set image sts/db c=busybox:2"), want: []string{`statefulset.apps/db image updated`}},
	{args: words("rollout status sts/db --timeout=3m"), want: []string{`(?i)rolling update complete 2 pods|partitioned roll out complete`}},
	{args: words("rollout history sts/db"), want: []string{`REVISION\s+CHANGE-CAUSE\n1\s+<none>\n2\s+<none>`}},
	{args: words("rollout undo sts/db"), want: []string{`statefulset.apps/db rolled back`}},
	{args: words("rollout status sts/db --timeout=3m"), want: []string{`(?i)rolling update complete 2 pods|partitioned roll out complete`}},
	{args: words("get sts db -o jsonpath={.spec.template.spec.containers[0].image}"), want: []string{`^busybox$`}},
	{args: words("rollout restart sts/db"), want: []string{`statefulset.apps/db restarted`}},
	{args: words("scale sts db --replicas=1"), want: []string{`statefulset.apps/db scaled`}},
	{args: words("get sts db --subresource=scale"), want: []string{`DESIRED\s+AVAILABLE`, `db\s+1`}},
	{args: []string{"patch", "sts", "db", "-p", `{"spec":{"serviceName":"other"}}`}, code: 1, want: []string{`updates to statefulset spec for fields other than 'replicas'`}},
	{args: words("explain sts.spec.volumeClaimTemplates"), want: []string{`KIND:\s+StatefulSet`}},
	{args: words("delete sts db"), want: []string{`statefulset.apps "db" deleted`}},
	{args: words("delete pvc -l app=db --wait=false"), want: []string{`persistentvolumeclaim "data-db-1" deleted`}},
	{args: words("create -f -"), stdin: controller, want: []string{`replicationcontroller/old created`, `podtemplate/old created`}},
	{args: words("get rc"), want: []string{`NAME\s+DESIRED\s+CURRENT\s+READY\s+AGE`, `old\s+1`}},
	{args: words("scale rc old --replicas=2"), want: []string{`replicationcontroller/old scaled`}},
	{args: words("describe rc old"), want: []string{`Replicas:\s+\d current / 2 desired`, `SuccessfulCreate.*replication-controller`}},
	{args: words("get podtemplates"), want: []string{`NAME\s+CONTAINERS\s+IMAGES\s+POD LABELS`, `old\s+c\s+busybox\s+app=old`}},
	{args: words("get all -l app=old"), want: []string{`replicationcontroller/old`, `pod/old-`}},
	{args: words("delete rc,podtemplates old"), want: []string{`replicationcontroller "old" deleted`, `podtemplate "old" deleted`}},

	{args: words("get svc,ep,endpointslices,sa"), want: []string{`service/kubernetes\s+ClusterIP\s+\S+\s+<none>\s+\d+/TCP`, `endpoints/kubernetes\s+127\.0\.0\.1:\d+`, `endpointslice.discovery.k8s.io/kubernetes\s+IPv4\s+\d+\s+127\.0\.0\.1`, `(?m)^serviceaccount/default\s`}},
	{args: words("get all,sa,cm,svc -A"), want: []string{`default\s+service/kubernetes`, `team-a\s+serviceaccount/default`, `team-a\s+configmap/kube-root-ca.crt\s+1`, `kube-system\s+configmap/kube-root-ca.crt`}},
	{args: words("describe svc kubernetes"), want: []string{`Labels:\s+component=apiserver`, `Port:\s+https`, `Endpoints:\s+127\.0\.0\.1:\d+`}},
	{args: words("describe sa default -n team-a"), want: []string{`Name:\s+default`, `Image pull secrets:\s+<none>`}},
	{args: words("describe cm kube-root-ca.crt"), want: []string{`-----BEGIN CERTIFICATE-----`}},
	{args: words("get sa -A -w --output-watch-events"), during: "create ns team-N", until: `ADDED\s+team-\d+\s+default`, want: []string{`ADDED\s+default\s+default`}},
	{args: words("delete cm kube-root-ca.crt -n team-a"), want: []string{`configmap "kube-root-ca.crt" deleted`}},
	{args: words("get cm kube-root-ca.crt -n team-a -o jsonpath={.data}"), want: []string{`BEGIN CERTIFICATE`}},
	{args: words("create sa robot"), code: 1, want: []string{`service accounts are not implemented except default`}},
	{args: words("apply --prune -n team-a --all -f DIR/cm.yaml"), want: []string{`configmap/pruned created`}, not: []string{`kube-root`, `pruned pruned`}},
	{args: words("apply --prune -n team-a --all -f DIR/cm2.yaml"), want: []string{`configmap/kept unchanged`, `configmap/pruned pruned`}, not: []string{`kube-root`, `kubernetes`}},

	{args: words("get pc"), want: []string{`NAME\s+VALUE\s+GLOBAL-DEFAULT\s+AGE\s+PREEMPTIONPOLICY`, `system-cluster-critical\s+2000000000\s+false`, `system-node-critical\s+2000001000\s+false\s+\S+\s+PreemptLowerPriority`}},
	{args: words("create priorityclass gold --value=1000 --description=money --preemption-policy=Never"), want: []string{`priorityclass.scheduling.k8s.io/gold created`}},
	{args: words("describe pc gold"), want: []string{`Value:\s+1000`, `PreemptionPolicy:\s+Never`}},
	{args: []string{"run", "rich", "--image=busybox", "--restart=Never", `--overrides={"spec":{"priorityClassName":"gold"}}`}, want: []string{`pod/rich created`}},
	{args: words("get pod rich -o jsonpath={.spec.priority}/{.spec.preemptionPolicy}"), want: []string{`^1000/Never$`}},
	{args: []string{"run", "poor", "--image=busybox", "--restart=Never", `--overrides={"spec":{"priorityClassName":"silver"}}`}, code: 1, want: []string{`pods "poor" is forbidden: no PriorityClass with name silver was found`}},
	{args: words("delete pod rich --now"), want: []string{`pod "rich" deleted`}},
	{args: words("delete pc gold"), want: []string{`priorityclass.scheduling.k8s.io "gold" deleted`}},
	{args: words("delete pc system-node-critical"), code: 1, want: []string{`this is a system priority class and cannot be deleted`}},

	{args: words("create quota q --hard=count/configmaps=3,pods=0 -n team-a"), want: []string{`resourcequota/q created`}},
	{args: words("describe quota q -n team-a"), want: []string{`count/configmaps\s+2\s+3`, `pods\s+0\s+0`}},
	{args: words("create cm third -n team-a"), want: []string{`configmap/third created`}},
	{args: words("create cm fourth -n team-a"), code: 1, want: []string{`exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=3, limited: count/configmaps=3`}},
	{args: words("create deployment none --image=busybox -n team-a"), want: []string{`deployment.apps/none created`}},
	{args: words("describe rs -n team-a"), want: []string{`FailedCreate.*exceeded quota: q`}},
	{args: words("describe ns team-a"), want: []string{`count/configmaps\s+3\s+3`}},
	{args: words("get quota,limits -A"), want: []string{`team-a\s+resourcequota/q\s+count/configmaps: 3/3, pods: 0/0`}},

	{args: words("get events"), want: []string{`LAST SEEN\s+TYPE\s+REASON\s+OBJECT\s+MESSAGE`, `Started container main`}},
	{args: words("events"), want: []string{`Started container main`}},
	{args: words("events --for pod/solo"), want: []string{`Pod/solo`}, not: []string{`Pod/agent`}},
	{args: words("events -w"), until: `Started container main`},
	{args: words("top nodes"), want: []string{`NAME\s+CPU\(cores\)\s+CPU`, `(?m)^sim-0001\s+\d+m\s+\d+%\s+\d+Mi\s+\d+%`, `sim-0003\s+\d+m`}},
	{args: words("top pods"), want: []string{`NAME\s+CPU\(cores\)\s+MEMORY`, `(?m)^agent-\w+\s+\d+m\s+\d+Mi`}},
	{args: words("top pods -A --containers"), want: []string{`NAMESPACE\s+POD\s+NAME\s+CPU`, `default\s+agent-\w+\s+agent\s+\d+m`}},
	{args: words("top node sim-0001"), want: []string{`^NAME.*\nsim-0001\s+\d+m\s+\d+%\s+\d+Mi\s+\d+%\s*\n$`}},
	{args: words("get nodes.metrics.k8s.io --sort-by=.metadata.name"), want: []string{`NAME\s+CPU\s+MEMORY\s+WINDOW`, `sim-0003\s+\S+\s+\S+\s+\S+s`}},
	{args: words("explain pods"), want: []string{`KIND:\s+Pod`, `spec\s+<PodSpec>`}},
	{args: words("explain pod.spec.containers.image"), want: []string{`FIELD: image <string>`}},
	{args: words("explain deploy --recursive"), want: []string{`replicas\s+<integer>`, `matchLabels\s+<map\[string\]string>`}},
	{args: words("explain pods --output=plaintext-openapiv2"), want: []string{`KIND:\s+Pod`}},
	{args: words("wait --for=condition=Ready node/sim-0003 --timeout=3m"), want: []string{`node/sim-0003 condition met`}},
	{args: words("wait --for=condition=Ready pod -l app=web --timeout=3m"), want: []string{`pod/web-\S+ condition met`}},
	{args: words("wait --for=delete pod/nope --timeout=5s")},
	{args: words("wait --for=condition=Nope node/sim-0003 --timeout=1s"), code: 1, want: []string{`timed out waiting for the condition`}},
	{args: words("wait --for=jsonpath={.status.phase}=Running pod -l app=agent --timeout=3m"), want: []string{`(pod/agent-\w+ condition met\n){3}`}},
	{args: words("auth can-i get pods"), want: []string{`^yes\n`}},
	{args: words("auth can-i create deployments.apps -n x"), want: []string{`yes\n`}},
	{args: words("auth can-i --list"), want: []string{`Resources\s+Non-Resource URLs\s+Resource Names\s+Verbs`, `nodes`, `/openapi`}},
	{args: words("auth whoami"), want: []string{`Username\s+admin`, `flotilla:admins`}},
	{args: words("auth can-i get /healthz"), want: []string{`yes\n`}},
	{args: words("delete pod solo"), code: 1, want: []string{`pods "solo" not found`}},
	{args: words("run r2 --image=busybox --restart=Never"), want: []string{`pod/r2 created`}},
	{args: words("wait --for=condition=Ready pod/r2 --timeout=3m"), want: []string{`pod/r2 condition met`}},
	{args: words("delete pod r2 --force --grace-period=0"), want: []string{`pod "r2" force deleted`}},
	{args: words("delete pod r1 --wait=false"), want: []string{`pod "r1" deleted`}},
	{args: words("delete deploy d2 --cascade=orphan"), want: []string{`deployment.apps "d2" deleted`}},
	{args: words("get rs -l app=d2"), want: []string{`d2-`}},
	{args: words("create deployment d3 --image=busybox"), want: []string{`deployment.apps/d3 created`}},
	{args: words("rollout status deploy/d3 --timeout=3m"), want: []string{`successfully rolled out`}},
	{args: words("delete deploy d3 --cascade=foreground"), want: []string{`deployment.apps "d3" deleted`}},
	{args: words("get rs,pods -l app=d3"), want: []string{`No resources found`}},
	{args: words("delete deploy web"), want: []string{`deployment.apps "web" deleted`}},
	{args: words("delete -f DIR/ds.yaml"), want: []string{`daemonset.apps "agent" deleted`}},
	{args: words("delete pods --all"), want: []string{`pod "d2-\S+" deleted`}},
	{args: words("delete cm -l nope=1"), want: []string{`No resources found`}},
	{args: words("delete ns team-a"), want: []string{`namespace "team-a" deleted`}},
	{args: words("delete cm c1 --dry-run=server"), want: []string{`configmap "c1" deleted.*\(server dry run\)`}},
	{args: words("get cm c1"), want: []string{`c1\s+2`}},
	{args: words("get nodes --chunk-size=2"), want: []string{`(?s)sim-0001.*sim-0002.*sim-0003`}},
	{args: words("get nodes --server-print=false"), want: []string{`NAME\s+AGE`, `sim-0003`}},
	{args: words("get foo"), code: 1, want: []string{`the server doesn't have a resource type "foo"`}},
	{args: words("debug solo --image=busybox"), code: 1, want: []string{`pods "solo" not found`}},
	{args: words("certificate approve x"), code: 1, want: []string{`certificatesigningrequests.certificates.k8s.io "x" not found`}},
	{args: words("cluster-info dump"), want: []string{`"kind": "NodeList"`, `"kind": "PodList"`}},
	{args: words("api-resources"), want: []string{`(?m)^deployments\s+deploy\s+apps/v1\s+true\s+Deployment`, `(?m)^sites\s+flotilla.dev/v1alpha1\s+false\s+Site`}},
	{args: words("api-versions"), want: []string{`(?m)^flotilla.dev/v1alpha1$`, `(?m)^metrics.k8s.io/v1beta1$`}},
}

// Every command line runs with every kubectl. Each kubectl has its own fleet of simulated devices.
func TestEveryCommandLine(t *testing.T) {
	for _, minor := range kubectltest.Minors {
		t.Run(minor, func(t *testing.T) {
			t.Parallel()
			p := player{t: t, kubectl: kubectltest.Build(t, minor), hub: newHub(t), dir: t.TempDir()}
			p.hub.simulate(3, 3)
			for name, text := range manifests {
				path := filepath.Join(p.dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range appendix {
				if older(minor, r.from) {
					continue
				}
				p.play(r) // a failure ends the test, because later rows need the result
			}
		})
	}
}

// older reports whether a minor version precedes another.
func older(minor, than string) bool {
	number := func(s string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(s, "1."))
		return n
	}
	return number(minor) < number(than)
}

// A player runs the rows with one kubectl.
type player struct {
	t       *testing.T
	kubectl string
	hub     *hub
	dir     string
}

func (p *player) command(args ...string) *exec.Cmd {
	for i, a := range args {
		args[i] = strings.ReplaceAll(a, "DIR", p.dir)
	}
	cmd := exec.Command(p.kubectl, args...)
	cmd.Env = append(kubectltest.Env(p.t, p.hub.config), "EDITOR="+filepath.Join(p.dir, "edit.sh"))
	return cmd
}

// reading are the commands that change nothing. They are repeated until their output is as
// expected.
var reading = []string{"auth", "describe", "events", "exec", "get", "logs", "top", "wait"}

func (p *player) play(r row) {
	p.t.Helper()
	for deadline := time.Now().Add(2 * patience); ; time.Sleep(200 * time.Millisecond) {
		mistake := p.once(r)
		if mistake == "" {
			return
		}
		if !slices.Contains(reading, r.args[0]) || time.Now().After(deadline) {
			p.t.Fatalf("kubectl %s %s", strings.Join(r.args, " "), mistake)
		}
	}
}

// once runs a row, and returns how its result differs.
func (p *player) once(r row) string {
	printed := &outputBuffer{}
	cmd := p.command(slices.Clone(r.args)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(r.stdin), printed, printed
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	deadline := time.After(2 * patience)
	for n, ended := 0, false; !ended; n++ {
		if r.during != "" {
			if out, err := p.command(words(strings.ReplaceAll(r.during, "N", fmt.Sprint(n)))...).CombinedOutput(); err != nil {
				p.t.Fatalf("kubectl %s: %v: %s", r.during, err, out)
			}
		}
		if r.until != "" && regexp.MustCompile(r.until).MatchString(printed.String()) {
			_ = cmd.Process.Signal(syscall.SIGINT)
			<-over
			break
		}
		select {
		case <-over:
			if code := cmd.ProcessState.ExitCode(); r.until != "" || code != r.code {
				return fmt.Sprintf("exit code %d, want %d:\n%s", code, r.code, printed)
			}
			ended = true
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			return fmt.Sprintf("still runs, or its output is missing:\n%s", printed)
		}
	}
	for _, w := range r.want {
		if !regexp.MustCompile(w).MatchString(printed.String()) {
			return fmt.Sprintf("lacks %q:\n%s", w, printed)
		}
	}
	for _, n := range r.not {
		if regexp.MustCompile(n).MatchString(printed.String()) {
			return fmt.Sprintf("has %q:\n%s", n, printed)
		}
	}
	return ""
}
