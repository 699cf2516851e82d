package admission

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/state"
	"flotilla.dev/shared/fleet"
)

func TestInvalidPodSpecsAreRefused(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"no containers", "containers: []", "spec.containers: Required value"},
		{"two containers with the same name", "containers: [{name: a, image: a}, {name: a, image: b}]", `spec.containers[1].name: Duplicate value: "a"`},
		{"a name with upper case", "containers: [{name: Web, image: a}]", `spec.containers[0].name: Invalid value: "Web": a lowercase RFC 1123 label must`},
		{"no name", "containers: [{image: a}]", "spec.containers[0].name: Required value"},
		{"no image", "containers: [{name: a}]", "spec.containers[0].image: Required value"},
		{"an image with a blank", "containers: [{name: a, image: 'a '}]", `spec.containers[0].image: Invalid value: "a ": must not have leading or trailing whitespace`},
		{"an unknown pull policy", "containers: [{name: a, image: a, imagePullPolicy: Sometimes}]", `spec.containers[0].imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never"`},
		{"an init container's probe", "initContainers: [{name: i, image: i, livenessProbe: {tcpSocket: {port: 1}}}]", "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"},
		{"an init container with a container's name", "initContainers: [{name: web, image: i}]", `spec.initContainers[0].name: Duplicate value: "web"`},
		{"a restart policy of a container", "containers: [{name: a, image: a, restartPolicy: Never}]", ""},
		{"an unknown restart policy of a container", "containers: [{name: a, image: a, restartPolicy: Sometimes}]", `spec.containers[0].restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "Never", "OnFailure"`},
		{"a restart policy of an init container", "initContainers: [{name: a, image: a, restartPolicy: OnFailure}]", ""},
		{"hooks of an init container that ends", "initContainers: [{name: a, image: a, restartPolicy: Never, lifecycle: {preStop: {sleep: {seconds: 1}}}}]", "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always"},
		{"restart rules", "containers: [{name: a, image: a, restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]}]", ""},
		{"restart rules without a policy", "containers: [{name: a, image: a, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]}]", "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used"},
		{"a restart rule without exit codes", "containers: [{name: a, image: a, restartPolicy: Never, restartPolicyRules: [{action: Restart}]}]", "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified"},
		{"a restart rule with an unknown operator", "initContainers: [{name: a, image: a, restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: Equals}}]}]", `spec.initContainers[0].restartPolicyRules[0].exitCodes.operator: Unsupported value: "Equals": supported values: "In", "NotIn"`},
		{"a restart rule for all containers", "containers: [{name: a, image: a, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: NotIn, values: [0]}}]}]", `spec.containers[0].restartPolicyRules[0].action: Unsupported value: "RestartAllContainers": supported values: "Restart"`},
		{"both resize policies", "containers: [{name: a, image: a, resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: memory, restartPolicy: RestartContainer}]}]", ""},
		{"two resize policies of one resource", "containers: [{name: a, image: a, resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}, {resourceName: cpu, restartPolicy: NotRequired}]}]", `spec.containers[0].resizePolicy[1]: Duplicate value: "cpu"`},
		{"a resize policy of a resource that cannot be resized", "containers: [{name: a, image: a, resizePolicy: [{resourceName: ephemeral-storage, restartPolicy: NotRequired}]}]", `spec.containers[0].resizePolicy: Unsupported value: "ephemeral-storage": supported values: "cpu", "memory"`},
		{"a resize policy without a restart policy", "containers: [{name: a, image: a, resizePolicy: [{resourceName: cpu}]}]", "spec.containers[0].resizePolicy: Required value"},
		{"resizing by restart in a pod that never restarts", "restartPolicy: Never\ncontainers: [{name: a, image: a, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}]", `spec.containers[0].resizePolicy: Invalid value: "RestartContainer": must be 'NotRequired' when pod`},
		{"resizing a sidecar by restart", "initContainers: [{name: a, image: a, restartPolicy: Always, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}]", ""},
		{"resizing an init container by restart", "initContainers: [{name: a, image: a, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}]", `spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: "RestartContainer": must not be set to 'RestartContainer' for non-sidecar initContainers`},
		{"an unknown restart policy", "restartPolicy: Sometimes", `spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`},
		{"a deadline of 0", "activeDeadlineSeconds: 0", "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"},
		{"DNS None without a server", "dnsPolicy: None", "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"},
		{"a DNS server that is not an address", "dnsConfig: {nameservers: [dns]}", `spec.dnsConfig.nameservers[0]: Invalid value: "dns": must be a valid IP address`},
		{"a host alias without an address", "hostAliases: [{ip: '', hostnames: [a]}]", `spec.hostAliases[0].ip: Invalid value: "": must be a valid IP address`},
		{"a negative user", "securityContext: {runAsUser: -1}", "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive"},
		{"a privileged container without privilege escalation", "containers: [{name: a, image: a, securityContext: {privileged: true, allowPrivilegeEscalation: false}}]", "spec.containers[0].securityContext: Invalid value"},

		{"a port of 0", "containers: [{name: a, image: a, ports: [{hostPort: 1}]}]", "spec.containers[0].ports[0].containerPort: Required value"},
		{"a port that is too high", "containers: [{name: a, image: a, ports: [{containerPort: 65536}]}]", "spec.containers[0].ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive"},
		{"a duplicate host port", "containers: [{name: a, image: a, ports: [{containerPort: 1, hostPort: 80}]}, {name: b, image: b, ports: [{containerPort: 2, hostPort: 80}]}]", `spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//80"`},
		{"the same host port for two protocols", "containers: [{name: a, image: a, ports: [{containerPort: 1, hostPort: 80}, {containerPort: 1, hostPort: 80, protocol: UDP}]}]", ""},
		{"an unknown protocol", "containers: [{name: a, image: a, ports: [{containerPort: 1, protocol: ICMP}]}]", `spec.containers[0].ports[0].protocol: Unsupported value: "ICMP"`},
		{"a variable without a name", "containers: [{name: a, image: a, env: [{value: x}]}]", "spec.containers[0].env[0].name: Required value"},
		{"a variable with =", "containers: [{name: a, image: a, env: [{name: 'a=b'}]}]", "spec.containers[0].env[0].name: Invalid value"},
		{"a variable without a source", "containers: [{name: a, image: a, env: [{name: A, valueFrom: {}}]}]", `spec.containers[0].env[0].valueFrom: Invalid value: "": must specify one of`},
		{"a divisor of memory that is not in whole bytes", "containers: [{name: a, image: a, env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1500m}}}]}]", "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Forbidden: is not supported: "},
		{"a divisor of memory that is not a unit", "initContainers: [{name: i, image: a, env: [{name: A, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: '1024'}}}]}]", "spec.initContainers[0].env[0].valueFrom.resourceFieldRef.divisor: Forbidden: is not supported: "},
		{"a divisor of processors below a thousandth", "containers: [{name: a, image: a, env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1n}}}]}]", "spec.containers[0].env[0].valueFrom.resourceFieldRef.divisor: Forbidden: is not supported: "},
		{"a divisor of a file", "volumes: [{name: v, downwardAPI: {items: [{path: a, resourceFieldRef: {containerName: web, resource: limits.cpu, divisor: 1Ki}}]}}]", "spec.volumes[0].downwardAPI.items[0].resourceFieldRef.divisor: Forbidden: is not supported: "},
		{"a divisor of a projected file", "volumes: [{name: v, projected: {sources: [{downwardAPI: {items: [{path: a, resourceFieldRef: {containerName: web, resource: limits.memory, divisor: 3M}}]}}]}}]", "spec.volumes[0].projected.sources[0].downwardAPI.items[0].resourceFieldRef.divisor: Forbidden: is not supported: "},
		{"divisors that are units", "containers: [{name: a, image: a, env: [{name: A, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: '0.001'}}}, {name: B, valueFrom: {resourceFieldRef: {resource: limits.ephemeral-storage, divisor: 1Gi}}}, {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1000m}}}, {name: D, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1k}}}, {name: E, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 0}}}]}]", ""},
		{"a variable from two sources", "containers: [{name: a, image: a, env: [{name: A, valueFrom: {secretKeyRef: {name: a, key: b}, configMapKeyRef: {name: a, key: b}}}]}]", "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not have more than one"},
		{"a variable from an unknown field of the pod", "containers: [{name: a, image: a, env: [{name: A, valueFrom: {fieldRef: {fieldPath: spec.foo}}}]}]", `spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: "spec.foo"`},
		{"envFrom without a source", "containers: [{name: a, image: a, envFrom: [{}]}]", "spec.containers[0].envFrom[0]: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"},

		{"a mount of a missing volume", "containers: [{name: a, image: a, volumeMounts: [{name: x, mountPath: /x}]}]", `spec.containers[0].volumeMounts[0].name: Not found: "x"`},
		{"two mounts at the same path", "volumes: [{name: v, emptyDir: {}}]\ncontainers: [{name: a, image: a, volumeMounts: [{name: v, mountPath: /x}, {name: v, mountPath: /x}]}]", `spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/x": must be unique`},
		{"a mount path with a comma", "volumes: [{name: v, emptyDir: {}}]\ncontainers: [{name: a, image: a, volumeMounts: [{name: v, mountPath: '/x,source=/etc'}]}]", `spec.containers[0].volumeMounts[0].mountPath: Invalid value: "/x,source=/etc": must not contain commas`},
		{"a mount at the container's root", "volumes: [{name: v, emptyDir: {}}]\ncontainers: [{name: a, image: a, volumeMounts: [{name: v, mountPath: /x/..}]}]", `spec.containers[0].volumeMounts[0].mountPath: Invalid value: "/x/..": must not be the root of the container`},
		{"a subPath that leaves the volume", "volumes: [{name: v, emptyDir: {}}]\ncontainers: [{name: a, image: a, volumeMounts: [{name: v, mountPath: /x, subPath: a/../..}]}]", "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"a/../..\": must not contain '..'"},
		{"two volumes with the same name", "volumes: [{name: v, emptyDir: {}}, {name: v, emptyDir: {}}]", `spec.volumes[1].name: Duplicate value: "v"`},
		{"a volume with two types", "volumes: [{name: v, emptyDir: {}, secret: {secretName: s}}]", "spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type"},
		{"a host path with dots", "volumes: [{name: v, hostPath: {path: /var/lib/flotilla/volumes/a/../../x}}]", "spec.volumes[0].hostPath.path"},
		{"an unknown type of a host path", "volumes: [{name: v, hostPath: {path: /var/lib/flotilla/volumes/a, type: Tape}}]", `spec.volumes[0].hostPath.type: Unsupported value: "Tape"`},
		{"an image volume without a reference", "volumes: [{name: v, image: {}}]", "spec.volumes[0].image.reference: Required value"},
		{"an image volume with an unknown pull policy", "volumes: [{name: v, image: {reference: web:1, pullPolicy: Sometimes}}]", `spec.volumes[0].image.pullPolicy: Unsupported value: "Sometimes"`},
		{"a volume of an image and an emptyDir", "volumes: [{name: v, emptyDir: {}, image: {reference: web:1}}]", "spec.volumes[0].image: Forbidden: may not specify more than 1 volume type"},
		{"an AppArmor profile without a name", "securityContext: {appArmorProfile: {type: Localhost}}", "spec.securityContext.appArmorProfile.localhostProfile: Forbidden: must be a name in the directory"},
		{"a localhostProfile with the type RuntimeDefault", "securityContext: {appArmorProfile: {type: RuntimeDefault, localhostProfile: x}}", `spec.securityContext.appArmorProfile.localhostProfile: Invalid value: "x": can only be set when AppArmor type is Localhost`},
		{"a name of an AppArmor profile with trailing space", "securityContext: {appArmorProfile: {type: Localhost, localhostProfile: 'x '}}", `spec.securityContext.appArmorProfile.localhostProfile: Invalid value: "x ": must not be padded with whitespace`},
		{"a secret volume without a secret", "volumes: [{name: v, secret: {}}]", "spec.volumes[0].secret.secretName: Required value"},
		{"a file mode that is too high", "volumes: [{name: v, configMap: {name: c, defaultMode: 512}}]", "spec.volumes[0].configMap.defaultMode: Invalid value: 512: must be a number between 0 and 0777"},
		{"a file path that leaves the volume", "volumes: [{name: v, configMap: {name: c, items: [{key: a, path: ../a}]}}]", "spec.volumes[0].configMap.items[0].path: Invalid value: \"../a\": must not contain '..'"},
		{"a file from two sources", "volumes: [{name: v, projected: {sources: [{configMap: {name: c, items: [{key: a, path: a}]}}, {secret: {name: s, items: [{key: a, path: a}]}}]}}]", `spec.volumes[0].projected.sources[1].secret.items[0].path: Invalid value: "a": conflicting duplicate paths`},
		{"a file without a source", "volumes: [{name: v, downwardAPI: {items: [{path: a}]}}]", "spec.volumes[0].downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required"},

		{"a request above its limit", "containers: [{name: a, image: a, resources: {requests: {cpu: 2}, limits: {cpu: 1}}}]", `spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`},
		{"a negative limit", "containers: [{name: a, image: a, resources: {limits: {memory: -1}, requests: {memory: -1}}}]", ""},
		{"a resource without a domain", "containers: [{name: a, image: a, resources: {requests: {doors: 1}}}]", `spec.containers[0].resources.requests[doors]: Invalid value: "doors": must be a standard resource for containers`},
		{"an extended resource without a limit", "containers: [{name: a, image: a, resources: {requests: {example.org/door: 1}}}]", "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"},
		{"a probe without a handler", "containers: [{name: a, image: a, livenessProbe: {}}]", "spec.containers[0].livenessProbe: Required value: must specify a handler type"},
		{"a probe with two handlers", "containers: [{name: a, image: a, livenessProbe: {tcpSocket: {port: 1}, exec: {command: [a]}}}]", "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"},
		{"a probe of port 0", "containers: [{name: a, image: a, livenessProbe: {tcpSocket: {port: 0}}}]", "spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive"},
		{"a liveness probe that must succeed twice", "containers: [{name: a, image: a, livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}}]", "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"},
		{"a negative period", "containers: [{name: a, image: a, readinessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}}]", "spec.containers[0].readinessProbe.periodSeconds: Invalid value: -1: must be greater than or equal to 0"},

		{"a toleration of every key without the operator Exists", "tolerations: [{value: x}]", `spec.tolerations[0].operator: Invalid value: "": operator must be Exists when`},
		{"a toleration with the operator Exists and a value", "tolerations: [{key: a, operator: Exists, value: x}]", `spec.tolerations[0].operator: Invalid value: "x": value must be empty when`},
		{"tolerationSeconds for an effect other than NoExecute", "tolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 1}]", `spec.tolerations[0].effect: Invalid value: "NoSchedule": effect must be 'NoExecute'`},
		{"an unknown operator", "tolerations: [{key: a, operator: Gt, value: '1'}]", `spec.tolerations[0].operator: Unsupported value: "Gt"`},
		{"a node affinity without a term", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: []}}}", "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one"},
		{"an affinity of weight 0", "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 0, preference: {}}]}}", "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: Invalid value: 0: must be in the range 1-100"},
		{"an affinity with In and no values", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In}]}]}}}", "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values: Required value"},
		{"a spread constraint with a skew of 0", "topologySpreadConstraints: [{topologyKey: a, whenUnsatisfiable: DoNotSchedule}]", "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"},
		{"a spread constraint with minDomains 0", "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, minDomains: 0}]", "spec.topologySpreadConstraints[0].minDomains: Invalid value: 0: must be greater than zero"},
		{"a soft spread constraint with minDomains", "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway, minDomains: 2}]", "spec.topologySpreadConstraints[0].minDomains: Invalid value: 2: can only use minDomains if whenUnsatisfiable=DoNotSchedule"},
		{"an unknown node taints policy", "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Maybe}]", `spec.topologySpreadConstraints[0].nodeTaintsPolicy: Unsupported value: "Maybe": supported values: "Honor", "Ignore"`},
		{"a matchLabelKey that is in the selector", "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}, matchLabelKeys: [a]}]", `spec.topologySpreadConstraints[0].matchLabelKeys[0]: Invalid value: "a": exists in both matchLabelKeys and labelSelector`},
		{"mismatchLabelKeys without a selector", "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a, mismatchLabelKeys: [a]}]}}", "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].mismatchLabelKeys: Forbidden: must not be specified when labelSelector is not set"},
		{"a duplicate spread constraint", "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}, {maxSkew: 2, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]", "spec.topologySpreadConstraints[1].{topologyKey, whenUnsatisfiable}: Duplicate value"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lines := c.lines
			p := aPod(t, "restartPolicy: Always")
			p.Spec = corev1.PodSpec{Containers: p.Spec.Containers}
			over := parse[*corev1.Pod](t, "spec:\n"+indent(lines))
			if over.Spec.Containers == nil {
				over.Spec.Containers = p.Spec.Containers
			}
			p.Spec = over.Spec
			Default(p, normal)
			errs := Validate(p, normal)
			switch c.name {
			case "a host path with dots", "a negative limit", "a privileged container without privilege escalation": // these have more than one error
				if len(errs) < 2 {
					t.Errorf("the errors are %v, want several", errs)
				}
			default:
				expect(t, errs, c.want)
			}
		})
	}
}

