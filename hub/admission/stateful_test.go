package admission

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"flotilla.dev/hub/state"
)

func aStatefulSet(t *testing.T, lines string) *appsv1.StatefulSet {
	s := parse[*appsv1.StatefulSet](t, "metadata: {name: db, namespace: shop}\nspec:\n  selector: {matchLabels: {app: db}}\n  template:\n    metadata: {labels: {app: db}}\n"+
		"    spec: {containers: [{name: c, image: 'db:1'}]}\n")
	more := parse[*appsv1.StatefulSet](t, "spec:\n"+indent(lines))
	if more.Spec.Selector == nil {
		more.Spec.Selector = s.Spec.Selector
	}
	if more.Spec.Template.Spec.Containers == nil {
		more.Spec.Template = s.Spec.Template
	}
	s.Spec = more.Spec
	return s
}

// The error names the invalid field, in Kubernetes' words.
func TestAStatefulSetIsRefusedByItsField(t *testing.T) {
	const claim = "volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]"
	mounting := "template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: 'db:1', volumeMounts: [{name: data, mountPath: /data}]}]}}"
	for lines, want := range map[string]string{
		"replicas: 0":                      "",
		"replicas: -1":                     "spec.replicas: Invalid value",
		"minReadySeconds: -1":              "spec.minReadySeconds: Invalid value",
		"ordinals: {start: -1}":            "spec.ordinals.start: Invalid value",
		"ordinals: {start: 2147483647}":    "spec.ordinals.start: Invalid value",
		"serviceName: a.b":                 "spec.serviceName: Invalid value",
		"podManagementPolicy: Chaos":       "spec.podManagementPolicy: Unsupported value",
		"revisionHistoryLimit: -1":         "", // then Kubernetes keeps all revisions
		"updateStrategy: {type: Recreate}": "spec.updateStrategy.type: Unsupported value",
		"updateStrategy: {type: OnDelete, rollingUpdate: {partition: 1}}": "only allowed for updateStrategy 'RollingUpdate'",
		"updateStrategy: {type: RollingUpdate}":                           "",
		"updateStrategy: {rollingUpdate: {partition: -1}}":                "spec.updateStrategy.rollingUpdate.partition: Invalid value",
		"updateStrategy: {rollingUpdate: {maxUnavailable: 0}}":            "cannot be 0",
		"updateStrategy: {rollingUpdate: {maxUnavailable: 0%}}":           "cannot be 0",
		"updateStrategy: {rollingUpdate: {maxUnavailable: 101%}}":         "must not be greater than 100%",
		"persistentVolumeClaimRetentionPolicy: {whenScaled: Burn}":        "spec.persistentVolumeClaimRetentionPolicy.whenScaled: Unsupported value",
		claim:                                "",
		claim + "\n" + mounting:              "",
		mounting:                             "spec.template.spec.containers[0].volumeMounts[0].name: Not found",
		"volumeClaimTemplates: [{spec: {}}]": "spec.volumeClaimTemplates[0].metadata.name: Required value",
		strings.Replace(claim, "name: data", "name: Data",
			1): "spec.volumeClaimTemplates[0].metadata.name: Invalid value",
		strings.Replace(claim, "name: data", "name: data, finalizers: [foo]",
			1): "spec.volumeClaimTemplates[0].metadata.finalizers[0]: Invalid value",
		strings.Replace(claim, "name: data", "name: data, finalizers: [a_b/c]",
			1): "spec.volumeClaimTemplates[0].metadata.finalizers: Invalid value",
		strings.Replace(claim, "name: data", "name: data, finalizers: [example.org/c]",
			1): "",
		strings.Replace(claim, "Once", "Many", 1): "spec.volumeClaimTemplates[0].spec.accessModes[0]: Forbidden",
		strings.Replace(claim, "1Gi", "-1", 1):    "spec.volumeClaimTemplates[0].spec.resources.requests[storage]: Invalid value",
		strings.Replace(claim, "spec: {", "spec: {dataSource: {kind: A, name: b}, ",
			1): "spec.volumeClaimTemplates[0].spec.dataSource: Forbidden: is not supported",
		strings.Replace(claim, "}}}}]", "}}}}, {metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]", 1): "Duplicate value",
		"selector: {matchLabels: {app: x}}": "`selector` does not match template `labels`",
		"selector: {}":                      "empty selector is invalid for statefulset",
		strings.Replace(mounting, "volumeMounts: [{name: data, mountPath: /data}]", "volumeMounts: []",
			1) + "\n": "",
		"template: {metadata: {labels: {app: db}}, spec: {restartPolicy: Never, containers: [{name: c, image: 'db:1'}]}}": "spec.template.spec.restartPolicy: Unsupported value",
		"template: {metadata: {labels: {app: db}}, spec: {hostNetwork: true, containers: [{name: c, image: 'db:1'}]}}":    "spec.template.spec.hostNetwork",
	} {
		_, errs := Admit(aStatefulSet(t, lines), nil, normal)
		switch got := errs.ToAggregate(); {
		case want == "" && got != nil:
			t.Errorf("%s is refused: %v", lines, got)
		case want != "" && (got == nil || !strings.Contains(got.Error(), want)):
			t.Errorf("%s: %v, want %q", lines, got, want)
		}
	}
	for name, fine := range map[string]bool{strings.Repeat("a", 52): true, strings.Repeat("a", 53): false, "a.b": false} {
		s := aStatefulSet(t, "replicas: 1")
		s.Name = name
		if _, errs := Admit(s, nil, normal); (len(errs) == 0) != fine {
			t.Errorf("the name %s: %v, want admitted: %t", name, errs, fine)
		}
	}
}

