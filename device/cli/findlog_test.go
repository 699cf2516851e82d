package cli

import (
	"context"
	"strings"
	"testing"
	"time"

	"flotilla.dev/device/engine"
	"flotilla.dev/device/plan"
)

// A listed is a fake engine that only lists containers.
type listed struct {
	engine.Engine
	list []engine.Container
}

func (l listed) Containers(context.Context, string) ([]engine.Container, error) { return l.list, nil }

func TestFindContainerSelectsOnePod(t *testing.T) {
	var e listed
	for i, id := range []string{"shop web app 1", "shop web app 2", "test web app 1", "test web db 1", "shop api app 1",
		"test api db 1"} {
		f := strings.Fields(id)
		e.list = append(e.list, engine.Container{ID: id, Created: time.Unix(int64(i), 0),
			Labels: map[string]string{plan.LabelNamespace: f[0], plan.LabelPodName: f[1], plan.LabelContainer: f[2]}})
	}
	for _, tt := range []struct {
		name    string
		want    wantedLog
		id      string
		wantErr string
	}{
		{"the newest instance", wantedLog{pod: "web", namespace: "shop"}, "shop web app 2", ""},
		{"the previous instance", wantedLog{pod: "web", namespace: "shop", previous: true}, "shop web app 1", ""},
		{"a pod with several containers needs --container", wantedLog{pod: "web", namespace: "test"}, "", "has the containers app, db"},
		{"a pod name in several namespaces needs --namespace", wantedLog{pod: "web", container: "app"}, "", "namespaces shop, test: choose one with --namespace"},
		{"a container of another namespace is not the previous instance", wantedLog{pod: "web", container: "app", previous: true}, "", "--namespace"},
		{"pods in two namespaces with different containers need --namespace", wantedLog{pod: "api"}, "", "--namespace"},
		{"only one of two pods has the container", wantedLog{pod: "api", container: "db"}, "test api db 1", ""},
		{"an unknown pod", wantedLog{pod: "wbe"}, "", "pod wbe has no container"},
	} {
		id, err := findContainer(t.Context(), e, tt.want)
		if id != tt.id || (err == nil) != (tt.wantErr == "") || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: the container is %q, error %v; want %q, error %q", tt.name, id, err, tt.id, tt.wantErr)
		}
	}
}