func TestInvalidObjectsAreRefused(t *testing.T) {
	big := make([]byte, maxData+1)
	for _, c := range []struct {
		name   string
		kind   state.Kind
		change func(state.Object)
		want   string
	}{
		{"an object without a name", state.ConfigMaps, func(o state.Object) { o.SetName("") }, "metadata.name: Required value: name or generateName is required"},
		{"an object without a namespace", state.Pods, func(o state.Object) { o.SetNamespace("") }, "metadata.namespace: Required value"},
		{"a node in a namespace", state.Nodes, func(o state.Object) { o.SetNamespace("shop") }, "metadata.namespace: Forbidden: not allowed on this type"},
		{"a name with upper case", state.Nodes, func(o state.Object) { o.SetName("Pi") }, `metadata.name: Invalid value: "Pi": a lowercase RFC 1123 subdomain must`},
		{"a namespace with a dot", state.Namespaces, func(o state.Object) { o.SetName("a.b") }, `metadata.name: Invalid value: "a.b"`},
		{"a site with a slash", state.Sites, func(o state.Object) { o.SetName("a/b") }, `metadata.name: Invalid value: "a/b": may not contain '/'`},
		{"an invalid label", state.Sites, func(o state.Object) { o.SetLabels(map[string]string{"a": "b c"}) }, "metadata.labels: Invalid value"},
		{"a namespace's finalizer without a domain", state.Namespaces, func(o state.Object) {
			o.(*corev1.Namespace).Spec.Finalizers = []corev1.FinalizerName{"kubernetes", "x"}
		}, `spec.finalizers[1]: Invalid value: "x": name is neither`},
		{"a terminating namespace that is not being deleted", state.Namespaces, func(o state.Object) { o.(*corev1.Namespace).Status.Phase = corev1.NamespaceTerminating }, "status.phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"},
		{"an active namespace that is being deleted", state.Namespaces, func(o state.Object) { now := o.GetCreationTimestamp(); o.SetDeletionTimestamp(&now) }, "status.phase: Invalid value: \"Active\": may only be 'Terminating'"},
		{"a finalizer without a domain", state.ConfigMaps, func(o state.Object) { o.SetFinalizers([]string{"foregroundDeletion", "example.org/x", "x"}) }, `metadata.finalizers[2]: Invalid value: "x": name is neither a standard finalizer name nor is it fully qualified`},
		{"an invalid finalizer", state.Pods, func(o state.Object) { o.SetFinalizers([]string{"example.org/a b"}) }, "metadata.finalizers"},

		{"no selector", state.Deployments, func(o state.Object) { o.(*appsv1.Deployment).Spec.Selector = nil }, "spec.selector: Required value"},
		{"an empty selector", state.DaemonSets, func(o state.Object) { o.(*appsv1.DaemonSet).Spec.Selector.MatchLabels = nil }, "spec.selector: Invalid value: "},
		{"a selector that does not match the template", state.ReplicaSets, func(o state.Object) { o.(*appsv1.ReplicaSet).Spec.Template.Labels["app"] = "x" }, "spec.template.metadata.labels: Invalid value: {\"app\":\"x\"}: `selector` does not match template `labels`"},
		{"negative replicas", state.Deployments, func(o state.Object) { *o.(*appsv1.Deployment).Spec.Replicas = -1 }, "spec.replicas: Invalid value: -1: must be greater than or equal to 0"},
		{"a Deployment with restartPolicy Never", state.Deployments, func(o state.Object) {
			o.(*appsv1.Deployment).Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
		}, `spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"`},
		{"a rolling update without surge and unavailability", state.Deployments, func(o state.Object) {
			zero := o.(*appsv1.Deployment).Spec.Strategy.RollingUpdate
			zero.MaxSurge, zero.MaxUnavailable = intOr("0%"), intOr("0%")
		}, "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0"},
		{"an invalid percentage", state.Deployments, func(o state.Object) {
			o.(*appsv1.Deployment).Spec.Strategy.RollingUpdate.MaxUnavailable = intOr("many")
		}, "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"many\""},
		{"more than 100% unavailable", state.Deployments, func(o state.Object) {
			o.(*appsv1.Deployment).Spec.Strategy.RollingUpdate.MaxUnavailable = intOr("101%")
		}, `spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%`},
		{"an unknown strategy", state.Deployments, func(o state.Object) { o.(*appsv1.Deployment).Spec.Strategy.Type = "Magic" }, `spec.strategy.type: Unsupported value: "Magic"`},
		{"Recreate with rollingUpdate", state.Deployments, func(o state.Object) { o.(*appsv1.Deployment).Spec.Strategy.Type = "Recreate" }, "spec.strategy.rollingUpdate: Forbidden"},
		{"a progress deadline within minReadySeconds", state.Deployments, func(o state.Object) { o.(*appsv1.Deployment).Spec.MinReadySeconds = 600 }, "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"},
		{"a daemonset with both surge and unavailability", state.DaemonSets, func(o state.Object) { o.(*appsv1.DaemonSet).Spec.UpdateStrategy.RollingUpdate.MaxSurge = intOr("10%") }, "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value"},
		{"a revision without data", state.ControllerRevisions, func(o state.Object) { o.(*appsv1.ControllerRevision).Data.Raw = []byte("3") }, "data: Required value"},

		{"a key that is not a file name", state.ConfigMaps, func(o state.Object) { o.(*corev1.ConfigMap).Data["a/b"] = "" }, `data[a/b]: Invalid value: "a/b"`},
		{"a duplicate key", state.ConfigMaps, func(o state.Object) { o.(*corev1.ConfigMap).Data["b"] = "" }, `data[b]: Invalid value: "b": duplicate of key present in binaryData`},
		{"more than a megabyte", state.ConfigMaps, func(o state.Object) { o.(*corev1.ConfigMap).BinaryData["b"] = big }, "data: Too long: may not be more than 1048576 bytes"},
		{"a registry secret without JSON", state.Secrets, func(o state.Object) { o.(*corev1.Secret).Data[".dockerconfigjson"] = []byte("hunter2") }, `data[.dockerconfigjson]: Invalid value: "<secret contents redacted>"`},
		{"a TLS secret without a key", state.Secrets, func(o state.Object) {
			o.(*corev1.Secret).Type, o.(*corev1.Secret).Data = corev1.SecretTypeTLS, map[string][]byte{"tls.crt": nil}
		}, "data[tls.key]: Required value"},
		{"a secret with a service account's token", state.Secrets, func(o state.Object) { o.(*corev1.Secret).Type = corev1.SecretTypeServiceAccountToken }, "type: Forbidden: is not supported"},
		{"an event about another namespace", state.Events, func(o state.Object) { o.(*corev1.Event).InvolvedObject.Namespace = "x" }, `involvedObject.namespace: Invalid value: "x": does not match event.namespace`},
		{"a disruption budget with both limits", state.PodDisruptionBudgets, func(o state.Object) { o.(*policyv1.PodDisruptionBudget).Spec.MaxUnavailable = intOr("1%") }, "spec: Invalid value: \"\": minAvailable and maxUnavailable cannot be both set"},

		{"a taint without an effect", state.Nodes, func(o state.Object) { o.(*corev1.Node).Spec.Taints[0].Effect = "" }, "spec.taints[0].effect: Required value"},
		{"a taint of an unknown effect", state.Nodes, func(o state.Object) { o.(*corev1.Node).Spec.Taints[0].Effect = "Explode" }, `spec.taints[0].effect: Unsupported value: "Explode": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`},
		{"a taint without a key", state.Nodes, func(o state.Object) { o.(*corev1.Node).Spec.Taints[0].Key = "a b" }, `spec.taints[0].key: Invalid value: "a b"`},
		{"a duplicate taint", state.Nodes, func(o state.Object) { o.(*corev1.Node).Spec.Taints[1].Effect = "NoSchedule" }, "spec.taints[1]: Duplicate value: "},
		{"a negative capacity", state.Nodes, func(o state.Object) {
			o.(*corev1.Node).Status.Capacity["example.org/door"] = *quantity("-1")
		}, `status.capacity[example.org/door]: Invalid value: "-1": must be greater than or equal to 0`},
		{"half a pod", state.Nodes, func(o state.Object) { o.(*corev1.Node).Status.Allocatable["pods"] = *quantity("1500m") }, `status.allocatable[pods]: Invalid value: "1500m": must be an integer`},
		{"allocatable above capacity", state.Nodes, func(o state.Object) { o.(*corev1.Node).Status.Allocatable["cpu"] = *quantity("5") }, `status.allocatable[cpu]: Invalid value: "5": must be less than or equal to the capacity of 4`},
		{"an invalid pod CIDR", state.Nodes, func(o state.Object) {
			o.(*corev1.Node).Spec.PodCIDR, o.(*corev1.Node).Spec.PodCIDRs = "x", []string{"x"}
		}, `spec.podCIDRs[0]: Invalid value: "x"`},

		{"a grace period of less than four leases", state.Sites, func(o state.Object) { o.(*fleet.Site).Spec.NodeMonitorGracePeriod.Duration = 4*leaseInterval - 1 }, `spec.nodeMonitorGracePeriod: Invalid value: "39.999999999s": must be at least 40s: devices renew every 10s, and two lost leases must not evict`},
		{"a negative rate", state.Sites, func(o state.Object) { *o.(*fleet.Site).Spec.NodeEvictionRate = -0.1 }, "spec.nodeEvictionRate: Invalid value: -0.1: must be between 0 and 1000 nodes per second"},
		{"a fraction of more than one", state.Sites, func(o state.Object) { *o.(*fleet.Site).Spec.UnhealthyZoneThreshold = 55 }, "spec.unhealthyZoneThreshold: Invalid value: 55: must be between 0 and 1, as a fraction of the site's nodes"},
		{"an unknown disruption policy", state.Sites, func(o state.Object) { o.(*fleet.Site).Spec.DisruptionPolicy = "Wait" }, `spec.disruptionPolicy: Unsupported value: "Wait": supported values: "Evict", "Hold"`},
		{"maintenance without an end", state.Sites, func(o state.Object) { o.(*fleet.Site).Spec.Maintenance.Until.Time = o.GetCreationTimestamp().Time }, "spec.maintenance.until: Required value"},
		{"a profile for an unknown platform", state.BoardProfiles, func(o state.Object) { o.(*fleet.BoardProfile).Spec.Platforms[0] = "plan9/arm" }, "spec.platforms"},
		{"a profile that reserves an invalid quantity", state.BoardProfiles, func(o state.Object) {
			o.(*fleet.BoardProfile).Spec.Resources.SystemReserved["gpu"] = "1"
		}, "spec.resources.systemReserved"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := sample(t, c.kind)
			c.change(o)
			expect(t, Validate(o, normal), c.want)
		})
	}
}

