// Package metrics serves the hub's Prometheus metrics. At each scrape it reads counts that other
// packages keep, and keeps none itself, because two counters could differ. Packages serve and
// cluster use it.
package metrics

import (
	"bytes"
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/inventory"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/fleet"
)

// Sources are the parts of a hub whose metrics are served.
type Sources struct {
	Version   string
	Loop      *node.Devices
	Broker    interface{ Stats() broker.Stats }
	Store     *store.Store
	Authority *pki.Authority
	Server    *pki.Server
	Inventory *inventory.Reader // nil: not configured
}

type hubCollector struct{ Sources }

var (
	metricNodes = prometheus.NewDesc("flotilla_nodes", "Nodes by site and by what they mean for its state.",
		[]string{"site", "state"}, nil)
	metricSite = prometheus.NewDesc("flotilla_site_state", "1 for the disruption state that a site is in.",
		[]string{"site", "state"}, nil)
	metricWaiting = prometheus.NewDesc("flotilla_site_waiting_nodes",
		"Not-ready nodes of a site that wait for their NoExecute taint.", []string{"site"}, nil)
	metricObjects   = prometheus.NewDesc("flotilla_objects", "Objects that the hub keeps, by kind.", []string{"kind"}, nil)
	metricRevision  = prometheus.NewDesc("flotilla_revision", "Revision of the newest change.", nil, nil)
	metricPasses    = prometheus.NewDesc("flotilla_passes_total", "Cycles of the control loop.", nil, nil)
	metricCommits   = prometheus.NewDesc("flotilla_commits_total", "Transactions written to the database.", nil, nil)
	metricUnsettled = prometheus.NewDesc("flotilla_unsettled_passes_total",
		"Cycles whose rules did not settle and were run again from the start. Each is a bug of the hub.", nil,
		nil)
	metricSessions = prometheus.NewDesc("flotilla_mqtt_sessions", "Nodes connected now.", nil, nil)
	metricConns    = prometheus.NewDesc("flotilla_mqtt_connections", "MQTT connections open now, authenticated or not.",
		nil, nil)
	metricMessages = prometheus.NewDesc("flotilla_mqtt_messages_total", "MQTT messages by channel.", []string{"channel"},
		nil)
	metricRefused = prometheus.NewDesc("flotilla_mqtt_refused_connections_total", "MQTT connections refused, by reason.",
		[]string{"reason"}, nil)
	metricOffences = prometheus.NewDesc("flotilla_mqtt_offences_total",
		"Messages and subscriptions that devices were not allowed, by kind.", []string{"kind"}, nil)
	metricDropped = prometheus.NewDesc("flotilla_mqtt_dropped_total",
		"Messages to devices that were not sent, by reason; the next lease requests them again.", []string{"reason"}, nil)
	metricObservers = prometheus.NewDesc("flotilla_mqtt_observers", "MQTT observers connected now.", nil, nil)
	metricObserved  = prometheus.NewDesc("flotilla_mqtt_observed_total",
		"MQTT messages for observers: sent, or dropped because an observer reads too slowly.", []string{"result"}, nil)
	metricBroker = prometheus.NewDesc("flotilla_broker_connected",
		"1 while the hub is connected to the broker of --broker, else 0; absent without --broker.", nil,
		nil)
	metricUnstored = prometheus.NewDesc("flotilla_mqtt_unremembered_total",
		"Messages of devices left unacknowledged because they could not be stored.", nil, nil)
	metricSlow = prometheus.NewDesc("flotilla_slow_passes_total",
		"Cycles of the control loop that took more than a second, by the sender of the slowest change, else hub.",
		[]string{"sender"}, nil)
	metricHeld = prometheus.NewDesc("flotilla_device_messages_held_total",
		"Messages of devices over their storage limit; the hub requests them again.", nil, nil)
	metricPanics = prometheus.NewDesc("flotilla_panics_total",
		"Panics that the hub caught and survived, by kind of work. The log has their stacks.",
		[]string{"during"}, nil)
	metricReadable = prometheus.NewDesc("flotilla_inventory_readable",
		"1 if the inventory was read at the last attempt, 0 if not: then it decides nothing.", nil, nil)
	metricMachines = prometheus.NewDesc("flotilla_inventory_machines", "Machines that the inventory names.", nil, nil)
	metricIncident = prometheus.NewDesc("flotilla_incident_open",
		"1 for each incident that is open. part_of names the one that it follows from.",
		[]string{"incident", "cause", "severity", "site", "kind", "namespace", "name", "part_of"}, nil)
	metricBuild = prometheus.NewDesc("flotilla_build_info", "1, with the version of the hub that runs.",
		[]string{"version"}, nil)
	metricPods     = prometheus.NewDesc("flotilla_pods", "Pods by phase.", []string{"phase"}, nil)
	metricUnplaced = prometheus.NewDesc("flotilla_pods_unscheduled", "Pods that wait for a node.", nil, nil)
	metricBehind   = prometheus.NewDesc("flotilla_nodes_behind",
		"Connected nodes that have not stored the newest desired state yet.", nil, nil)
	metricExpiry = prometheus.NewDesc("flotilla_certificate_expiry_timestamp_seconds",
		"When a certificate of the hub expires: root, intermediate or server. The hub renews the last two by itself.",
		[]string{"certificate"}, nil)
	metricFull = prometheus.NewDesc("flotilla_disk_full",
		"1 while the hub stores nothing new because the disk of its data directory is full.", nil, nil)
	metricReach = prometheus.NewDesc("flotilla_database_reachable",
		"1 if the database answered the last request, 0 while the hub can store nothing because its server does "+
			"not.", nil, nil)
	metricFree = prometheus.NewDesc("flotilla_data_free_bytes",
		"Bytes that the disk of the data directory has free for the hub.", nil, nil)
	metricDatabase = prometheus.NewDesc("flotilla_database_bytes", "Size of the database with its log.", nil, nil)
	metricBackup   = prometheus.NewDesc("flotilla_backup_timestamp_seconds",
		"When the newest daily backup was made; 0 while there is none.", nil, nil)
	metricRead = prometheus.NewDesc("flotilla_inventory_read_timestamp_seconds", "When the inventory was last read.",
		nil, nil)
	allMetrics = []*prometheus.Desc{metricLeader, metricLag, metricNodes, metricSite, metricWaiting, metricObjects,
		metricRevision, metricPasses, metricCommits, metricUnsettled, metricSessions, metricConns, metricMessages,
		metricRefused, metricOffences, metricDropped, metricObservers, metricObserved, metricBroker, metricUnstored,
		metricSlow, metricHeld, metricPanics, metricReadable, metricMachines, metricRead, metricIncident,
		metricBuild, metricPods, metricUnplaced, metricBehind, metricExpiry, metricFull, metricReach, metricFree,
		metricDatabase, metricBackup}
	allPhases = []corev1.PodPhase{
		corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown,
	}
	allSiteStates   = []fleet.SiteState{fleet.SiteNormal, fleet.SitePartialDisruption, fleet.SiteFullDisruption}
	gauge, counting = prometheus.GaugeValue, prometheus.CounterValue
)

