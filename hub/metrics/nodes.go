package metrics

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/node"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

// NodesPath serves Nodes. It is not part of /metrics, because it grows with the fleet: less than 1
// kB a node.
const NodesPath = "/metrics/nodes"

// A nodeCollector sends the newest reports of devices. A scrape sends devices no requests, so that
// it does not use their links.
type nodeCollector struct{ loop *node.Devices }

var (
	ofNode    = []string{"node", "site"}
	nodeReady = prometheus.NewDesc("flotilla_node_ready", "1 if the node is ready, 0 if it is not ready or silent.",
		ofNode, nil)
	nodeConnected = prometheus.NewDesc("flotilla_node_connected", "1 while the device has an MQTT session.", ofNode, nil)
	nodeSeen      = prometheus.NewDesc("flotilla_node_seen_timestamp_seconds",
		"When the hub last received a message of the device, since the hub started.", ofNode, nil)
	nodeSkew = prometheus.NewDesc("flotilla_node_clock_offset_seconds",
		"How far the device's clock is ahead of the hub's.", ofNode, nil)
	nodePods     = prometheus.NewDesc("flotilla_node_pods", "Pods that are placed on the node.", ofNode, nil)
	nodeRestarts = prometheus.NewDesc("flotilla_node_container_restarts",
		"Restarts of the containers of the pods that are placed on the node now.", ofNode, nil)
	nodeExpiry = prometheus.NewDesc("flotilla_node_certificate_expiry_timestamp_seconds",
		"When the device's newest certificate expires.", ofNode, nil)
	nodeCPU = prometheus.NewDesc("flotilla_node_cpu_usage_ratio", "Share of all processors that is in use, 0 to 1.",
		ofNode, nil)
	nodeMemory = prometheus.NewDesc("flotilla_node_memory_usage_ratio", "Share of the memory that is in use, 0 to 1.",
		ofNode, nil)
	nodeDisk = prometheus.NewDesc("flotilla_node_disk_usage_ratio",
		"Share of the containers' file system that is in use, 0 to 1.", ofNode, nil)
	nodeHeat = prometheus.NewDesc("flotilla_node_temperature_celsius", "Temperature of the hottest sensor.", ofNode,
		nil)
	nodeSupply = prometheus.NewDesc("flotilla_node_supply_volts", "Supply voltage.", ofNode, nil)
	nodeRTT    = prometheus.NewDesc("flotilla_node_round_trip_seconds",
		"Time from a status of the device to the hub's acknowledgement.", ofNode, nil)
	allOfNode = []*prometheus.Desc{
		nodeReady, nodeConnected, nodeSeen, nodeSkew, nodePods, nodeRestarts, nodeExpiry, nodeCPU, nodeMemory, nodeDisk,
		nodeHeat, nodeSupply, nodeRTT,
	}
)

func (m nodeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range allOfNode {
		ch <- d
	}
}

func (m nodeCollector) Collect(ch chan<- prometheus.Metric) { // runs on a goroutine of Prometheus' library
	defer panics.Catch("metrics")
	s := m.loop.Snapshot()
	for n := range s.Nodes() {
		site, v := state.SiteOf(n), m.loop.Liveness(n.Name)
		send := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, gauge, v, n.Name, site)
		}
		send(nodeReady, number(state.ReadyOf(n) == corev1.ConditionTrue))
		send(nodeConnected, number(v.Connected))
		pods, restarts := 0, int32(0)
		for p := range s.PodsOn(n.Name) {
			pods++
			for _, c := range p.Status.ContainerStatuses {
				restarts += c.RestartCount
			}
		}
		send(nodePods, float64(pods))
		send(nodeRestarts, float64(restarts))
		if rec := s.Record(n.Name); rec != nil && !rec.Expires.IsZero() {
			send(nodeExpiry, float64(rec.Expires.Unix()))
		}
		if v.Seen.IsZero() {
			continue
		}
		send(nodeSeen, float64(v.Seen.UnixMilli())/1000)
		if !v.Connected { // an old measurement does not describe the present
			continue
		}
		send(nodeSkew, v.Skew.Seconds())
		for _, f := range []struct {
			d  *prometheus.Desc
			is *float64
		}{{nodeCPU, v.Vitals.CPU}, {nodeMemory, v.Vitals.Memory}, {nodeDisk, v.Vitals.Disk}, {nodeHeat, v.Vitals.Temperature},
			{nodeSupply, v.Vitals.Supply}, {nodeRTT, v.Vitals.RTT}} {
			if f.is != nil { // the board does not measure this value
				send(f.d, *f.is)
			}
		}
	}
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// Nodes serves the metrics of each node.
func Nodes(loop *node.Devices) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(nodeCollector{loop})
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}
