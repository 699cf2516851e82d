package cli

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/link"
	"flotilla.dev/shared/wire"
)

// localSocket is the socket from which root on the device reads the agent's status.
const localSocket = "agent.sock"

// A localStatus is the agent's status for the status command.
type localStatus struct {
	Node       string      `json:"node"`
	Hub        string      `json:"hub,omitempty"`
	Site       string      `json:"site,omitempty"`
	Online     bool        `json:"online"`
	Offline    string      `json:"offline,omitempty"` // why the hub is not reachable
	Generation int64       `json:"generation"`
	Status     wire.Status `json:"status"`
	Pods       wire.Pods   `json:"pods"`

	Dismissed *dismissed `json:"dismissed,omitempty"` // set if the enrolment has ended
	Join      string     `json:"join,omitempty"`      // the command that joins the device again
}

// serveStatus writes the agent's status to each client of localSocket. A failure affects only the
// status command.
func serveStatus(ctx context.Context, p prepared, a *agent.Agent, l *link.Link, log *slog.Logger) error {
	d := localDoor{p.stateDir, localSocket, "flotilla-device status", log}
	return d.serve(ctx, func(conn net.Conn) {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		_ = json.NewEncoder(conn).Encode(statusNow(p, a, l)) // an error means that the reader has gone
		_ = conn.Close()
	})
}

// A localDoor is a socket in the state directory that only root can use.
type localDoor struct {
	stateDir, name string
	what           string // the command that needs the socket
	log            *slog.Logger
}

// serve answers one connection after another until ctx ends. If the socket cannot be created, only
// the command that needs it fails.
func (d localDoor) serve(ctx context.Context, answer func(net.Conn)) error {
	path := filepath.Join(d.stateDir, d.name)
	_ = os.Remove(path) // a killed agent has left it; this process holds the lock of the directory
	ln, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		d.log.Warn(d.what+" will not work", "err", err)
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	if err := os.Chmod(path, 0o600); err != nil {
		d.log.Warn(d.what+" will not work", "err", err)
		return ln.Close()
	}
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			d.log.Warn(d.what+" cannot be answered", "err", err)
			time.Sleep(time.Second)
			continue
		}
		answer(conn)
	}
}

func statusNow(p prepared, a *agent.Agent, l *link.Link) localStatus {
	s := localStatus{Node: p.node, Hub: p.server, Generation: a.StoredGeneration(), Status: a.Status(), Pods: a.Pods(),
		Offline: "no hub is known"}
	if p.identity != nil {
		s.Site = p.identity.Site
		if s.Dismissed = readDismissed(p.stateDir, *p.identity); s.Dismissed != nil {
			s.Join = rejoinCommand(*p.identity)
		}
	} else {
		s.Site = p.reg.Labels[labelZone]
	}
	if l != nil {
		online, err := l.Online()
		s.Online, s.Offline = online, ""
		if err != nil {
			s.Offline = err.Error()
		}
	}
	return s
}

// readStatus reads the running agent's status; it fails if no agent runs.
func readStatus(ctx context.Context, stateDir string) (s localStatus, err error) {
	conn, err := (&net.Dialer{Timeout: 3 * time.Second}).DialContext(ctx, "unix", filepath.Join(stateDir, localSocket))
	if err != nil {
		return s, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	return s, json.NewDecoder(conn).Decode(&s)
}