func TestImmutableFieldsCannotChange(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   state.Kind
		change func(now, was state.Object)
		want   string
	}{
		{"the uid", state.Pods, func(now, was state.Object) { was.SetUID("1"); now.SetUID("2") }, `metadata.uid: Invalid value: "2": field is immutable`},
		{"an omitted uid", state.Pods, func(now, was state.Object) { was.SetUID("1") }, ""},
		{"a lease without its resourceVersion", state.Leases, func(now, was state.Object) { now.SetResourceVersion("") }, `metadata.resourceVersion: Invalid value: "": must be specified for an update`},
		{"a node without its resourceVersion", state.Nodes, func(now, was state.Object) { now.SetResourceVersion("") }, ""},
		{"an image", state.Pods, func(now, was state.Object) { now.(*corev1.Pod).Spec.Containers[0].Image = "kiosk:2" }, ""},
		{"a command", state.Pods, func(now, was state.Object) { now.(*corev1.Pod).Spec.Containers[0].Command = nil }, "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`"},
		{"the number of containers", state.Pods, func(now, was state.Object) { now.(*corev1.Pod).Spec.InitContainers = nil }, "spec.containers: Forbidden: pod updates may not add or remove containers"},
		{"an additional toleration", state.Pods, func(now, was state.Object) {
			now.(*corev1.Pod).Spec.Tolerations = append(now.(*corev1.Pod).Spec.Tolerations, corev1.Toleration{Key: "a",
				Operator: "Exists"})
		}, ""},
		{"the seconds of a toleration", state.Pods, func(now, was state.Object) { *now.(*corev1.Pod).Spec.Tolerations[1].TolerationSeconds = 1 }, ""},
		{"a removed toleration", state.Pods, func(now, was state.Object) {
			now.(*corev1.Pod).Spec.Tolerations = now.(*corev1.Pod).Spec.Tolerations[1:]
		}, "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"},
		{"a removed scheduling gate", state.Pods, func(now, was state.Object) { gate(was, "a", "b"); gate(now, "b") }, ""},
		{"a replaced scheduling gate", state.Pods, func(now, was state.Object) { gate(was, "a"); gate(now, "b") }, "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'b'"},
		{"an added scheduling gate", state.Pods, func(now, was state.Object) { gate(now, "b") }, "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'b'"},
		{"an added node selector of a gated pod", state.Pods, func(now, was state.Object) {
			gate(was, "a")
			gate(now, "a")
			now.(*corev1.Pod).Spec.NodeSelector = map[string]string{"disk": "ssd"}
			for k, v := range was.(*corev1.Pod).Spec.NodeSelector {
				now.(*corev1.Pod).Spec.NodeSelector[k] = v
			}
		}, ""},
		{"a removed node selector of a gated pod", state.Pods, func(now, was state.Object) {
			gate(was, "a")
			gate(now, "a")
			was.(*corev1.Pod).Spec.NodeSelector = map[string]string{"disk": "ssd"}
			now.(*corev1.Pod).Spec.NodeSelector = nil
		}, "spec.nodeSelector: Invalid value: null: only additions to spec.nodeSelector are allowed"},
		{"an added node selector without a gate", state.Pods, func(now, was state.Object) {
			now.(*corev1.Pod).Spec.NodeSelector = map[string]string{"disk": "ssd"}
		}, "spec: Forbidden: pod updates may not change"},
		{"a first node affinity of a gated pod", state.Pods, func(now, was state.Object) {
			gate(was, "a")
			gate(now)
			was.(*corev1.Pod).Spec.Affinity = nil
			now.(*corev1.Pod).Spec.Affinity = needs(in("disk", "ssd"))
		}, ""},
		{"a narrower node affinity of a gated pod", state.Pods, func(now, was state.Object) {
			gate(was, "a")
			gate(now, "a")
			was.(*corev1.Pod).Spec.Affinity = needs(in("disk", "ssd"))
			now.(*corev1.Pod).Spec.Affinity = needs(in("disk", "ssd"), in("arch", "arm64"))
		}, ""},
		{"a wider node affinity of a gated pod", state.Pods, func(now, was state.Object) {
			gate(was, "a")
			gate(now, "a")
			was.(*corev1.Pod).Spec.Affinity = needs(in("disk", "ssd"), in("arch", "arm64"))
			now.(*corev1.Pod).Spec.Affinity = needs(in("arch", "arm64"))
		}, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]: Invalid value"},
		{"a removed node affinity of a gated pod", state.Pods, func(now, was state.Object) {
			gate(was, "a")
			gate(now, "a")
			was.(*corev1.Pod).Spec.Affinity = needs(in("disk", "ssd"))
			now.(*corev1.Pod).Spec.Affinity = nil
		}, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Invalid value"},
		{"an added pod affinity of a gated pod", state.Pods, func(now, was state.Object) {
			gate(was, "a")
			gate(now, "a")
			was.(*corev1.Pod).Spec.Affinity = needs(in("disk", "ssd"))
			now.(*corev1.Pod).Spec.Affinity = needs(in("disk", "ssd"))
			now.(*corev1.Pod).Spec.Affinity.PodAffinity = &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{
				Weight: 1, PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: "a", LabelSelector: &metav1.LabelSelector{}}}}}
		}, "spec: Forbidden: pod updates may not change"},
		{"an earlier active deadline", state.Pods, func(now, was state.Object) { *now.(*corev1.Pod).Spec.ActiveDeadlineSeconds = 5 }, ""},
		{"a later active deadline", state.Pods, func(now, was state.Object) { *now.(*corev1.Pod).Spec.ActiveDeadlineSeconds = 601 }, "spec.activeDeadlineSeconds: Invalid value: 601: must be less than or equal to previous value"},
		{"a removed active deadline", state.Pods, func(now, was state.Object) { now.(*corev1.Pod).Spec.ActiveDeadlineSeconds = nil }, "spec.activeDeadlineSeconds: Invalid value: \"null\": must not update from a positive integer to nil value"},
		{"a selector", state.Deployments, func(now, was state.Object) {
			now.(*appsv1.Deployment).Spec.Selector.MatchLabels = map[string]string{"a": "b"}
			now.(*appsv1.Deployment).Spec.Template.Labels = map[string]string{"a": "b"}
		}, "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\"}}: field is immutable"},
		{"an immutable config map", state.ConfigMaps, func(now, was state.Object) {
			yes := true
			was.(*corev1.ConfigMap).Immutable, now.(*corev1.ConfigMap).Immutable = &yes, &yes
			now.(*corev1.ConfigMap).Data["a"] = "2"
		}, "data: Forbidden: field is immutable when `immutable` is set"},
		{"the type of a secret", state.Secrets, func(now, was state.Object) { now.(*corev1.Secret).Type = "Opaque" }, `type: Invalid value: "Opaque": field is immutable`},
		{"the pod CIDR of a node", state.Nodes, func(now, was state.Object) {
			now.(*corev1.Node).Spec.PodCIDR, now.(*corev1.Node).Spec.PodCIDRs = "10.65.0.0/24", []string{"10.65.0.0/24"}
		}, "spec.podCIDRs: Forbidden: node updates may not change podCIDR"},
		{"a new finalizer of an object that is being deleted", state.Pods, func(now, was state.Object) {
			at := was.(*corev1.Pod).CreationTimestamp
			was.SetDeletionTimestamp(&at)
			now.SetDeletionTimestamp(&at)
			now.SetFinalizers([]string{"example.org/x"})
		}, "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			was := sample(t, c.kind)
			now := was.DeepCopyObject().(state.Object)
			c.change(now, was)
			expect(t, ValidateUpdate(now, was, normal), c.want)
		})
	}
}

