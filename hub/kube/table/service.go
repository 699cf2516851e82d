package table

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"flotilla.dev/hub/state"
)

func init() {
	show(state.Services, columns("Name Type Cluster-IP External-IP Port(s) Age (w)Selector"), serviceCells)
	show(state.Endpoints, columns("Name Endpoints Age"), endpointsCells)
	show(state.EndpointSlices, columns("Name AddressType Ports Endpoints Age"), sliceCells)
	show(state.ServiceAccounts, columns("Name", "Age"), accountCells)
}

func serviceCells(obj state.Object, o *Options) []any {
	s := obj.(*corev1.Service)
	var ports []string
	for _, p := range s.Spec.Ports {
		ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	}
	return []any{s.Name, string(s.Spec.Type), orNone(s.Spec.ClusterIP), "<none>", orNone(strings.Join(ports, ",")),
		age(s.CreationTimestamp, o), "<none>"}
}

func endpointsCells(obj state.Object, o *Options) []any {
	e := obj.(*corev1.Endpoints) //lint:ignore SA1019 clients read them
	var all []string
	for _, s := range e.Subsets {
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				all = append(all, hostPort(a.IP, p.Port))
			}
		}
	}
	return []any{e.Name, orNone(strings.Join(all, ",")), age(e.CreationTimestamp, o)}
}

func hostPort(ip string, port int32) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return ip + ":" + strconv.Itoa(int(port))
}

func sliceCells(obj state.Object, o *Options) []any {
	e := obj.(*discoveryv1.EndpointSlice)
	var ports, all []string
	for _, p := range e.Ports {
		if p.Port != nil {
			ports = append(ports, strconv.Itoa(int(*p.Port)))
		}
	}
	for _, p := range e.Endpoints {
		all = append(all, p.Addresses...)
	}
	return []any{e.Name, string(e.AddressType), cmp.Or(strings.Join(ports, ","), "<unset>"),
		cmp.Or(strings.Join(all, ","), "<unset>"), age(e.CreationTimestamp, o)}
}

func accountCells(obj state.Object, o *Options) []any {
	a := obj.(*corev1.ServiceAccount)
	return []any{a.Name, age(a.CreationTimestamp, o)}
}
