package admission

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/policy"
)

// normal are the settings of a hub without flags.
var normal = Settings{NotReadySeconds: 300, UnreachableSeconds: 300, Policy: policy.Default()}

// parse decodes an object as a client writes it.
func parse[T state.Object](t testing.TB, text string) T {
	t.Helper()
	var o T
	if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return o
}

// aPod returns a pod with one container and the given lines in its spec.
func aPod(t testing.TB, spec string) *corev1.Pod {
	t.Helper()
	p := parse[*corev1.Pod](t, "metadata: {name: kiosk, namespace: shop}\nspec:\n  containers: [{name: web, image: 'kiosk:1'}]\n"+indent(spec))
	Default(p, normal)
	return p
}

// aContainer returns a pod whose container has the given lines.
func aContainer(t testing.TB, lines string) *corev1.Pod {
	t.Helper()
	p := parse[*corev1.Pod](t, "metadata: {name: kiosk, namespace: shop}\nspec:\n  volumes: [{name: data, emptyDir: {}}]\n  containers:\n  - name: web\n    image: kiosk:1\n"+indent(indent(lines)))
	Default(p, normal)
	return p
}

func indent(text string) string {
	out := ""
	for len(text) > 0 {
		line := text
		for i := range text {
			if text[i] == '\n' {
				line = text[:i+1]
				break
			}
		}
		out, text = out+"  "+line, text[len(line):]
	}
	return out + "\n"
}

