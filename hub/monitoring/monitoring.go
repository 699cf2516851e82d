// Package monitoring holds what a Prometheus and a Grafana need to watch a hub: a scrape
// configuration, alert rules and a dashboard.
//
// It only holds them. What they name is told by package serve, whose tests hold every
// name in them to what a hub really says; their own stories are told by promtool.
package monitoring

import _ "embed"

// Alerts are rules for Prometheus (YAML).
//
//go:embed alerts.yml
var Alerts []byte

// Dashboard is for Grafana (JSON): it asks for its data source when it is imported.
//
//go:embed dashboard.json
var Dashboard []byte

// Scrape is a whole prometheus.yml, but for Target. Its files lie beside it.
//
//go:embed prometheus.yml
var Scrape string

// Target stands in Scrape for the hub's host and port.
const Target = "gateway:8443"

// The names of the files that Scrape names, and its own.
const (
	ScrapeFile = "prometheus.yml"
	AlertsFile = "flotilla-alerts.yml"
	CAFile     = "flotilla-ca.crt"
	CertFile   = "flotilla-client.crt"
	KeyFile    = "flotilla-client.key"
)
