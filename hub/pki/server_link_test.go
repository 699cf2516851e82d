package pki

import "testing"

func TestBridgesOfContainersAreNotNamesOfTheHub(t *testing.T) {
	for link, want := range map[string]bool{
		"eth0": false, "enp3s0": false, "wlan0": false, "br0": false, "bond0": false, "wg0": false, "lo": false,
		"docker0": true, "br-4f1c2a9d0b11": true, "podman1": true, "cni-podman0": true, "veth12ab34c": true,
	} {
		if got := ofContainers(link); got != want {
			t.Errorf("%s: %v, want %v", link, got, want)
		}
	}
}