func gate(o state.Object, names ...string) {
	gates := []corev1.PodSchedulingGate{}
	for _, n := range names {
		gates = append(gates, corev1.PodSchedulingGate{Name: n})
	}
	o.(*corev1.Pod).Spec.NodeName, o.(*corev1.Pod).Spec.SchedulingGates = "", gates
}

func in(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

func needs(all ...corev1.NodeSelectorRequirement) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: all}},
	}}}
}

func TestASchedulingGateSetsThePodsCondition(t *testing.T) {
	p := aPod(t, "schedulingGates: [{name: example.org/quota}]\nreadinessGates: [{conditionType: example.org/served}]")
	p.Status = corev1.PodStatus{}
	Default(p, normal)
	Default(p, normal)
	expect(t, Validate(p, normal), "")
	if c := state.PodCondition(p, corev1.PodScheduled); c == nil || c.Status != corev1.ConditionFalse ||
		c.Reason != corev1.PodReasonSchedulingGated || len(p.Status.Conditions) != 1 {
		t.Errorf("the pod's conditions are %v, want SchedulingGated", p.Status.Conditions)
	}
	for lines, want := range map[string]string{
		"schedulingGates: [{name: a}, {name: a}]":         "spec.schedulingGates[1]: Duplicate value",
		"schedulingGates: [{name: 'a b'}]":                "spec.schedulingGates[0].name: Invalid value",
		"schedulingGates: [{name: a}]\nnodeName: pi":      "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
		"readinessGates: [{conditionType: 'not a name'}]": "spec.readinessGates[0].conditionType: Invalid value",
	} {
		expect(t, Validate(aPod(t, lines), normal), want)
	}
}

