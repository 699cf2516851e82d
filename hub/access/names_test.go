package access

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"flotilla.dev/hub/store"
)

func TestATokenNamesItsDevices(t *testing.T) {
	names := store.DeviceNames{BySerial: map[string]string{"10000000d5e6f7a8": "till-1", "00112233445566aa": "till-2"}}
	prefix := store.DeviceNames{Prefix: "oslo-"}
	for _, c := range []struct {
		name                  string
		names                 store.DeviceNames
		serial, machine, node string // node: --node-name
		want                  string
		says                  string // of the error
	}{
		{name: "by serial number", names: names, serial: "10000000D5E6F7A8", want: "till-1"},
		{name: "by machine ID, of a board without serial number", names: names, machine: "00112233445566aa", want: "till-2"},
		{name: "with its own name", names: names, serial: "10000000d5e6f7a8", node: "till-1", want: "till-1"},
		{name: "that wants another name", names: names, serial: "10000000d5e6f7a8", node: "till-9", says: "is for node till-1, not for till-9"},
		{name: "that is not in the list", names: names, serial: "abc", says: `no line for this device, serial number "abc"`},
		{name: "by the prefix", names: prefix, serial: "10000000d5e6f7a8", want: "oslo-d5e6f7a8"},
		{name: "by the prefix, with a short serial number", names: prefix, serial: "F7", want: "oslo-f7"},
		{name: "by the prefix, with a serial number that is not a name", names: prefix, serial: "a_b", says: "choose one with --node-name"},
		{name: "that knows no serial number and no machine ID", names: prefix, says: "no line for this device"},
		{name: "in the list, which comes before the prefix", names: store.DeviceNames{BySerial: names.BySerial, Prefix: "oslo-"},
			serial: "10000000d5e6f7a8", want: "till-1"},
	} {
		t.Run("a device "+c.name, func(t *testing.T) {
			g := guard(t, t.TempDir())
			q := joinRequest(t, token(t, g, NewJoinToken{Names: c.names}).Text(), c.node, newMachine(t))
			q.Serial, q.MachineID, q.Hostname = c.serial, c.machine, "raspberrypi"
			answer, err := g.Join(t.Context(), q, "10.0.0.2")
			if answer.Node != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("the node is %q, want %q; error %v, want %q", answer.Node, c.want, err, c.says)
			}
		})
	}
}

// The holder of a token with names cannot take over a node of the list: serial numbers are not
// secret.
func TestATokenWithNamesTakesOverNoNode(t *testing.T) {
	g := guard(t, t.TempDir())
	k := token(t, g, NewJoinToken{Uses: 3, Names: store.DeviceNames{BySerial: map[string]string{"a1": "till-1"}}})
	for i, want := range []error{nil, ErrConflict} {
		q := joinRequest(t, k.Text(), "", newMachine(t))
		q.Serial = "a1"
		if _, err := g.Join(t.Context(), q, "10.0.0.2"); !errors.Is(err, want) {
			t.Errorf("join %d: %v, want %v", i+1, err, want)
		}
	}
}

func TestParseNames(t *testing.T) {
	names, err := ParseNames("# serial, name\r\n10000000D5E6F7A8, till-1\r\n\n a1,till-2")
	if want := map[string]string{"10000000d5e6f7a8": "till-1", "a1": "till-2"}; err != nil || !maps.Equal(names, want) {
		t.Errorf("the names are %v, %v; want %v", names, err, want)
	}
	for text, says := range map[string]string{
		"":                     "there are no names",
		"till-1":               `line 1: "till-1" is not SERIAL,NAME`,
		",till-1":              "line 1",
		"a1,Till 1":            "line 1",
		"a1,till-1\na1,till-2": "line 2: serial number a1 has the name till-1 already",
		"a1,till-1\na2,till-1": "line 2: name till-1 is on line 1 already",
	} {
		if _, err := ParseNames(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", text, err, says)
		}
	}
	if _, err := ParseNames(strings.Repeat("x\n", 1<<20)); err == nil || len(err.Error()) > 4096 {
		t.Error("the error about a long file must be bounded")
	}
}