func (m hubCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allMetrics {
		ch <- d
	}
}

func (m hubCollector) Collect(ch chan<- prometheus.Metric) { // runs on a goroutine of Prometheus' library
	defer panics.Catch("metrics")
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, labels...)
	}
	s := m.Loop.Snapshot()
	for site, c := range s.Counts() {
		send(metricNodes, gauge, float64(c.Ready), site, "ready")
		send(metricNodes, gauge, float64(c.NotReady), site, "not-ready")
		send(metricNodes, gauge, float64(c.NeverSeen), site, "never-seen")
		send(metricWaiting, gauge, float64(c.Waiting), site)
	}
	for site := range state.Each[*fleet.Site](s, state.Sites, "") {
		for _, st := range allSiteStates {
			send(metricSite, gauge, number(site.Status.State == st), site.Name, string(st))
		}
	}
	for i := range state.Each[*fleet.Incident](s, state.Incidents, "") {
		if i.State == fleet.IncidentOpen {
			send(metricIncident, gauge, 1, i.Name, string(i.Cause), string(i.Severity), i.Site, i.About.Kind, i.About.Namespace,
				i.About.Name, i.PartOf)
		}
	}
	m.sendWork(s, send)
	m.sendKeeping(send)
	for _, k := range state.Kinds() {
		send(metricObjects, gauge, float64(s.Len(k)), string(k))
	}
	send(metricRevision, gauge, float64(s.Revision))
	send(metricPasses, counting, float64(m.Loop.Passes()))
	send(metricCommits, counting, float64(m.Loop.Commits()))
	send(metricHeld, counting, float64(m.Loop.DeferredMessages()))
	for sender, n := range m.Loop.SlowPasses() {
		send(metricSlow, counting, float64(n), sender)
	}
	for during, n := range panics.Counts() {
		send(metricPanics, counting, float64(n), during)
	}
	send(metricUnsettled, counting, float64(m.Loop.Unsettled()))
	if m.Inventory != nil {
		if h, ok := m.Inventory.Health(); ok {
			send(metricReadable, gauge, number(h.Readable))
			send(metricMachines, gauge, float64(h.Machines))
			if !h.Read.IsZero() {
				send(metricRead, gauge, float64(h.Read.Unix()))
			}
		}
	}
	st := m.Broker.Stats()
	send(metricSessions, gauge, float64(st.Sessions))
	send(metricConns, gauge, float64(st.Connections))
	if c, external := m.Broker.(*broker.Client); external {
		send(metricBroker, gauge, number(c.Connected()))
	}
	send(metricUnstored, counting, float64(st.NotStored))
	send(metricObservers, gauge, float64(st.Observers))
	for _, each := range []struct {
		d      *prometheus.Desc
		values map[string]uint64
	}{{metricMessages, st.Messages}, {metricRefused, st.Refused}, {metricOffences, st.Offences},
		{metricDropped, st.Dropped}, {metricObserved, st.Observed}} {
		for k, v := range each.values {
			send(each.d, counting, float64(v), k)
		}
	}
}

