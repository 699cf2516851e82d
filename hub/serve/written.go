package serve

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"flotilla.dev/hub/state"
)

// written reads an object that is written as this hub writes it, where there may be very many of its kind,
// in a third of the time that it takes by JSON's rules: what is shared of it is shared then. false: it is
// written in another way, which those rules know how to read, and nothing of it was read.
func (k *reader) written(row []byte, o state.Object) (ok bool) {
	switch o := o.(type) {
	case *corev1.Node:
		if ok = k.node(row, o); !ok {
			*o = corev1.Node{}
		}
	case *state.Record:
		if ok = k.record(row, o); !ok {
			*o = state.Record{}
		}
	}
	return ok
}

func (k *reader) node(row []byte, n *corev1.Node) bool {
	t := text{b: row, k: k}
	t.object(func(name []byte) {
		switch string(name) {
		case "metadata":
			t.object(func(name []byte) { t.meta(name, &n.ObjectMeta) })
		case "spec":
			t.object(func(name []byte) { t.spec(name, &n.Spec) })
		case "status":
			t.object(func(name []byte) { t.status(name, &n.Status) })
		default:
			t.fail()
		}
	})
	return t.over()
}

func (k *reader) record(row []byte, r *state.Record) bool {
	t := text{b: row, k: k}
	t.object(func(name []byte) {
		switch string(name) {
		case "metadata":
			t.object(func(name []byte) { t.meta(name, &r.ObjectMeta) })
		case "machineID":
			r.MachineID = t.string()
		case "boot":
			r.Boot = t.word()
		case "agentVersion":
			r.AgentVersion = t.word()
		case "enrolled":
			r.Enrolled = t.time()
		case "key":
			r.Key = t.string()
		case "expires":
			r.Expires = t.time()
		case "token":
			r.Token = t.word()
		case "site":
			r.Site = t.word()
		case "given":
			t.given(&r.Given, r.Name)
		case "generation":
			r.Generation = t.number()
		case "digest":
			r.Digest = t.string()
		case "leaseSeconds":
			r.LeaseSeconds = int32(t.number()) //nolint:gosec // it has nine digits at most
		case "transitions":
			t.list(r.Transitions != nil, func() { r.Transitions = append(r.Transitions, t.micro()) })
		case "history":
			t.list(r.History != nil, func() {
				r.History = append(r.History, state.Turn{})
				t.object(func(name []byte) { t.turn(name, &r.History[len(r.History)-1]) })
			})
		default:
			t.other(name, r)
		}
	})
	return t.over()
}

func (t *text) given(to **state.Given, own string) {
	if *to == nil {
		*to = &state.Given{}
	}
	t.object(func(name []byte) {
		switch string(name) {
		case "labels":
			t.words(&(*to).Labels, own)
		case "taints":
			t.taints(&(*to).Taints)
		default:
			t.fail()
		}
	})
}

func (t *text) turn(name []byte, of *state.Turn) {
	switch string(name) {
	case "at":
		of.At = t.micro()
	case "ready":
		of.Ready = corev1.ConditionStatus(t.word())
	case "out":
		of.Out = t.true()
	default:
		t.fail()
	}
}

func (t *text) meta(name []byte, m *metav1.ObjectMeta) {
	switch string(name) {
	case "name":
		m.Name = t.string()
	case "uid":
		m.UID = types.UID(t.string())
	case "resourceVersion":
		m.ResourceVersion = t.string()
	case "creationTimestamp":
		m.CreationTimestamp = t.time()
	case "labels":
		t.words(&m.Labels, m.Name)
	case "annotations":
		t.words(&m.Annotations, m.Name)
	default:
		t.other(name, m)
	}
}

func (t *text) spec(name []byte, s *corev1.NodeSpec) {
	switch string(name) {
	case "podCIDR":
		s.PodCIDR = t.string()
	case "podCIDRs":
		t.list(s.PodCIDRs != nil, func() { s.PodCIDRs = append(s.PodCIDRs, t.string()) })
	case "taints":
		t.taints(&s.Taints)
	default:
		t.other(name, s)
	}
}

func (t *text) taints(l *[]corev1.Taint) {
	t.list(*l != nil, func() {
		*l = append(*l, corev1.Taint{})
		t.object(func(name []byte) { t.taint(name, &(*l)[len(*l)-1]) })
	})
}

func (t *text) taint(name []byte, of *corev1.Taint) {
	switch string(name) {
	case "key":
		of.Key = t.word()
	case "value":
		of.Value = t.word()
	case "effect":
		of.Effect = corev1.TaintEffect(t.word())
	case "timeAdded":
		if of.TimeAdded = nil; !t.null() {
			at := t.time()
			of.TimeAdded = &at
		}
	default:
		t.fail()
	}
}

func (t *text) status(name []byte, s *corev1.NodeStatus) {
	switch string(name) {
	case "capacity":
		t.resources(&s.Capacity)
	case "allocatable":
		t.resources(&s.Allocatable)
	case "conditions":
		t.conditions(&s.Conditions)
	case "daemonEndpoints":
		if t.literal(noEndpoints) {
			s.DaemonEndpoints = corev1.NodeDaemonEndpoints{} // it may be there twice
		} else {
			t.other(name, s)
		}
	case "nodeInfo":
		t.object(func(name []byte) { t.info(name, &s.NodeInfo) })
	case "images":
		t.other(name, s)
		t.k.sharer.ShareImages(s.Images)
	default:
		t.other(name, s)
	}
}

// noEndpoints is what every node has: a device has no port that a hub reaches.
const noEndpoints = `{"kubeletEndpoint":{"Port":0}}`

func (t *text) conditions(l *[]corev1.NodeCondition) {
	k := t.k
	clear(k.conditions[:cap(k.conditions)])
	k.conditions = k.conditions[:0]
	var c *corev1.NodeCondition
	field := func(name []byte) {
		switch string(name) {
		case "type":
			c.Type = corev1.NodeConditionType(t.word())
		case "status":
			c.Status = corev1.ConditionStatus(t.word())
		case "lastHeartbeatTime":
			c.LastHeartbeatTime = t.time()
		case "lastTransitionTime":
			c.LastTransitionTime = t.time()
		case "reason":
			c.Reason = t.word()
		case "message":
			c.Message = t.word()
		default:
			t.fail()
		}
	}
	t.list(*l != nil, func() {
		k.conditions = append(k.conditions, corev1.NodeCondition{})
		c = &k.conditions[len(k.conditions)-1]
		t.object(field)
	})
	*l = append(make([]corev1.NodeCondition, 0, len(k.conditions)), k.conditions...)
}

func (t *text) resources(l *corev1.ResourceList) {
	if b := t.value(); !t.failed && t.k.resources(b, l) != nil {
		t.fail()
	}
}

func (t *text) info(name []byte, n *corev1.NodeSystemInfo) {
	switch string(name) {
	case "machineID":
		n.MachineID = t.string()
	case "systemUUID":
		n.SystemUUID = t.string()
	case "bootID":
		n.BootID = t.string()
	case "kernelVersion":
		n.KernelVersion = t.word()
	case "osImage":
		n.OSImage = t.word()
	case "containerRuntimeVersion":
		n.ContainerRuntimeVersion = t.word()
	case "kubeletVersion":
		n.KubeletVersion = t.word()
	case "kubeProxyVersion":
		//lint:ignore SA1019 rows have it
		n.KubeProxyVersion = t.word()
	case "operatingSystem":
		n.OperatingSystem = t.word()
	case "architecture":
		n.Architecture = t.word()
	default:
		t.other(name, n)
	}
}