func TestDefaultsOfAStatefulSet(t *testing.T) {
	s := aStatefulSet(t, "volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]")
	if _, errs := Admit(s, nil, normal); len(errs) > 0 {
		t.Fatal(errs)
	}
	x := s.Spec
	if *x.Replicas != 1 || *x.RevisionHistoryLimit != 10 || x.PodManagementPolicy != "OrderedReady" ||
		x.UpdateStrategy.Type != "RollingUpdate" || *x.UpdateStrategy.RollingUpdate.Partition != 0 ||
		x.PersistentVolumeClaimRetentionPolicy.WhenDeleted != "Retain" ||
		x.PersistentVolumeClaimRetentionPolicy.WhenScaled != "Retain" ||
		*x.VolumeClaimTemplates[0].Spec.VolumeMode != "Filesystem" {
		t.Errorf("the defaults are %+v", x)
	}
}

func TestAnUnchangedClaimTemplateDoesNotBlockChanges(t *testing.T) {
	was := aStatefulSet(t, "volumeClaimTemplates: [{metadata: {name: data, finalizers: [foo]}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]")
	Default(was, normal)
	was.ResourceVersion = "7"
	is := was.DeepCopy()
	is.Spec.Replicas = new(int32(3))
	if _, errs := Admit(is, was, normal); len(errs) > 0 {
		t.Error(errs.ToAggregate())
	}
}

func TestMostFieldsOfAStatefulSetAreImmutable(t *testing.T) {
	const claim = "volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]\n"
	was := aStatefulSet(t, claim+"serviceName: db")
	Default(was, normal)
	for lines, fine := range map[string]bool{
		claim + "serviceName: db\nreplicas: 4\nminReadySeconds: 3\nordinals: {start: 2}\nrevisionHistoryLimit: 1\nupdateStrategy: {type: OnDelete}\npersistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}": true,
		claim + "serviceName: other":                                false,
		claim + "serviceName: db\npodManagementPolicy: Parallel":    false,
		strings.Replace(claim, "1Gi", "2Gi", 1) + "serviceName: db": false,
		"serviceName: db": false,
	} {
		_, errs := Admit(aStatefulSet(t, lines), was, normal)
		if (len(errs) == 0) != fine || !fine && !strings.Contains(errs.ToAggregate().Error(),
			"updates to statefulset spec for fields other than 'replicas', 'ordinals',") {
			t.Errorf("an update to %s: %v, want admitted: %t", lines, errs, fine)
		}
	}
}

