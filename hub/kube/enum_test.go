package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"flotilla.dev/hub/kube/resource"
)

// manifests have a manifest for each field with an enum, with VALUE in place of the value. A field
// that clients cannot write has "".
var manifests = func() map[string]string {
	pod := func(lines string) string { return "/api/v1/namespaces/default/pods\n" + podWith(lines) }
	container := func(lines string) string { return pod("containers:\n- name: c\n  image: i:1\n" + indented(lines)) }
	volume := func(line string) string {
		return pod("containers: [{name: c, image: \"i:1\"}]\nvolumes: [{name: v, " + line + "}]")
	}
	plain := func(line string) string { return pod("containers: [{name: c, image: \"i:1\"}]\n" + line) }
	workload := func(path, kind, more string) string {
		return apps + "/" + path + "\napiVersion: apps/v1\nkind: " + kind +
			"\nmetadata: {name: e}\nspec:\n  selector: {matchLabels: {a: b}}\n" +
			"  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: \"i:1\"}]}}\n" + indented(more)
	}
	job := func(more string) string {
		return "/apis/batch/v1/namespaces/default/jobs\napiVersion: batch/v1\nkind: Job\nmetadata: {name: e}\nspec:\n" +
			"  template: {spec: {restartPolicy: Never, containers: [{name: c, image: \"i:1\"}]}}\n" + indented(more)
	}
	claim := func(more string) string {
		return "/api/v1/namespaces/default/persistentvolumeclaims\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: " +
			"{name: e}\n" +
			"spec:\n  resources: {requests: {storage: 1Gi}}\n" + indented(more)
	}
	quota := func(more string) string {
		return "/api/v1/namespaces/default/resourcequotas\napiVersion: v1\nkind: ResourceQuota\nmetadata: {name: e}\nspec:\n" + indented(more)
	}
	class := func(more string) string {
		return "/apis/storage.k8s.io/v1/storageclasses\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: " +
			"{name: e}\nprovisioner: flotilla.dev/local\n" + more
	}
	spread := "topologySpreadConstraints: [{maxSkew: 1, topologyKey: t, labelSelector: {}, "
	return map[string]string{
		"flotilla.v1alpha1.SiteSpec disruptionPolicy":              "/apis/flotilla.dev/v1alpha1/sites\napiVersion: flotilla.dev/v1alpha1\nkind: Site\nmetadata: {name: e}\nspec: {disruptionPolicy: VALUE}",
		"apps.v1.DaemonSetUpdateStrategy type":                     workload("daemonsets", "DaemonSet", "updateStrategy: {type: VALUE}"),
		"apps.v1.DeploymentStrategy type":                          workload("deployments", "Deployment", "strategy: {type: VALUE}"),
		"apps.v1.StatefulSetSpec podManagementPolicy":              workload("statefulsets", "StatefulSet", "podManagementPolicy: VALUE"),
		"apps.v1.StatefulSetUpdateStrategy type":                   workload("statefulsets", "StatefulSet", "updateStrategy: {type: VALUE}"),
		"batch.v1.CronJobSpec concurrencyPolicy":                   "/apis/batch/v1/namespaces/default/cronjobs\napiVersion: batch/v1\nkind: CronJob\nmetadata: {name: e}\nspec: {schedule: \"@daily\", concurrencyPolicy: VALUE, jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: \"i:1\"}]}}}}}",
		"batch.v1.JobSpec completionMode":                          job("completionMode: VALUE\ncompletions: 1"),
		"batch.v1.JobSpec podReplacementPolicy":                    job("podReplacementPolicy: VALUE"),
		"batch.v1.PodFailurePolicyOnExitCodesRequirement operator": job("podFailurePolicy: {rules: [{action: Ignore, onExitCodes: {operator: VALUE, values: [1]}}]}"),
		"batch.v1.PodFailurePolicyRule action":                     job("backoffLimitPerIndex: 1\ncompletionMode: Indexed\ncompletions: 1\npodFailurePolicy: {rules: [{action: VALUE, onExitCodes: {operator: In, values: [1]}}]}"),
		"core.v1.AppArmorProfile type":                             plain("securityContext: {appArmorProfile: {type: VALUE}}"),
		"core.v1.Container imagePullPolicy":                        container("imagePullPolicy: VALUE"),
		"core.v1.Container terminationMessagePolicy":               container("terminationMessagePolicy: VALUE"),
		// Containers that are added to a pod follow the rules of all containers.
		"core.v1.EphemeralContainer imagePullPolicy":                   "",
		"core.v1.EphemeralContainer terminationMessagePolicy":          "",
		"core.v1.ContainerPort protocol":                               container("ports: [{containerPort: 80, protocol: VALUE}]"),
		"core.v1.GRPCAction mode":                                      container("livenessProbe: {grpc: {port: 80, mode: VALUE}}"),
		"core.v1.HTTPGetAction scheme":                                 container("livenessProbe: {httpGet: {port: 80, scheme: VALUE}}"),
		"core.v1.HostPathVolumeSource type":                            volume("hostPath: {path: /dev, type: VALUE}"),
		"core.v1.ImageVolumeSource pullPolicy":                         volume("image: {reference: \"i:1\", pullPolicy: VALUE}"),
		"core.v1.NodeSelectorRequirement operator":                     plain("affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: k, operator: VALUE, values: [\"1\"]}]}]}}}"),
		"core.v1.PersistentVolumeClaimSpec accessModes":                claim("accessModes: [VALUE]"),
		"core.v1.PersistentVolumeClaimSpec volumeMode":                 claim("accessModes: [ReadWriteOnce]\nvolumeMode: VALUE"),
		"core.v1.PersistentVolumeSpec accessModes":                     "", // the hub creates volumes for claims
		"core.v1.PersistentVolumeSpec persistentVolumeReclaimPolicy":   "",
		"core.v1.PersistentVolumeSpec volumeMode":                      "",
		"core.v1.PodSecurityContext fsGroupChangePolicy":               plain("securityContext: {fsGroup: 1, fsGroupChangePolicy: VALUE}"),
		"core.v1.PodSpec dnsPolicy":                                    plain("dnsPolicy: VALUE\ndnsConfig: {nameservers: [192.0.2.1]}"),
		"core.v1.PodSpec preemptionPolicy":                             plain("preemptionPolicy: VALUE"),
		"core.v1.PodSpec restartPolicy":                                plain("restartPolicy: VALUE"),
		"core.v1.ResourceQuotaSpec scopes":                             quota("hard: {pods: \"1\"}\nscopes: [VALUE]"),
		"core.v1.ScopedResourceSelectorRequirement operator":           quota("hard: {pods: \"1\"}\nscopeSelector: {matchExpressions: [{scopeName: PriorityClass, operator: VALUE, values: [x]}]}"),
		"core.v1.ScopedResourceSelectorRequirement scopeName":          quota("hard: {pods: \"1\"}\nscopeSelector: {matchExpressions: [{scopeName: VALUE, operator: Exists}]}"),
		"core.v1.SeccompProfile type":                                  plain("securityContext: {seccompProfile: {type: VALUE}}"),
		"core.v1.SecurityContext procMount":                            container("securityContext: {procMount: VALUE}"),
		"core.v1.Taint effect":                                         "/api/v1/nodes\napiVersion: v1\nkind: Node\nmetadata: {name: e}\nspec: {taints: [{key: k, effect: VALUE}]}",
		"core.v1.Toleration effect":                                    plain("tolerations: [{key: k, operator: Exists, effect: VALUE}]"),
		"core.v1.Toleration operator":                                  plain("tolerations: [{key: k, operator: VALUE, value: \"1\"}]"),
		"core.v1.TopologySpreadConstraint nodeAffinityPolicy":          plain(spread + "whenUnsatisfiable: DoNotSchedule, nodeAffinityPolicy: VALUE}]"),
		"core.v1.TopologySpreadConstraint nodeTaintsPolicy":            plain(spread + "whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: VALUE}]"),
		"core.v1.TopologySpreadConstraint whenUnsatisfiable":           plain(spread + "whenUnsatisfiable: VALUE}]"),
		"policy.v1.PodDisruptionBudgetSpec unhealthyPodEvictionPolicy": "/apis/policy/v1/namespaces/default/poddisruptionbudgets\napiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: e}\nspec: {maxUnavailable: 1, selector: {}, unhealthyPodEvictionPolicy: VALUE}",
		"scheduling.v1.PriorityClass preemptionPolicy":                 "/apis/scheduling.k8s.io/v1/priorityclasses\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: e}\nvalue: 1\npreemptionPolicy: VALUE",
		"storage.v1.StorageClass reclaimPolicy":                        class("volumeBindingMode: WaitForFirstConsumer\nreclaimPolicy: VALUE"),
		"storage.v1.StorageClass volumeBindingMode":                    class("volumeBindingMode: VALUE"),
	}
}()

