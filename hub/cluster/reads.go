package cluster

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	coordv1 "k8s.io/api/coordination/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/leader"
	"flotilla.dev/hub/metrics"
	"flotilla.dev/hub/peer"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// revisionHeader is the revision of the fleet in a standby's response.
const revisionHeader = "Flotilla-Revision"

// reads answers read requests from the database's copy, for known users who may read. It forwards
// everything else to the leader, which refuses with a reason and audits that.
type reads struct {
	guard   *access.Guard
	api     *kube.Server
	fleet   *follower
	leader  func() (name, address string)
	metrics http.Handler
	next    http.Handler
}

func (m *Member) reads(s *store.Standby, authority *pki.Authority, f *follower) *reads {
	guard := access.New(access.Options{
		Store: s.People(), Authority: authority, Log: m.log, Now: authority.Now, Fleet: noFleet{},
	})
	return &reads{
		guard: guard, fleet: f, leader: m.passer.Leader, next: m.passer, metrics: metrics.Standby(m.c.Version, f),
		api: kube.New(kube.Config{
			Fleet: followed{f}, Leases: noLeases{}, Access: guard, Settings: m.c.Settings, Version: m.c.Version, Log: m.log,
		}),
	}
}

// A followed is the fleet as a standby's API serves it.
type followed struct{ *follower }

// Do refuses changes, because a standby only answers reads.
func (followed) Do(context.Context, control.News) ([]state.Applied, error) {
	return nil, store.ErrStandby
}

// Since is never called: a watch needs every change, but a standby follows combined changes.
func (followed) Since(uint64) ([]state.Applied, <-chan struct{}, error) {
	return nil, nil, control.ErrExpired
}

// noFleet is for a guard that admits no device.
type noFleet struct{ access.Fleet }

func (noFleet) Enrolment(string) (access.Enrolment, bool) { return access.Enrolment{}, false }

// noLeases answers for leases: only the leader knows the time of the last lease.
type noLeases struct{}

func (noLeases) Seen(string) time.Time       { return time.Time{} }
func (noLeases) Lease(string) *coordv1.Lease { return nil }
func (noLeases) Leases() []*coordv1.Lease    { return nil }

// readable are the resources that a standby serves. It does not serve secrets, whose reads are
// audited, or nodes and leases, whose status only the leader knows.
var readable = func() (all []string) {
	for _, r := range state.Served() {
		if r.New != nil && !r.Sealed && r.Kind != state.Nodes && r.Kind != state.Leases {
			all = append(all, string(r.Kind))
		}
	}
	return all
}()

// readOf returns the verb and resource that a request reads, or "" if a standby does not serve it.
func readOf(r *http.Request) (verb, resource string) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Upgrade") != "" || r.URL.RawPath != "" {
		return "", ""
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return "", ""
		}
	}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis" && parts[1] != "metrics.k8s.io":
		parts = parts[3:]
	default:
		return "", ""
	}
	if len(parts) >= 3 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	if len(parts) > 2 || !slices.Contains(readable, parts[0]) || slices.Contains(parts, "") {
		return "", ""
	}
	switch watch := r.URL.Query()["watch"]; {
	case len(parts) == 2:
		verb = "get"
	case len(watch) > 0 && watch[0] != "false" && watch[0] != "0":
		return "", ""
	default:
		verb = "list"
	}
	return verb, parts[0]
}

// ServeHTTP implements http.Handler. Unless the request accepts any version, the standby first
// catches up with the database, so that its response is not older than the request.
func (s *reads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb, resource := readOf(r)
	if r.URL.Path == "/metrics" && r.Method == http.MethodGet {
		verb, resource = "get", "metrics"
	}
	if verb == "" {
		s.next.ServeHTTP(w, r)
		return
	}
	u, err := s.guard.Authenticate(r)
	if err != nil || !access.Allow(u.Role, verb, resource) {
		s.next.ServeHTTP(w, r)
		return
	}
	if resource == "metrics" {
		s.metrics.ServeHTTP(w, r)
		return
	}
	if r.URL.Query().Get("resourceVersion") != "0" {
		err = s.fleet.catchUp(r.Context())
	}
	if err != nil || s.fleet.Age() > leader.MaxBehind {
		s.next.ServeHTTP(w, r)
		return
	}
	leads, _ := s.leader()
	if leads == "" {
		leads = "nobody"
	}
	w.Header().Set(peer.StandbyHeader, leads)
	w.Header().Set(revisionHeader, strconv.FormatUint(s.fleet.Snapshot().Revision, 10))
	s.api.ServeHTTP(w, r)
}
