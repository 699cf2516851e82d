// Package publish decides the objects that every Kubernetes cluster has without a user creating
// them: in every namespace the ServiceAccount default, without a token, and the ConfigMap
// kube-root-ca.crt with the hub's CA; in the namespace default the Service kubernetes with its
// Endpoints and EndpointSlice, which point to the hub's API.
//
// The objects are stored, listed and watched like other objects. A deleted or changed one is
// restored at once. Other objects of kinds that users cannot create are removed, because they can
// only come from a foreign database. The data comes from the hub's Advertisement, which package
// serve writes. A namespace that is being deleted gets no objects; package workload empties it.
package publish

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"flotilla.dev/hub/state"
)

// A Decider decides the published objects.
type Decider struct{}

// hubOnly are the kinds of which only published objects exist.
var hubOnly = slices.DeleteFunc(slices.Clone(state.Kinds()), func(k state.Kind) bool {
	return k.Row().Published == ""
})

// Touches returns the namespaces in which an object may be missing or surplus.
func (Decider) Touches(c state.Applied) []state.Subject {
	switch k := c.Key; {
	case k.Kind == state.Advertisements:
		return []state.Subject{{Key: state.Key{Kind: state.Namespaces}}}
	case k.Kind == state.Namespaces:
		return []state.Subject{state.About(k)}
	case k.Kind == state.ConfigMaps && k.Name == state.RootConfigMap, isExclusive(k.Kind):
		return []state.Subject{namespace(k.Namespace)}
	}
	return nil
}

// Subjects returns all namespaces, and missing namespaces that still have objects of hubOnly kinds.
func (Decider) Subjects(s state.Snapshot) (all []state.Subject) {
	for o := range s.All(state.Namespaces, "") {
		all = append(all, state.About(state.KeyOf(o)))
	}
	for _, kind := range hubOnly {
		for o := range s.All(kind, "") {
			all = append(all, namespace(o.GetNamespace()))
		}
	}
	return state.Distinct(all, nil)
}

// Decide creates missing objects, restores changed ones, and removes surplus objects of hubOnly
// kinds.
func (d Decider) Decide(s state.Snapshot, subjects []state.Subject, now time.Time) (plan state.Plan) {
	for _, q := range subjects {
		if q.Name == "" {
			subjects = d.Subjects(s)
			break
		}
	}
	for _, q := range subjects {
		ns, _ := s.Get(q.Key).(*corev1.Namespace)
		if ns != nil && ns.DeletionTimestamp != nil {
			continue
		}
		published := map[state.Key]bool{}
		if ns != nil {
			for _, p := range publications(s.Advertisement(), ns.Name) {
				published[p.key] = true
				plan.Do(p.missing(s, now)...)
			}
		}
		for _, kind := range hubOnly {
			for o := range s.All(kind, q.Name) {
				if !published[state.KeyOf(o)] {
					plan.Do(state.Remove(o, "remove "+state.KeyOf(o).String()+": only the hub publishes objects of its kind"))
				}
			}
		}
	}
	return plan
}

// A publication is one object, with a function that sets its content.
type publication struct {
	key state.Key
	set func(o state.Object)
}

// missing returns the change that publishes the object; none if the object is already right.
func (p publication) missing(s state.Snapshot, now time.Time) []state.Change {
	have, why := s.Get(p.key), ""
	var next state.Object
	if have != nil {
		next = have.DeepCopyObject().(state.Object)
	} else {
		next = p.key.Kind.Row().New()
		next.SetNamespace(p.key.Namespace)
		next.SetName(p.key.Name)
		next.SetCreationTimestamp(metav1.NewTime(now.UTC().Truncate(time.Second)))
	}
	p.set(next)
	if have != nil {
		if apiequality.Semantic.DeepEqual(have, next) {
			return nil
		}
		why = "publish " + p.key.String() + " again: it was changed"
	}
	return []state.Change{state.Put(next, why)}
}

// publications returns the objects of a namespace. Without an Advertisement some are left out.
func publications(hub *state.Advertisement, ns string) (all []publication) {
	add := func(k state.Kind, name string, set func(state.Object)) {
		all = append(all, publication{state.Key{Kind: k, Namespace: ns, Name: name}, set})
	}
	add(state.ServiceAccounts, state.DefaultAccount, func(o state.Object) {
		a := o.(*corev1.ServiceAccount)
		a.Secrets, a.ImagePullSecrets, a.AutomountServiceAccountToken = nil, nil, new(false)
	})
	if hub == nil {
		return all
	}
	if hub.Root != "" {
		add(state.ConfigMaps, state.RootConfigMap, func(o state.Object) {
			c := o.(*corev1.ConfigMap)
			c.Data, c.BinaryData, c.Immutable = map[string]string{state.RootKey: hub.Root}, nil, nil
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, "kubernetes.io/description",
				"The hub's certificate authority, by which a program knows the hub's API.")
		})
	}
	at, err := netip.ParseAddr(hub.Address)
	if ns != metav1.NamespaceDefault || err != nil || hub.Port == 0 {
		return all
	}
	add(state.Services, state.APIService, func(o state.Object) { service(o.(*corev1.Service), at, hub.Port) })
	//lint:ignore SA1019 clients read them
	add(state.Endpoints, state.APIService, func(o state.Object) { endpoints(o.(*corev1.Endpoints), at, hub.Port) })
	add(state.EndpointSlices, state.APIService, func(o state.Object) {
		slice(o.(*discoveryv1.EndpointSlice), at, hub.Port)
	})
	return all
}

const portName = "https"

// service fills in the Service kubernetes, whose only backend is the hub.
func service(s *corev1.Service, at netip.Addr, port int32) {
	s.Labels = map[string]string{"component": "apiserver", "provider": "kubernetes"}
	family := corev1.IPv4Protocol
	if at.Is6() {
		family = corev1.IPv6Protocol
	}
	s.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: at.String(), ClusterIPs: []string{at.String()},
		IPFamilies: []corev1.IPFamily{family}, IPFamilyPolicy: new(corev1.IPFamilyPolicySingleStack),
		InternalTrafficPolicy: new(corev1.ServiceInternalTrafficPolicyCluster), SessionAffinity: corev1.ServiceAffinityNone,
		Ports: []corev1.ServicePort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: port,
			TargetPort: intstr.FromInt32(port)}},
	}
	s.Status = corev1.ServiceStatus{}
}

//lint:ignore SA1019 clients read them
func endpoints(e *corev1.Endpoints, at netip.Addr, port int32) {
	e.Labels = map[string]string{discoveryv1.LabelSkipMirror: "true"} // its EndpointSlice is published too
	//lint:ignore SA1019 clients read them
	e.Subsets = []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: at.String()}},
		Ports:     []corev1.EndpointPort{{Name: portName, Port: port, Protocol: corev1.ProtocolTCP}},
	}}
}

func slice(e *discoveryv1.EndpointSlice, at netip.Addr, port int32) {
	e.Labels = map[string]string{discoveryv1.LabelServiceName: state.APIService}
	e.AddressType = discoveryv1.AddressTypeIPv4
	if at.Is6() {
		e.AddressType = discoveryv1.AddressTypeIPv6
	}
	e.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{at.String()},
		Conditions: discoveryv1.EndpointConditions{Ready: new(true)}}}
	e.Ports = []discoveryv1.EndpointPort{{Name: new(portName), Port: new(port), Protocol: new(corev1.ProtocolTCP)}}
}

func isExclusive(k state.Kind) bool { return slices.Contains(hubOnly, k) }

func namespace(name string) state.Subject {
	return state.About(state.Key{Kind: state.Namespaces, Name: name})
}
