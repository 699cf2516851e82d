package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A second quickstart is refused while the first, or a program of the first, runs. Otherwise the
// second would use the first one's hub.
func TestASecondQuickstartIsRefused(t *testing.T) {
	p := layout{bin: t.TempDir(), data: filepath.Join(t.TempDir(), "data")}
	mark := filepath.Join(p.bin, "started")
	if err := os.WriteFile(p.hub(), []byte("#!/bin/sh\ntouch "+mark+"\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	second := func() (started bool, err error) {
		err = run(t.Context(), p)
		_, missing := os.Stat(mark)
		return missing == nil, err
	}
	own, err := lockDir(p.data)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := begin(ctx, own, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	for _, which := range []string{"the first", "a program of the first one"} {
		if started, err := second(); started || err == nil ||
			!strings.Contains(err.Error(), "another quickstart uses "+p.data) {
			t.Errorf("second quickstart beside %s: %v; it has started a hub: %t; want a refusal", which, err, started)
		}
		own.Close()
	}
	cancel()
	c.wait()
	if started, err := second(); !started || err == nil || !strings.Contains(err.Error(), "the hub did not start") {
		t.Errorf("second quickstart after the first: %v; it has started a hub: %t; want it started", err, started)
	}
}