type sender func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string)

// sendWork sends the metrics of pods, and of desired states that devices have not stored.
func (m hubCollector) sendWork(s state.Snapshot, send sender) {
	phases, unplaced, behind := map[corev1.PodPhase]int{}, 0, 0
	for p := range s.Pods("") {
		phase := p.Status.Phase
		if phase == "" {
			phase = corev1.PodPending
		}
		phases[phase]++
		if p.Spec.NodeName == "" && !state.Terminated(p) && len(p.Spec.SchedulingGates) == 0 {
			unplaced++
		}
	}
	for n := range s.Nodes() {
		if v := m.Loop.Liveness(n.Name); v.Connected && v.Stored < v.Wanted {
			behind++
		}
	}
	for _, phase := range allPhases {
		send(metricPods, gauge, float64(phases[phase]), string(phase))
	}
	send(metricUnplaced, gauge, float64(unplaced))
	send(metricBehind, gauge, float64(behind))
}

// sendKeeping sends the metrics of the hub's upkeep: disk space, backups, certificates and version.
func (m hubCollector) sendKeeping(send sender) {
	send(metricBuild, gauge, 1, m.Version)
	send(metricLeader, gauge, 1)
	send(metricFull, gauge, number(m.Store.Full()))
	send(metricReach, gauge, number(m.Store.Reachable()))
	if taken, free, err := m.Store.Space(); err == nil {
		send(metricDatabase, gauge, float64(taken))
		send(metricFree, gauge, float64(free))
	}
	if last, err := m.Store.LastBackup(); err != nil || last.IsZero() { // a missing metric raises no alert
		send(metricBackup, gauge, 0)
	} else {
		send(metricBackup, gauge, float64(last.Unix()))
	}
	st := m.Authority.Status()
	send(metricExpiry, gauge, float64(st.Root.NotAfter.Unix()), "root")
	if st.Intermediate != nil {
		send(metricExpiry, gauge, float64(st.Intermediate.NotAfter.Unix()), "intermediate")
	}
	send(metricExpiry, gauge, float64(m.Server.Expires().Unix()), "server")
}

// Handler serves the metrics of a hub and its fleet.
func Handler(from Sources) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(hubCollector{from}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Text returns the response of one of this package's handlers.
func Text(ctx context.Context, h http.Handler) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return "", err
	}
	var p page
	h.ServeHTTP(&p, r)
	return p.String(), nil
}

// A page is a ResponseWriter that stores the response.
type page struct {
	bytes.Buffer
	head http.Header
}

func (p *page) Header() http.Header {
	if p.head == nil {
		p.head = http.Header{}
	}
	return p.head
}

func (*page) WriteHeader(int) {}
