package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"flotilla.dev/device/agent"
	"flotilla.dev/device/join"
	"flotilla.dev/device/link"
	"flotilla.dev/device/memory"
	"flotilla.dev/device/request"
	"flotilla.dev/shared/wire"
)

// dismissedFile stores in the state directory that the enrolment has ended.
const dismissedFile = "dismissed.json"

// A dismissed is the end of an enrolment as the hub reported it.
type dismissed struct {
	wire.Dismissed
	Key  string `json:"key"`            // sha256 of the enrolled key
	Done bool   `json:"done,omitempty"` // the workloads are removed
}

func (d dismissed) String() string {
	who := "an unknown user"
	if d.By != "" {
		who = d.By
	}
	return fmt.Sprintf("removed from the hub by %s at %s (%s)", who, d.Time.UTC().Format(time.RFC3339), d.Reason)
}

// rejoinCommand returns the command that joins the device again.
func rejoinCommand(id join.Identity) string {
	return fmt.Sprintf("to join again, create a token on the hub with `flotilla-hub token create --site %s` and run "+
		"here: flotilla-device join %s --token …", id.Site, id.HubURL)
}

func keyOf(id join.Identity) string {
	sum := sha256.Sum256([]byte(id.Key))
	return hex.EncodeToString(sum[:])
}

// readDismissed returns how the enrolment of an identity ended, or nil. An end that belongs to
// another key is ignored: the device has joined again since.
func readDismissed(stateDir string, id join.Identity) *dismissed {
	body, err := os.ReadFile(filepath.Join(stateDir, dismissedFile))
	var d dismissed
	if err != nil || json.Unmarshal(body, &d) != nil || d.Key != keyOf(id) {
		return nil
	}
	return &d
}

func (d dismissed) keep(stateDir string) error {
	body, err := json.Marshal(d)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(stateDir, dismissedFile), body, 0o600, renameio.IgnoreUmask())
	}
	return err
}

// leave stores that the enrolment has ended, so that a restarted agent continues, and starts to
// stop the workloads. If the file cannot be written, the hub repeats the notice after a restart.
func (p prepared) leave(d dismissed, a *agent.Agent, l *link.Link, log *slog.Logger) {
	d.Key = keyOf(*p.identity)
	log.Error("this device was "+d.String()+": its workloads are stopped and removed", "node", p.node, "hub",
		p.identity.HubURL)
	if err := d.keep(p.stateDir); err != nil {
		log.Error("cannot store that this device was dismissed", "err", err)
	}
	if err := a.Leave(); err != nil {
		log.Error("cannot stop the workloads in order; stopping them at once", "err", err)
	}
	l.Leave()
}

// finishLeaving removes the remaining workload data: containers of unknown pods, networks and
// files. The next start repeats it after a failure.
func (p prepared) finishLeaving(ctx context.Context, choice string, log *slog.Logger) error {
	d := readDismissed(p.stateDir, *p.identity)
	if d == nil {
		d = &dismissed{Key: keyOf(*p.identity), Dismissed: wire.Dismissed{Time: time.Now(), Reason: "the hub said so"}}
	}
	old, err := findWorkloads(ctx, choice, p.stateDir)
	if err == nil {
		defer old.close()
		err = old.remove(ctx)
	}
	err = errors.Join(err, forget(p.stateDir, join.IdentityFile, join.IdentityCopy, dismissedFile))
	if err != nil {
		log.Error("some workload data is left on this device; the next start of the agent, or "+
			"flotilla-device join, removes it", "err", err)
		return nil
	}
	d.Done = true
	if err := d.keep(p.stateDir); err != nil {
		log.Error("cannot store that this device has left its fleet", "err", err)
	}
	return nil
}

// inUse reports whether another process, such as join, has locked the state directory.
func inUse(stateDir string, log *slog.Logger) bool {
	m, err := memory.Open(stateDir, log)
	return err != nil || m.Close() != nil
}

// waitForJoin waits until the device has joined again, and returns false if ctx ended first. It
// leaves the state directory unlocked so that join can use it.
func waitForJoin(ctx context.Context, stateDir string, journal *request.Journal, log *slog.Logger) (bool, error) {
	old, err := join.Load(stateDir)
	if err != nil {
		return false, err
	}
	ended := readDismissed(stateDir, old)
	if ended == nil {
		ended = &dismissed{}
	}
	log.Error("this device was "+ended.String()+"; waiting for flotilla-device join", "do", rejoinCommand(old))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	notify("READY=1")
	s := localStatus{Node: old.Node, Site: old.Site, Hub: old.HubURL, Offline: ended.String(), Dismissed: ended,
		Join: rejoinCommand(old)}
	door := localDoor{stateDir, localSocket, "flotilla-device status", log}
	done := make(chan error, 2)
	go func() {
		done <- door.serve(ctx, func(conn net.Conn) {
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_ = json.NewEncoder(conn).Encode(s) // an error means that the reader has gone
			_ = conn.Close()
		})
	}()
	go func() { done <- serveLog(ctx, stateDir, journal, log) }()
	joined := false
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for !joined && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			notify("WATCHDOG=1")
			id, err := join.Load(stateDir)
			joined = err == nil && keyOf(id) != keyOf(old) && !inUse(stateDir, log)
		}
	}
	stop()
	if err := errors.Join(<-done, <-done); err != nil {
		return false, err
	}
	if joined {
		log.Info("this device has been joined again")
	}
	return joined, nil
}
