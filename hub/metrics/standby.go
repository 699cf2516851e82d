package metrics

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/state"
)

// A Follower is the fleet as a standby has it.
type Follower interface {
	Snapshot() state.Snapshot
	Age() time.Duration // for how long it may not have been up to date
}

// A standbyCollector is what a standby tells Prometheus of itself.
type standbyCollector struct {
	version string
	fleet   Follower
}

var (
	metricLeader = prometheus.NewDesc("flotilla_leader", "1 at the hub that leads, 0 at one that stands by.", nil, nil)
	metricLag    = prometheus.NewDesc("flotilla_standby_lag_seconds",
		"How long ago a hub that stands by was up to date with the database; not there at the one that leads.", nil, nil)
)

func (standbyCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricLeader, metricLag, metricRevision, metricBuild} {
		ch <- d
	}
}

func (c standbyCollector) Collect(ch chan<- prometheus.Metric) { // on a goroutine of the library
	defer panics.Catch("metrics")
	ch <- prometheus.MustNewConstMetric(metricLeader, gauge, 0)
	ch <- prometheus.MustNewConstMetric(metricLag, gauge, c.fleet.Age().Seconds())
	ch <- prometheus.MustNewConstMetric(metricRevision, gauge, float64(c.fleet.Snapshot().Revision))
	ch <- prometheus.MustNewConstMetric(metricBuild, gauge, 1, c.version)
}

// Standby answers what a hub that stands by tells Prometheus of itself.
func Standby(version string, fleet Follower) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(standbyCollector{version, fleet}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(slog.Default().Handler(),
		slog.LevelWarn)})
}