// samples are valid objects as users write them, by kind.
var samples = map[state.Kind]string{
	state.Pods: `
metadata: {name: kiosk, namespace: shop, labels: {app: kiosk}}
spec:
  nodeSelector: {flotilla.dev/board: raspberrypi4}
  restartPolicy: OnFailure
  terminationGracePeriodSeconds: 10
  activeDeadlineSeconds: 600
  hostname: kiosk
  dnsPolicy: None
  dnsConfig: {nameservers: [192.168.1.1], searches: [example.org]}
  hostAliases: [{ip: 10.0.0.1, hostnames: [plc.local]}]
  imagePullSecrets: [{name: pull}]
  priorityClassName: system-node-critical
  priority: 2000001000
  securityContext: {runAsUser: 1000, runAsGroup: 1000, fsGroup: 1000, supplementalGroups: [20], sysctls: [{name: net.ipv4.tcp_keepalive_time, value: "60"}]}
  tolerations: [{key: dedicated, operator: Equal, value: shop, effect: NoSchedule}]
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: kiosk}}}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/arch, operator: In, values: [arm64, arm]}], matchFields: [{key: metadata.name, operator: NotIn, values: [pi-9]}]}]
      preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, preference: {matchExpressions: [{key: ssd, operator: Exists}]}}]
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: kiosk}}}]
      preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, podAffinityTerm: {topologyKey: topology.kubernetes.io/zone, namespaces: [shop]}}]
  volumes:
  - {name: data, hostPath: {path: /var/lib/flotilla/volumes/kiosk, type: DirectoryOrCreate}}
  - {name: tmp, emptyDir: {medium: Memory}}
  - {name: conf, configMap: {name: conf, items: [{key: a, path: sub/a, mode: 256}], optional: true}}
  - {name: secret, secret: {secretName: pull, defaultMode: 256}}
  - {name: who, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: cpu, resourceFieldRef: {containerName: web, resource: limits.cpu}}]}}
  - {name: all, projected: {sources: [{configMap: {name: conf}}, {secret: {name: pull}}, {downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}
  initContainers: [{name: prepare, image: busybox, command: [sh, -c, "true"]}, {name: side, image: "log:1", restartPolicy: Always, readinessProbe: {tcpSocket: {port: 99}}}]
  containers:
  - name: web
    image: registry.example.org/kiosk@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
    command: [/bin/kiosk]
    args: ["--port=$(PORT)"]
    workingDir: /srv
    stdin: true
    tty: true
    ports: [{name: http, containerPort: 8080, hostPort: 80}, {containerPort: 9, protocol: UDP}]
    env:
    - {name: PORT, value: "8080"}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: APP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['app']"}}}
    - {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}
    - {name: KEY, valueFrom: {secretKeyRef: {name: pull, key: token, optional: true}}}
    - {name: CONF, valueFrom: {configMapKeyRef: {name: conf, key: a}}}
    envFrom: [{configMapRef: {name: conf}}, {prefix: S_, secretRef: {name: pull}}]
    resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {memory: 64Mi, example.org/door: "1"}}
    livenessProbe: {httpGet: {port: http, path: /healthz, httpHeaders: [{name: X-Probe, value: "1"}]}, periodSeconds: 5}
    readinessProbe: {exec: {command: [/bin/ready]}, successThreshold: 2}
    startupProbe: {tcpSocket: {port: 8080}, failureThreshold: 30}
    securityContext: {capabilities: {drop: [ALL], add: [NET_BIND_SERVICE]}, readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, seccompProfile: {type: RuntimeDefault}}
    volumeMounts: [{name: data, mountPath: /data, subPath: a/b}, {name: conf, mountPath: /conf, readOnly: true}, {name: tmp, mountPath: /tmp, mountPropagation: None}]
`,
	state.StatefulSets: `
metadata: {name: db, namespace: shop}
spec:
  replicas: 3
  serviceName: db
  podManagementPolicy: Parallel
  minReadySeconds: 5
  ordinals: {start: 1}
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 1, maxUnavailable: 50%}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: c, image: "db:1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data, labels: {app: db}}
    spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 1Gi}}}
`,
	state.Controllers: `
metadata: {name: kiosk, namespace: shop}
spec:
  replicas: 2
  selector: {app: kiosk}
  template:
    metadata: {labels: {app: kiosk}}
    spec: {containers: [{name: c, image: "kiosk:1"}]}
`,
	state.PodTemplates: `
metadata: {name: kiosk, namespace: shop}
template:
  metadata: {labels: {app: kiosk}}
  spec: {containers: [{name: c, image: "kiosk:1"}]}
`,
	state.Jobs: `
metadata: {name: reindex, namespace: shop}
spec:
  completions: 5
  parallelism: 2
  completionMode: Indexed
  backoffLimitPerIndex: 1
  maxFailedIndexes: 2
  activeDeadlineSeconds: 600
  ttlSecondsAfterFinished: 60
  successPolicy: {rules: [{succeededIndexes: "0,2-4", succeededCount: 2}]}
  podFailurePolicy:
    rules:
    - {action: FailIndex, onExitCodes: {containerName: c, operator: In, values: [42]}}
    - {action: Ignore, onPodConditions: [{type: DisruptionTarget}]}
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: "kiosk:1"}]
`,
	state.CronJobs: `
metadata: {name: nightly, namespace: shop}
spec:
  schedule: "30 2 * * *"
  timeZone: Europe/Oslo
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 3600
  jobTemplate:
    metadata: {labels: {app: nightly}}
    spec:
      backoffLimit: 2
      template:
        spec:
          restartPolicy: OnFailure
          containers: [{name: c, image: "kiosk:1"}]
`,
	state.Deployments: `
metadata: {name: kiosk, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: kiosk}}
  strategy: {rollingUpdate: {maxSurge: 50%, maxUnavailable: 0}}
  template: {metadata: {labels: {app: kiosk}}, spec: {containers: [{name: web, image: kiosk}]}}
`,
	state.ReplicaSets: `
metadata: {name: kiosk-7f, namespace: shop}
spec:
  selector: {matchExpressions: [{key: app, operator: In, values: [kiosk]}]}
  template: {metadata: {labels: {app: kiosk}}, spec: {containers: [{name: web, image: kiosk}]}}
`,
	state.DaemonSets: `
metadata: {name: probe, namespace: shop}
spec:
  selector: {matchLabels: {app: probe}}
  template: {metadata: {labels: {app: probe}}, spec: {containers: [{name: probe, image: "probe:1"}]}}
`,
	state.ControllerRevisions: `
metadata: {name: probe-1, namespace: shop}
revision: 1
data: {spec: {template: {}}}
`,
	state.ConfigMaps:           `{metadata: {name: conf, namespace: shop}, data: {a: "1"}, binaryData: {b: AAEC}}`,
	state.Secrets:              `{metadata: {name: pull, namespace: shop}, type: kubernetes.io/dockerconfigjson, stringData: {.dockerconfigjson: '{"auths":{}}'}}`,
	state.Namespaces:           `{metadata: {name: shop}}`,
	state.Leases:               `{metadata: {name: leader, namespace: shop, resourceVersion: "1"}, spec: {holderIdentity: me, leaseDurationSeconds: 15}}`,
	state.Claims:               `{metadata: {name: data, namespace: shop}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}`,
	state.Volumes:              `{metadata: {name: pvc-1}, spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], persistentVolumeReclaimPolicy: Delete, local: {path: persistent/1}, nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [pi-1]}]}]}}}}`,
	state.RuntimeClasses:       `{metadata: {name: sandboxed}, handler: runsc, overhead: {podFixed: {memory: 20Mi}}, scheduling: {nodeSelector: {board: pi5}, tolerations: [{key: a, operator: Exists}]}}`,
	state.StorageClasses:       `{metadata: {name: keeps}, provisioner: flotilla.dev/local, reclaimPolicy: Retain, volumeBindingMode: WaitForFirstConsumer}`,
	state.PodDisruptionBudgets: `{metadata: {name: two, namespace: shop, resourceVersion: "1"}, spec: {minAvailable: 50%, selector: {matchLabels: {app: kiosk}}}}`,
	state.Events:               `{metadata: {name: kiosk.1, namespace: shop}, involvedObject: {kind: Pod, namespace: shop, name: kiosk}, reason: Started}`,
	state.Nodes: `
metadata: {name: pi-1, labels: {topology.kubernetes.io/zone: oslo}}
spec: {podCIDR: 10.64.1.0/24, taints: [{key: dedicated, value: shop, effect: NoSchedule}, {key: dedicated, effect: NoExecute}]}
status: {capacity: {cpu: "4", memory: 1Gi, pods: "110", example.org/door: "2"}, allocatable: {cpu: 3800m, memory: 900Mi, pods: "110"}}
`,
	state.Sites: `
metadata: {name: Oslo_S}
spec: {nodeMonitorGracePeriod: 40s, nodeStartupGracePeriod: 2m, nodeEvictionRate: 0.1, secondaryNodeEvictionRate: 0, unhealthyZoneThreshold: 0.55,
  largeClusterSizeThreshold: 50, disruptionPolicy: Hold, maintenance: {until: "2026-11-03T18:00:00Z", reason: new switch}}
`,
	state.PriorityClasses: "metadata: {name: gold}\nvalue: 1000\nglobalDefault: true\npreemptionPolicy: Never\ndescription: what earns money\n",
	state.ResourceQuotas: `
metadata: {name: team, namespace: shop}
spec:
  hard: {pods: 4, requests.cpu: 2, limits.memory: 1Gi, requests.example.com/gpu: 1, count/deployments.apps: 2}
  scopes: [NotTerminating]
  scopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: In, values: [gold]}]}
`,
	state.LimitRanges: `
metadata: {name: usual, namespace: shop}
spec:
  limits:
  - {type: Container, min: {cpu: 50m}, max: {cpu: 2, memory: 1Gi}, default: {cpu: 500m}, defaultRequest: {cpu: 100m}, maxLimitRequestRatio: {cpu: 10}}
  - {type: Pod, max: {memory: 2Gi}}
  - {type: PersistentVolumeClaim, min: {storage: 1Gi}}
`,
	state.Services:        "metadata: {name: kubernetes, namespace: default}",
	state.Endpoints:       "metadata: {name: kubernetes, namespace: default}",
	state.EndpointSlices:  "metadata: {name: kubernetes, namespace: default}",
	state.ServiceAccounts: "metadata: {name: default, namespace: shop}",
	state.DeviceReports: `
metadata: {name: pi-1}
reported: 2026-11-20T12:00:00Z
hardware: {board: {name: raspberrypi4}}
`,
	state.Incidents: "{metadata: {name: oslo-dark-1a2b3c}, state: Open, cause: SiteDark}",
	state.AgentRollouts: `
metadata: {name: agents}
spec:
  version: 1.3.0
  selector: {matchLabels: {topology.kubernetes.io/zone: oslo}}
  condition: MemoryLimits
  batchSize: 3
  maxUnavailablePerSite: 2
  successThreshold: 90
  pauseOnFailure: false
  window: {days: [Sat, Sun], from: "22:00", to: "04:30"}
  canary: pi-1
  retry: 1
`,
	state.FirmwareRollouts: `
metadata: {name: cgroup-memory}
spec:
  selector: {matchLabels: {board.flotilla.dev/gpio: "true"}, matchExpressions: [{key: topology.kubernetes.io/zone, operator: NotIn, values: [lab]}]}
  condition: MemoryLimits
  profile: raspberrypi-4
  batchSize: 3
  maxUnavailablePerSite: 2
  successThreshold: 90
  pauseOnFailure: false
  window: {days: [Sat, Sun], from: "22:00", to: "04:30"}
  canary: pi-1
  retry: 1
`,
	state.BoardProfiles: `
metadata: {name: raspberrypi-4}
spec:
  title: Raspberry Pi 4
  match: {compatible: ["raspberrypi,4-model-b"], arch: [arm64], memoryMiB: {min: 900}}
  platforms: [linux/arm64]
  resources: {systemReserved: {cpu: 200m, memory: 160Mi}, evictionHard: {memory.available: 64Mi, nodefs.available: "10%"}}
  labels: {gpio: "true"}
`,
	state.JoinRequests: `
metadata: {name: pi-1-0011223344556677, annotations: {flotilla.dev/node: pi-1, flotilla.dev/serial: 100000001234abcd}}
spec:
  request: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlHNU1HSUNBUUF3QURCWk1CTUdCeXFHU000OUFnRUdDQ3FHU000OUF3RUhBMElBQkFoeDVaRFJsNjNMMzNOcQpWTm5vb3M4Z0xWdzJ6N0F6TTk4MjhUVUVKdVFJd0pVZVN5V1pqTUFrUURtcC9nRWp2QllKTFBwNHBQc1E3NFNVCmR5aVNJVk9nQURBS0JnZ3Foa2pPUFFRREFnTkhBREJFQWlBbzBTR0luMDVycW42OS8zdXRIYlJvYUZkREpCUC8KRXB5VE16V0p3dVh5QkFJZ0YrSC8xeVRWQ2Vld2tsMG11MDJubE1TRFlrU1NDNElIdzhqZVBzTU9uZTg9Ci0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=
  signerName: flotilla.dev/device
  usages: [client auth]
  username: "join-token:abcdefgh"
status:
  conditions: [{type: Approved, status: "True", reason: KubectlApprove}]
`,
}

// sample returns a sample with defaults.
func sample(t testing.TB, k state.Kind) state.Object {
	t.Helper()
	o, err := state.New(k)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict([]byte(samples[k]), o); err != nil {
		t.Fatalf("%s: %v", k, err)
	}
	Default(o, normal)
	return o
}

func intOr(s string) *intstr.IntOrString {
	v := intstr.FromString(s)
	return &v
}

func quantity(s string) *resource.Quantity {
	q := resource.MustParse(s)
	return &q
}
