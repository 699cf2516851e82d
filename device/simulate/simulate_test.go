package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestCheckReportsAllInvalidOptions(t *testing.T) {
	err := Options{Hub: "http://example.com", Count: 0, Sites: 9, Prefix: "Sim_"}.Check()
	if err == nil {
		t.Fatal("Check accepts invalid options")
	}
	for _, flag := range []string{"--hub", "--count", "--sites", "--prefix"} {
		if !strings.Contains(err.Error(), flag) {
			t.Errorf("the error %q does not name %s", err, flag)
		}
	}
	if err := (Options{Hub: "mqtt://127.0.0.1:1883", Count: 8, Sites: 3, Prefix: "sim"}).Check(); err != nil {
		t.Error(err)
	}
}

func TestDevicesAreSpreadOverSitesAndArchitectures(t *testing.T) {
	sites, archs := map[string]int{}, map[string]int{}
	for n := 1; n <= 80; n++ {
		sites[SiteName(n, 3)]++
		archs[boardOf(n, NodeName("sim", n)).arch]++
	}
	if len(sites) != 3 || sites["site-01"] != 27 || sites["site-03"] != 26 {
		t.Errorf("the devices of each site are %v, want 27, 27 and 26", sites)
	}
	for _, a := range []string{"arm64", "arm", "amd64"} {
		if archs[a] == 0 {
			t.Errorf("no device of architecture %s among %v", a, archs)
		}
	}
}

// Every simulated device connects to the hub, and all devices stop with ctx.
func TestEveryDeviceConnectsAndStops(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var mu sync.Mutex
	dialled := map[string]bool{}
	all := make(chan struct{})
	o := Options{
		Hub:    "mqtt://127.0.0.1:1883",
		Count:  20,
		Sites:  2,
		Prefix: "sim",
		Dial: func(_ context.Context, node string) (net.Conn, error) {
			mu.Lock()
			defer mu.Unlock()
			if dialled[node] = true; len(dialled) == 20 {
				select {
				case <-all:
				default:
					close(all)
				}
			}
			return nil, errors.New("no hub here")
		},
	}
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	select {
	case <-all:
	case <-ctx.Done():
		t.Fatalf("only %d devices have dialled", len(dialled))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
