package hardware

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func texts(list []corev1.NodeAddress) (out []string) {
	for _, a := range list {
		out = append(out, string(a.Type)+" "+a.Address)
	}
	return out
}

// A node's ids match the kubelet's: machineID is systemd's, systemUUID the hardware's.
func TestIDsOfTheNode(t *testing.T) {
	const uuid, dbus, etc, serial = "sys/class/dmi/id/product_uuid", "var/lib/dbus/machine-id", "etc/machine-id",
		"proc/device-tree/serial-number"
	for _, c := range []struct {
		rule            string
		files           map[string]string
		machine, system string
	}{
		{"a PC", map[string]string{uuid: "03AA02FC-0414-053B-A306-5B0700080009\n", etc: "4444\n"}, "4444", "03AA02FC-0414-053B-A306-5B0700080009"},
		{"a board with a serial number", map[string]string{serial: "10000000a1b2c3d4\x00", etc: "4444\n"}, "4444", "10000000a1b2c3d4"},
		{"a PC whose id is not readable", map[string]string{etc: "4444\n"}, "4444", "4444"},
		{"a board without a serial number", map[string]string{serial: "0000000000000000\x00", etc: "4444\n"}, "4444", "4444"},
		{"systemd's id in D-Bus's file", map[string]string{dbus: "5555\n"}, "5555", "5555"},
		{"an image that was never booted", map[string]string{etc: "uninitialized\n", serial: "77"}, "", "77"},
		{"nothing", nil, "", ""},
	} {
		r := Report{}
		r.Host, _ = host(tree(rootOf(t, c.files)))
		i := NodeStatus(r, Limits{}, Software{}).NodeInfo
		if i.MachineID != c.machine || i.SystemUUID != c.system {
			t.Errorf("%s: machineID %q, systemUUID %q; want %q, %q", c.rule, i.MachineID, i.SystemUUID, c.machine, c.system)
		}
	}
}

// External addresses come from the flag and follow the internal ones, in a Report and in Stats.
func TestExternalAddressesComeFromTheFlag(t *testing.T) {
	o := Options{
		Root:        rootOf(t, map[string]string{"etc/hostname": "pi"}),
		ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("2001:db8::7")},
	}
	r, err := Probe(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range [][]string{texts(r.Addresses), texts(Measure(t.Context(), o).Addresses)} {
		if len(list) != 3 || list[0] != "ExternalIP 203.0.113.7" || list[1] != "ExternalIP 2001:db8::7" ||
			list[2] != "Hostname pi" {
			t.Errorf("the addresses are %q, want both of the flag and the host name", list)
		}
	}
	if r, err := Probe(t.Context(), Options{}); err != nil {
		t.Error(err)
	} else {
		for _, a := range r.Addresses {
			if a.Type == "ExternalIP" {
				t.Errorf("without the flag there is an external address: %v", a)
			}
		}
	}
}

func TestAddressesOfAFlag(t *testing.T) {
	for _, c := range []struct {
		in   []string
		want string // the addresses, or a part of the error
	}{
		{nil, "[]"}, {[]string{"203.0.113.7"}, "[203.0.113.7]"}, {[]string{"203.0.113.7", " 2001:db8::7"}, "[203.0.113.7 2001:db8::7]"},
		{[]string{"::ffff:203.0.113.7"}, "[203.0.113.7]"}, {[]string{"203.0.113.7:22"}, "cannot be an address"}, {[]string{"pi.example.com"}, "cannot be an address"},
		{[]string{"fe80::1%eth0"}, "cannot be an address"}, {[]string{"127.0.0.1"}, "cannot be an address"}, {[]string{"0.0.0.0"}, "cannot be an address"},
		{[]string{"224.0.0.1"}, "cannot be an address"}, {[]string{"203.0.113.7", "203.0.113.8"}, "two addresses of one family"},
	} {
		got, err := ParseAddresses(c.in)
		if text := fmt.Sprint(got); err == nil && text != c.want || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("flag %q: %s, %v; want %s", c.in, text, err, c.want)
		}
	}
}