// notWritten are kinds whose enums clients do not write. Devices or the hub report them, or they
// are read-only.
var notWritten = strings.Fields("ContainerStatus ModifyVolumeStatus NamespaceStatus NodeStatus " +
	"PersistentVolumeClaimStatus PersistentVolumeStatus " +
	"PodStatus PortStatus VolumeHealthCondition IngressPortStatus ServicePort ServiceSpec EndpointPort EndpointSlice " +
	"HTTPIngressPath CertificateSigningRequestSpec")

// The hub accepts exactly the values that kubectl explain shows: Kubernetes' values without the
// refused ones.
func TestEnumsOfTheDocumentsAreAccepted(t *testing.T) {
	s := newServer(seeded())
	var doc struct {
		Definitions map[string]struct {
			Properties map[string]struct {
				Enum        []string
				Items       struct{ Enum []string }
				Description string
			}
		}
	}
	read(t, s, "/openapi/v2", resource.MediaJSON, &doc)
	ask := func(manifest, value string) (code int, answer string) {
		path, text, _ := strings.Cut(manifest, "\n")
		w := request{method: "POST", path: path + "?dryRun=All", contentType: resource.MediaYAML,
			body: strings.ReplaceAll(text, "VALUE", fmt.Sprintf("%q", value))}.do(s)
		return w.Code, w.Body.String()
	}
	// refused returns the hub's refusal of a value itself. It ignores refusals for other reasons.
	refused := func(manifest, value string) string {
		code, answer := ask(manifest, value)
		for _, words := range []string{"nsupported ", "not supported", fmt.Sprintf(`nvalid value: \"%s\"`,
			value), "not a valid"} {
			if strings.Contains(answer, words) && code != http.StatusCreated {
				return answer
			}
		}
		return ""
	}
	seen := map[string]bool{}
	for name, schema := range doc.Definitions {
		for field, p := range schema.Properties {
			values := slices.Concat(p.Enum, p.Items.Enum)
			if len(values) == 0 {
				continue
			}
			parts := strings.Split(name, ".")
			if slices.Contains(notWritten, parts[len(parts)-1]) {
				continue
			}
			id := strings.Join(parts[max(0, len(parts)-3):], ".") + " " + field
			manifest, known := manifests[id]
			if !known {
				t.Errorf("%s has an enum but no manifest here", id)
			}
			seen[id] = true
			for _, v := range values {
				if manifest == "" {
					continue
				}
				if why := refused(manifest, v); why != "" {
					t.Errorf("%s: the documents list %q, but the hub answers %s", id, v, why)
				}
				if quoted := "`" + fmt.Sprintf("%q", v) + "`"; strings.Contains(p.Description, "Possible enum values") &&
					!strings.Contains(p.Description, quoted) {
					t.Errorf("%s: %q is missing in the description", id, v)
				}
			}
			for _, v := range []string{"Block", "Gt", "Immediate", "Lt", "NoValueAtAll", "ReadOnlyMany", "ReadWriteMany",
				"Recreate", "Recycle", "TLS", "VolumeAttributesClass"} {
				if manifest != "" && !slices.Contains(values, v) {
					if code, answer := ask(manifest, v); code == http.StatusCreated || code == http.StatusBadRequest {
						t.Errorf("%s: %q is not in the documents, but is answered %d %s", id, v, code, answer)
					}
				}
				if !slices.Contains(values, v) && strings.Contains(p.Description, "`\""+v+"\"` ") {
					t.Errorf("%s: the description must not list %q", id, v)
				}
			}
		}
	}
	for id := range manifests {
		if !seen[id] {
			t.Errorf("%s has no enum in the documents", id)
		}
	}
}

func podWith(spec string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: e}\nspec:\n" + indented(spec)
}

func indented(lines string) string {
	return "  " + strings.ReplaceAll(lines, "\n", "\n  ") + "\n"
}
