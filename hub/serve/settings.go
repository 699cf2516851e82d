package serve

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"flotilla.dev/hub/admin/format"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/state"
)

// endingDevices is how many devices are shown whose certificates expire first.
const endingDevices = 3

// about returns the facts about the hub for the page's settings.
func (h *Hub) about() (a frame.About, err error) {
	if a.Certificates, err = h.certificates(); err != nil {
		return a, err
	}
	a.Facts = []frame.Fact{
		{Name: "Version", Value: h.o.Version}, {
			Name: "Platform", Value: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version(),
		},
		{Name: "Page and API", Value: h.url()}, {Name: "Answers to", Value: strings.Join(h.server.Names(), ", ")},
		{Name: "Listens for HTTPS", Value: h.cfg.HTTPSListen}, h.devicesAt(),
		{Name: "Data directory", Value: h.cfg.DataDir}, {Name: "CA's fingerprint", Value: h.authority.Pin()},
	}
	a.Kept = []frame.Fact{
		{Name: "Audit", Value: format.Duration(h.cfg.AuditRetention)}, {Name: "Backups", Value: "the last 7, one a day"},
		{Name: "Ended join tokens", Value: "a month"},
		{Name: "Ended pods", Value: fmt.Sprintf("the newest %d", h.cfg.TerminatedPodGCThreshold)},
	}
	a.Settings = h.cfg.All()
	return a, nil
}

// devicesAt returns the setting that shows where devices connect.
func (h *Hub) devicesAt() frame.Fact {
	c, external := h.Broker.(*broker.Client)
	switch {
	case !external:
		return frame.Fact{Name: "Listens for devices", Value: h.cfg.MQTTListen}
	case c.Connected():
		return frame.Fact{Name: "Devices connect to", Value: strings.Join(h.cfg.BrokerAddresses(), ", ")}
	}
	return frame.Fact{Name: "Devices connect to", Value: strings.Join(h.cfg.BrokerAddresses(),
		", ") + ": not connected"}
}

// certificates lists the hub's certificates, and the certificates of devices that expire first.
func (h *Hub) certificates() (all []frame.Certificate, err error) {
	block, _ := pem.Decode(h.authority.RootPEM())
	if block == nil {
		return nil, errors.New("the CA's certificate cannot be read: see pki/ in the data directory")
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	all = append(all, frame.Certificate{
		Of: "Root CA", Renewal: "by hand only: devices trust the hub through it", Until: root.NotAfter,
	})
	own, err := h.server.GetCertificate(nil)
	if err != nil {
		return nil, err
	}
	if len(own.Certificate) > 1 {
		if by, err := x509.ParseCertificate(own.Certificate[1]); err == nil {
			all = append(all, frame.Certificate{
				Of: "Issuing CA", Renewal: "automatic, before certificates that it signs could outlive it", Until: by.NotAfter,
			})
		}
	}
	all = append(all, frame.Certificate{
		Of: "This hub, HTTPS and MQTT", Renewal: "automatic, also when its addresses change", Until: own.Leaf.NotAfter,
	})
	var devices []*state.Record
	for rec := range state.Each[*state.Record](h.Loop.Snapshot(), state.Records, "") {
		if rec.Key != "" {
			devices = append(devices, rec)
		}
	}
	slices.SortFunc(devices, func(a, b *state.Record) int { return a.Expires.Compare(b.Expires.Time) })
	for _, d := range devices[:min(len(devices), endingDevices)] {
		all = append(all, frame.Certificate{
			Of: "Node " + d.Name, Renewal: "automatic, by the device, at half of its life", Until: d.Expires.Time,
		})
	}
	return all, nil
}
