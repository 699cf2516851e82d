package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"flotilla.dev/hub/e2e/postgrestest"
)

// PostgreSQL is killed repeatedly while clients and devices write. Requests soon get a 503 with the
// cause, no acknowledged write is lost, no node becomes NotReady, and no container restarts.
func TestAHubSurvivesItsPostgreSQLServer(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "fsync=on", "full_page_writes=on")
	h := newHub(t, "--database", server.Database(), "--node-monitor-grace-period", "40s")
	h.simulate(4, 2)
	h.kubectlWith(signYAML, "apply", "-f", "-")
	await(t, "both replicas are available", patience, func() error { return h.available("sign", 2) })
	before := h.lives()

	n := &ackLog{counts: map[string]int{}, deleted: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var g sync.WaitGroup
	for w := range 3 {
		g.Go(func() { h.write(ctx, n, w) })
	}
	rounds := 3
	var slowest time.Duration
	refusals := 0
	for i := range rounds {
		time.Sleep(time.Duration(500+300*i) * time.Millisecond)
		server.Kill()
		end := time.Now().Add(time.Duration(7*i) * time.Second) // the last outage is longer than the time limit of a request
		for k := 0; time.Now().Before(end); k++ {
			body, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"name": fmt.Sprintf("down-%d-%d", i, k)}})
			began := time.Now()
			_, err := h.ask(ctx, http.MethodPost, "/api/v1/namespaces/default/configmaps", "application/json", body)
			slowest = max(slowest, time.Since(began))
			var r refusal
			if !errors.As(err, &r) || r.code != http.StatusServiceUnavailable && r.code != http.StatusGatewayTimeout ||
				!strings.Contains(r.text, "database does not respond") && !strings.Contains(r.text, "read the object") {
				t.Fatalf("write without a database: %v, want 503 and the cause", err)
			}
			refusals++
			time.Sleep(100 * time.Millisecond)
		}
		server.Run()
	}
	await(t, "the hub writes again", patience, func() error {
		_, err := h.ask(ctx, http.MethodPatch, "/api/v1/namespaces/default", "application/merge-patch+json",
			[]byte(`{"metadata":{"annotations":{"a":"b"}}}`))
		return err
	})
	cancel()
	g.Wait()
	if refusals == 0 || n.acks < 10 {
		t.Fatalf("%d refusals and %d acknowledged writes prove nothing", refusals, n.acks)
	}
	if alone() && slowest > 22*time.Second {
		t.Errorf("a request waited for %s, want at most 22 s", slowest)
	}
	if h.ended() {
		t.Fatalf("the hub has exited: %s", tail(h.output.String(), 10))
	}
	h.checkNotes(n)
	h.kill()
	h.start() // without --database: the data directory names the database too
	h.checkNotes(n)
	h.allReady(4)
	if events := h.kubectl("get", "events", "-A"); strings.Contains(events, "NodeNotReady") {
		t.Errorf("a node became NotReady during a short outage of the database:\n%s", events)
	}
	await(t, "every device reports its pods", patience, func() error { return h.available("sign", 2) })
	if after := h.lives(); !slices.Equal(before, after) {
		t.Errorf("containers before:\n%v\nafter:\n%v", before, after)
	}
	seen(t, fmt.Sprintf("%d kills of PostgreSQL, none of %d acknowledged writes lost, %d refusals, the slowest answer after %.1f s", rounds, n.acks, refusals, slowest.Seconds()))
}
