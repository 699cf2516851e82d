package enrolment

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"flotilla.dev/hub/node"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
	"flotilla.dev/shared/wire"
)

// A Renewer asks devices with a certificate of a former intermediate or root to renew it. With the
// new certificate they get the new chain. It also executes the rotations that commands order.
type Renewer struct {
	Authority *pki.Authority
	Loop      *node.Devices
	Broker    interface {
		Request(node, id string, r wire.Request) error
		Disconnect(node string)
		Online(node string) bool
	}
	Log *slog.Logger

	mu    sync.Mutex
	stale map[string]bool // nodes that connected with an old certificate and have not been asked since
	turn  int             // the authority's generation to which stale applies
}

const (
	renewEvery = 10 * time.Second
	renewMost  = 50 // requests per round, because a renewal costs the hub some milliseconds
)

// Connected records whether a device's certificate is of the current authority.
func (r *Renewer) Connected(h pki.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stale == nil {
		r.stale = map[string]bool{}
	}
	if r.Authority.PresentlySigned(h) {
		delete(r.stale, h.Name)
	} else {
		r.stale[h.Name] = true
	}
}

// waiting returns the nodes whose newest certificate is of a former intermediate, or whose device
// has not fetched the newest.
func (r *Renewer) waiting() []string {
	st := r.Authority.Status()
	r.mu.Lock()
	defer r.mu.Unlock()
	var nodes []string
	for rec := range state.Each[*state.Record](r.Loop.Snapshot(), state.Records, "") {
		if rec.Key != "" && (r.stale[rec.Name] || st.Outdated(rec.Expires.Time)) {
			nodes = append(nodes, rec.Name)
		}
	}
	return nodes
}

// rotated marks all connected devices as stale after a rotation. If clocks are wrong, expiry times
// alone do not show which certificates are old.
func (r *Renewer) rotated(turn int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.turn == turn {
		return
	}
	r.turn = turn
	if r.stale == nil {
		r.stale = map[string]bool{}
	}
	for rec := range state.Each[*state.Record](r.Loop.Snapshot(), state.Records, "") {
		if rec.Key != "" && r.Broker.Online(rec.Name) {
			r.stale[rec.Name] = true
		}
	}
}

// Run requests renewals until ctx ends.
func (r *Renewer) Run(ctx context.Context) error {
	r.turn = r.Authority.Status().Generation // devices that connect from now on show their certificates
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(renewEvery):
		}
		st := r.Authority.Status()
		if st.Former == nil && st.FormerIntermediates == 0 {
			continue // there is no rotation
		}
		r.rotated(st.Generation)
		asked := 0
		for _, node := range r.waiting() {
			if asked >= renewMost || !r.Broker.Online(node) {
				continue
			}
			if err := r.Broker.Request(node, strings.ToLower(ulid.Make().String()),
				wire.Request{Type: wire.RequestRenew}); err != nil {
				r.Log.Debug("ask for a renewal", "node", node, "err", err)
				continue
			}
			asked++
			r.mu.Lock()
			delete(r.stale, node)
			r.mu.Unlock()
		}
	}
}

// Order executes a `flotilla-hub ca` command.
func (r *Renewer) Order(what string) (string, error) {
	waiting := r.waiting()
	switch what {
	case "status":
		return r.describe(waiting), nil
	case "rotate-root":
		if err := r.Authority.RotateRoot(); err != nil {
			return "", err
		}
		return "The root is new; the former one stays trusted until `flotilla-hub ca revoke`.\nConnected devices get " +
			"it within a minute or two, others when they connect. Earlier join tokens are refused: make new " +
			"ones.\nKubeconfigs work until the revocation: give out new ones before it.", nil
	case "rotate-intermediate":
		if err := r.Authority.RotateIntermediate(); err != nil {
			return "", err
		}
		return "The intermediate is new; certificates of the former one are good until `flotilla-hub ca " +
			"revoke`.\nConnected devices get new ones within a minute or two. Join tokens stay good; give out new " +
			"kubeconfigs before the revocation.", nil
	case "revoke", "revoke-force":
		if n := len(waiting); n > 0 && what == "revoke" {
			return "", fmt.Errorf("%d devices have not renewed since the rotation, such as %s: they would have to join again "+
				"by hand; wait for them, or add --force", n, strings.Join(waiting[:min(n, 5)], ", "))
		}
		if err := r.Authority.Revoke(); err != nil {
			return "", err
		}
		for _, node := range waiting {
			r.Broker.Disconnect(node)
		}
		return fmt.Sprintf("Only the present root and intermediate are trusted now. %d devices have to join again.",
			len(waiting)), nil
	}
	return "", fmt.Errorf("unknown order %q", what)
}

func (r *Renewer) describe(waiting []string) string {
	st := r.Authority.Status()
	var b strings.Builder
	fmt.Fprintf(&b, "Root: until %s, pin %s\n", st.Root.NotAfter.Format(time.DateOnly), r.Authority.Pin())
	fmt.Fprintf(&b, "Intermediate: since %s, until %s\n", st.Signed.Format(time.DateTime),
		st.Intermediate.NotAfter.Format(time.DateOnly))
	if st.Protected {
		b.WriteString("Keys: protected by a passphrase\n")
	} else {
		b.WriteString("Keys: protected by file permissions\n")
	}
	if st.Former == nil && st.FormerIntermediates == 0 {
		b.WriteString("No rotation is under way.")
		return b.String()
	}
	if st.Former != nil {
		fmt.Fprintf(&b, "The former root is trusted until `flotilla-hub ca revoke`.\n")
	}
	fmt.Fprintf(&b, "%d former intermediates are trusted until `flotilla-hub ca revoke`.\n%d devices have not renewed "+
		"since", st.FormerIntermediates, len(waiting))
	for i, node := range waiting[:min(len(waiting), 20)] {
		b.WriteString(map[bool]string{true: ": ", false: ", "}[i == 0] + node)
	}
	if len(waiting) > 20 {
		b.WriteString(", …")
	}
	return b.String() + "."
}
