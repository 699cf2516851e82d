package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/peer"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/store"
)

// authorityEvery is how often a standby checks for a change of the authority.
const authorityEvery = 5 * time.Second

// peerTLS returns the TLS configuration of connections to the leader.
func (m *Member) peerTLS(host string) *tls.Config {
	if c := m.client.Load(); c != nil {
		return c.Config(host)
	}
	return &tls.Config{ServerName: host} // without an authority no certificate is trusted
}

// serve serves HTTPS as a standby with the shared authority, and restarts when the authority
// changes.
func (m *Member) serve(ctx context.Context, s *store.Standby, f *follower) error {
	if m.https == nil {
		return nil
	}
	var last error
	for {
		files, err := Authority(ctx, s)
		if err == nil && files != nil {
			err = m.serveWith(ctx, s, f, files)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && (last == nil || last.Error() != err.Error()) {
			m.log.Warn("a standby cannot serve HTTPS; trying again", "err", err)
		}
		last = err
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

// serveWith serves until the authority changes.
func (m *Member) serveWith(ctx context.Context, s *store.Standby, f *follower, files map[string][]byte) error {
	cfg := m.c.Config
	id, err := s.HubID(ctx)
	if err != nil {
		return err
	}
	if err := pki.Install(cfg.DataDir, id, files); err != nil {
		return err
	}
	authority, err := pki.OpenWith(cfg.DataDir, cfg.CAPassphraseFile)
	if err != nil {
		return err
	}
	if authority.Now, err = access.Clock(ctx, s.People()); err != nil {
		return err
	}
	authority.Keep = func(map[string][]byte) error { return store.ErrStandby }
	server, err := authority.NewServer(m.names, m.log)
	if err != nil {
		return err
	}
	m.client.Store(authority.NewPeerClient(m.name))
	sub, end := context.WithCancel(ctx)
	defer end()
	go m.watchAuthority(sub, s, files, end)
	reads, over := m.reads(s, authority, f), make(chan struct{})
	defer func() { <-over }() // serving reads the database
	defer end()
	go func() {
		defer close(over)
		defer panics.Catch("rights")
		_ = reads.guard.RunRights(sub)
	}()
	return listen.ServeHTTPS(sub, &m.answering, &http.Server{
		Handler: m.handler(server, reads), TLSConfig: authority.HTTPS(server),
		ErrorLog: slog.NewLogLogger(m.log.Handler(), slog.LevelDebug),
	}, m.https.open())
}

// watchAuthority calls end when the authority in the database differs from files.
func (m *Member) watchAuthority(ctx context.Context, s *store.Standby, files map[string][]byte, end func()) {
	defer panics.Catch("standby")
	defer end()
	was, _ := json.Marshal(files)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(authorityEvery):
		}
		if now, err := s.Kept(ctx, keptAuthority); err == nil && !bytes.Equal(now, was) {
			m.log.Info("the certificate authority has changed")
			return
		}
	}
}

// handler answers the requests that a standby can answer, and forwards all others.
func (m *Member) handler(server *pki.Server, reads *reads) http.Handler {
	known := WatchSessions(reads.guard, reads)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code, why := listen.CheckHost(w.Header(), r, server.Names()); why != "" {
			http.Error(w, strings.TrimSpace(why), code)
			return
		}
		switch what, below, _ := strings.Cut(strings.Trim(r.URL.Path, "/"), "/"); what {
		case "healthz", "livez", "readyz":
			m.health(w, what, below)
		default:
			known.ServeHTTP(w, r)
		}
	})
}

// health reports whether this hub runs, and whether it can serve by forwarding. It also reports
// that this hub is not the leader.
func (m *Member) health(w http.ResponseWriter, what, below string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache, private")
	name, _ := m.passer.Leader()
	if name != "" {
		w.Header().Set(peer.StandbyHeader, name)
	}
	switch {
	case below == "leader" && name != "":
		http.Error(w, fmt.Sprintf("this hub is a standby: %s leads", name), http.StatusServiceUnavailable)
	case below == "leader", what == "readyz" && below == "" && name == "":
		http.Error(w, "this hub is a standby: no hub leads", http.StatusServiceUnavailable)
	case below != "" && below != "ping":
		http.Error(w, "404 page not found", http.StatusNotFound)
	default:
		_, _ = fmt.Fprint(w, "ok")
	}
}
