package main

import (
	"errors"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the manual's list of unclaimed specs")

func names(all []string) []*spec {
	var out []*spec
	for _, name := range all {
		out = append(out, &spec{name: name})
	}
	return out
}

func TestJudge(t *testing.T) {
	const (
		plain  = "[sig-apps] Deployment should scale [Conformance]"
		serial = "[sig-apps] Daemon set [Serial] should run [Conformance]"
		taint  = "[sig-node] Taints [Serial] evicts [Disruptive] [Conformance]"
		looks  = "[sig-node] Pods should print [NodeConformance] [Conformance]"
		shell  = "[sig-apps] Job should fail [Conformance]"
		both   = "[sig-storage] Volumes [Serial] look in [NodeConformance] [Conformance]"
		dns    = "[sig-network] DNS should resolve [Conformance]"
	)
	for _, c := range []struct {
		name, unclaimed, engines, wrong string
		lanes                           []lane
	}{
		{"the suite's marks decide the lane", "# none\n\n[sig-network] DNS\tthere is none\n", "[sig-apps] Job\n", "",
			[]lane{api, workloads, placement, engine, engine, engineSerial, nowhere}},
		{"a line without a reason is an error", "[sig-network] DNS\n", "", "not a name, a tab and a reason", nil},
		{"an empty reason is an error", "[sig-network] DNS\t \n", "", "not a name, a tab and a reason", nil},
		{"a line without a spec is an error", "[sig-network] Services\tthere are none\n", "", "no spec begins with", nil},
		{"two lines for one spec are an error", "[sig-network] DNS\ta\n[sig-network]\tb\n", "", "two lines match", nil},
		{"an unknown spec in engines.txt is an error", "", "[sig-apps] Nothing\n", "engines.txt: no spec begins with", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := names([]string{plain, serial, taint, looks, shell, both, dns})
			err := judge(all, c.unclaimed, c.engines)
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Fatalf("error %v, want one that contains %q", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range c.lanes {
				if all[i].lane != want {
					t.Errorf("%s runs in %s, want %s", all[i].name, all[i].lane, want)
				}
			}
		})
	}
}

func TestTally(t *testing.T) {
	all := []*spec{
		{name: "[sig-node] a", chosen: true, state: "passed"},
		{name: "[sig-apps] b", chosen: true, state: "failed", why: "expected\n  nothing"},
		{name: "[sig-apps] c", reason: "no"},
		{name: "[sig-node] d"},
		{name: "[sig-node] e", chosen: true, state: "not run"},
	}
	tab := tally(all)
	if got := tab.chosen(); got != 3 {
		t.Errorf("%d specs are chosen, want 3", got)
	}
	want := `| SIG | conformance specs | claimed | passed |
|---|--:|--:|--:|
| apps | 2 | 1 | 0 |
| node | 3 | 3 | 1 of 2 that ran |
| all | 5 | 4 | 1 of 3 that ran |

Claimed, and not passed:

* [sig-apps] b: failed: expected nothing
* [sig-node] e: not run: 
`
	if got := tab.text(); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

// The manual has the list of unclaimed specs.
func TestManual(t *testing.T) {
	b, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := replace(string(b), "unclaimed", reasons(unclaimed))
	if err != nil {
		t.Fatal(err)
	}
	if doc != string(b) {
		t.Error("README.md differs from unclaimed.txt: run go test ./hub/e2e/conformance -update")
		if *update {
			err = os.WriteFile("README.md", []byte(doc), 0o644)
		}
	}
	behind, wrong := tellers("../../..", doc)
	if wrong != nil {
		t.Fatal(wrong)
	}
	for file, text := range behind {
		t.Errorf("%s has another number of passed specs than the table: run go test ./hub/e2e/conformance -update", file)
		if *update {
			err = errors.Join(err, os.WriteFile(file, []byte(text), 0o644))
		}
	}
	for _, engine := range []string{"docker", "podman"} {
		if _, err := replace(doc, engine, ""); err != nil {
			t.Error(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