func TestASitesGracePeriodHasFourLeases(t *testing.T) {
	site := sample(t, state.Sites).(*fleet.Site)
	for _, c := range []struct {
		every, grace time.Duration
		want         string // "": valid
	}{
		{30 * time.Second, 2 * time.Minute, ""},
		{30 * time.Second, 2*time.Minute - 1, "must be at least 2m0s: devices renew every 30s, and two lost leases must not evict"},
		{2 * time.Second, 8 * time.Second, ""},
		{0, 40 * time.Second, ""},
	} {
		set := normal
		set.LeaseInterval = c.every
		site.Spec.NodeMonitorGracePeriod.Duration, site.Spec.NodeStartupGracePeriod.Duration = c.grace, time.Hour
		errs := Validate(site, set)
		if c.want == "" && len(errs) > 0 || c.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want)) {
			t.Errorf("lease interval %s, grace period %s: %v, want %q", c.every, c.grace, errs, c.want)
		}
	}
}

func TestASitesLeaseIntervalFitsItsGracePeriod(t *testing.T) {
	for _, c := range []struct {
		every, grace time.Duration // a grace of 0 is the hub's default
		want         string        // "": valid
	}{
		{time.Minute, 0, ""},
		{time.Minute, 4 * time.Minute, ""},
		{time.Minute, 4*time.Minute - 1, "must be at least 4m0s: devices renew every 1m0s"},
		{2 * time.Second, 8 * time.Second, ""},
		{5 * time.Minute, 0, ""},
		{5*time.Minute + time.Second, 0, "must be whole seconds between 1s and 5m"},
		{1500 * time.Millisecond, 0, "must be whole seconds"},
		{-time.Second, 0, "must be whole seconds"},
	} {
		site := &fleet.Site{ObjectMeta: metav1.ObjectMeta{Name: "oslo"},
			Spec: fleet.SiteSpec{LeaseInterval: &metav1.Duration{Duration: c.every}}}
		if c.grace > 0 {
			site.Spec.NodeMonitorGracePeriod = &metav1.Duration{Duration: c.grace}
		}
		errs := Validate(site, normal)
		if c.want == "" && len(errs) > 0 || c.want != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), c.want)) {
			t.Errorf("lease interval %s, grace period %s: %v, want %q", c.every, c.grace, errs, c.want)
		}
	}
}
