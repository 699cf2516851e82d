package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestADeviceIsSentToThoseThatAskedBefore(t *testing.T) {
	var p Peers
	now := time.Unix(0, 0)
	gone := ""
	ask := func(site string, node int) []string {
		return p.Ask(site, Device{fmt.Sprint(node), fmt.Sprint("address-", node)}, "sha256:aa", now,
			func(d Device) bool { return d.Node != gone })
	}
	if got := ask("oslo", 0); len(got) != 0 {
		t.Errorf("the first is sent to %v", got)
	}
	for n := 1; n < 40; n++ {
		got := ask("oslo", n)
		if len(got) != min(n, peersAsked) {
			t.Fatalf("%d is sent to %v", n, got)
		}
		for _, a := range got {
			var of int
			if _, err := fmt.Sscanf(a, "address-%d", &of); err != nil || of >= n {
				t.Errorf("%d is sent to %s, which asked later", n, a)
			}
		}
	}
	if got := ask("oslo", 0); len(got) != 0 {
		t.Errorf("the first, asking again, is sent to %v", got)
	}
	if got := ask("bergen", 50); len(got) != 0 {
		t.Errorf("a device of another site is sent to %v", got)
	}
	gone = "0"
	if got := ask("oslo", 1); len(got) != 0 {
		t.Errorf("the second is sent to %v, although the first is gone", got)
	}
	if got := ask("oslo", 2); !slices.Equal(got, []string{"address-1"}) {
		t.Errorf("the third is sent to %v", got)
	}
	now = now.Add(peerKept + time.Second)
	if got := ask("oslo", 3); len(got) != 0 {
		t.Errorf("a day later a device is sent to %v", got)
	}
}
