// Package monitoring has the files for Prometheus and Grafana: a scrape configuration, alert rules
// and a dashboard.
//
// It only holds the files. Package cli writes them. A test of package serve checks that the hub
// exports every metric in them.
package monitoring

import _ "embed"

// Alerts are alert rules for Prometheus (YAML).
//
//go:embed alerts.yml
var Alerts []byte

// Dashboard is a dashboard for Grafana (JSON), which asks for the data source at the import.
//
//go:embed dashboard.json
var Dashboard []byte

// Scrape is a complete prometheus.yml with Target in place of the hub's address.
//
//go:embed prometheus.yml
var Scrape string

// Target is the placeholder in Scrape for the hub's host and port.
const Target = "gateway:8443"

// File names of the scrape configuration and of the files that it refers to.
const (
	ScrapeFile = "prometheus.yml"
	AlertsFile = "flotilla-alerts.yml"
	CAFile     = "flotilla-ca.crt"
	CertFile   = "flotilla-client.crt"
	KeyFile    = "flotilla-client.key"
)
