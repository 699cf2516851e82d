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

// A Follower is a standby's copy of the fleet.
type Follower interface {
	Snapshot() state.Snapshot
	Age() time.Duration // upper bound of the copy's age
}

// A standbyCollector sends the metrics of a standby.
type standbyCollector struct {
	version string
	fleet   Follower
}

var (
	metricLeader = prometheus.NewDesc("flotilla_leader", "1 at the leading hub, 0 at a standby.", nil, nil)
	metricLag    = prometheus.NewDesc("flotilla_standby_lag_seconds",
		"How long ago a standby was last up to date with the database; absent at the leading hub.", nil, nil)
)

func (standbyCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{metricLeader, metricLag, metricRevision, metricBuild} {
		ch <- d
	}
}

func (c standbyCollector) Collect(ch chan<- prometheus.Metric) { // runs on a goroutine of Prometheus' library
	defer panics.Catch("metrics")
	ch <- prometheus.MustNewConstMetric(metricLeader, gauge, 0)
	ch <- prometheus.MustNewConstMetric(metricLag, gauge, c.fleet.Age().Seconds())
	ch <- prometheus.MustNewConstMetric(metricRevision, gauge, float64(c.fleet.Snapshot().Revision))
	ch <- prometheus.MustNewConstMetric(metricBuild, gauge, 1, c.version)
}

// Standby serves the metrics of a standby.
func Standby(version string, fleet Follower) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(standbyCollector{version, fleet}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(slog.Default().Handler(),
		slog.LevelWarn)})
}
