package wire

import (
	"crypto/ed25519"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"flotilla.dev/shared/fleet"
)

var (
	bootKey      = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	bootDocument = []byte(`{"profile":"raspberrypi-4","revision":3,"backend":"rpi-config-txt","cmdline":{"add":["cgroup_enable=memory"]}}`)
)

func signedBoot() *Firmware {
	f := SignFirmware(bootKey, "pi-1", "raspberrypi,4-model-b", 7, bootDocument)
	f.Try, f.Retry = true, 1
	return f
}

func TestVerifyChecksHubNodeAndBoard(t *testing.T) {
	pi4 := []string{"raspberrypi,4-model-b", "brcm,bcm2711"}
	public := bootKey.Public().(ed25519.PublicKey)
	foreignKey := ed25519.NewKeyFromSeed([]byte(strings.Repeat("x", ed25519.SeedSize))).Public().(ed25519.PublicKey)
	for _, c := range []struct {
		name   string
		change func(*Firmware)
		key    ed25519.PublicKey
		node   string
		boards []string
		want   string
	}{
		{"a valid signature", nil, public, "pi-1", pi4, ""},
		{"a signature for the board's chip", func(f *Firmware) { *f = *SignFirmware(bootKey, "pi-1", "brcm,bcm2711", 7, bootDocument) }, public, "pi-1", pi4, ""},
		{"a signature for a board without names", func(f *Firmware) { *f = *SignFirmware(bootKey, "pi-1", "", 7, bootDocument) }, public, "pi-1", nil, ""},
		{"another node", nil, public, "pi-2", pi4, "not signed"},
		{"another board", nil, public, "pi-1", []string{"raspberrypi,5-model-b"}, "not signed"},
		{"another hub", nil, foreignKey, "pi-1", pi4, "not signed"},
		{"no hub", nil, nil, "pi-1", pi4, "no hub key"},
		{"another generation", func(f *Firmware) { f.Generation++ }, public, "pi-1", pi4, "not signed"},
		{"no generation", func(f *Firmware) { f.Generation = 0 }, public, "pi-1", pi4, "generation is 0"},
		{"another document", func(f *Firmware) { f.Document = []byte(`{}`) }, public, "pi-1", pi4, "the digest is not"},
		{"another document and digest", func(f *Firmware) { f.Document = []byte(`{}`); f.Digest = FirmwareDigest(f.Document) }, public, "pi-1", pi4, "not signed"},
		{"no signature", func(f *Firmware) { f.Signature = nil }, public, "pi-1", pi4, "not signed"},
		{"a signed but invalid document", func(f *Firmware) { *f = *SignFirmware(bootKey, "pi-1", pi4[0], 7, []byte(`{}`)) }, public, "pi-1", pi4, "canonical"},
		{"a line break in the board's name", func(f *Firmware) { *f = *SignFirmware(bootKey, "pi-1", "a\nb", 7, bootDocument) }, public, "pi-1", []string{"a\nb"}, "not signed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := signedBoot()
			if c.change != nil {
				c.change(f)
			}
			b, err := f.Verify(c.key, c.node, c.boards)
			if c.want == "" && (err != nil || b.Profile != "raspberrypi-4") ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, %v; want %q", b, err, c.want)
			}
		})
	}
}

func TestATooLongBootConfigurationIsDropped(t *testing.T) {
	f := signedBoot()
	f.Document = make([]byte, fleet.MaxBootConfig+1)
	b, err := json.Marshal(Desired{Hub: "h", Generation: 1, Firmware: f})
	if err != nil {
		t.Fatal(err)
	}
	d, err := ParseDesired(b)
	if err != nil || d.Firmware == nil || d.Firmware.Document != nil {
		t.Errorf("parsed as %+v, %v", d.Firmware, err)
	}
}

func TestAFirmwareStatusIsLimited(t *testing.T) {
	digest := FirmwareDigest(nil)
	s := read(t, ParseStatus, Status{Boot: boot, MachineID: "3f2a9c0d1e4b5a67", Firmware: &FirmwareStatus{
		State: FirmwareFailed, Digest: "x", Candidate: digest, Message: strings.Repeat(hiding, 100),
		Diff: strings.Repeat("d", 5000),
		Bad:  append([]string{"x"}, slices.Repeat([]string{digest}, 20)...),
	}})
	f := s.Firmware
	if f == nil || f.Digest != "" || f.Candidate != digest || len(f.Message) > MaxFirmwareMessage ||
		len(f.Diff) > MaxFirmwareDiff || len(f.Bad) != MaxFirmwareBad-1 || hides(t, f) {
		t.Errorf("the sanitized status is %+v", f)
	}
	if s := read(t, ParseStatus, Status{Boot: boot, MachineID: "3f2a9c0d1e4b5a67",
		Firmware: &FirmwareStatus{State: "Fine"}}); s.Firmware != nil || s.TooMuch == "" {
		t.Errorf("an unknown state is not dropped: %+v, %q", s.Firmware, s.TooMuch)
	}
}