func TestControllersAndPodTemplatesAreRefusedByTheirField(t *testing.T) {
	const template = "template: {metadata: {labels: {app: a}}, spec: {containers: [{name: c, image: 'a:1'}]}}"
	for _, c := range []struct {
		kind        state.Kind
		lines, want string
	}{
		{state.Controllers, "spec: {" + template + "}", ""},
		{state.Controllers, "spec: {selector: {app: a}}", "spec.template: Required value"},
		{state.Controllers, "spec: {}", "spec.selector: Required value"},
		{state.Controllers, "spec: {replicas: -1, " + template + "}", "spec.replicas: Invalid value"},
		{state.Controllers, "spec: {selector: {app: b}, " + template + "}", "`selector` does not match template `labels`"},
		{state.Controllers, "spec: {" + strings.Replace(template, "containers", "restartPolicy: Never, containers", 1) + "}", "spec.template.spec.restartPolicy: Unsupported value"},
		{state.PodTemplates, template, ""},
		{state.PodTemplates, strings.Replace(template, "containers", "restartPolicy: Never, containers", 1), ""},
		{state.PodTemplates, strings.Replace(template, "containers", "hostIPC: true, containers", 1), "template.spec.hostIPC: Forbidden: is not supported"},
		{state.PodTemplates, "template: {}", "template.spec.containers: Required value"},
	} {
		var o state.Object = &corev1.ReplicationController{}
		if text := "metadata: {name: a, namespace: shop}\n" + c.lines; c.kind == state.PodTemplates {
			o = parse[*corev1.PodTemplate](t, text)
		} else {
			o = parse[*corev1.ReplicationController](t, text)
		}
		_, errs := Admit(o, nil, normal)
		switch got := errs.ToAggregate(); {
		case c.want == "" && got != nil:
			t.Errorf("%s is refused: %v", c.lines, got)
		case c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.lines, got, c.want)
		}
	}
	rc := parse[*corev1.ReplicationController](t, "metadata: {name: a, namespace: shop}\nspec: {"+template+"}")
	if Default(rc, normal); rc.Spec.Selector["app"] != "a" || rc.Labels["app"] != "a" || *rc.Spec.Replicas != 1 {
		t.Errorf("the controller is %+v", rc)
	}
}

// A different formatting of the same data is not a change. An object that is written back as it was
// read may change its number or labels.
func TestRevisionsAreComparedByDecodedData(t *testing.T) {
	for _, c := range []struct {
		name, was, is string
		same          bool
	}{
		{"the same bytes", `{"a":1}`, `{"a":1}`, true},
		{"different white space", `{"a": 1, "b": [1, 2]}`, `{"a":1,"b":[1,2]}`, true},
		{"a different order of fields", `{"b":{"d":1,"c":2},"a":"x"}`, `{"a":"x","b":{"c":2,"d":1}}`, true},
		{"a different value", `{"a": 1}`, `{"a":2}`, false},
		{"a different order of a list", `{"a": [1, 2]}`, `{"a":[2,1]}`, false},
		{"large numbers that differ in the last digit", `{"a": 9007199254740993}`, `{"a":9007199254740992}`, false},
		{"a missing field", `{"a": 1, "b": 2}`, `{"a":1}`, false},
	} {
		revision := func(data string, n int64) *appsv1.ControllerRevision {
			return &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "default"},
				Data: runtime.RawExtension{Raw: []byte(data)}, Revision: n}
		}
		if _, errs := Admit(revision(c.is, 2), revision(c.was, 1), normal); (len(errs) == 0) != c.same {
			t.Errorf("%s: %v, want admitted: %t", c.name, errs.ToAggregate(), c.same)
		}
	}
}
