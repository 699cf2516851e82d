package wire

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"flotilla.dev/shared/bound"
	"flotilla.dev/shared/fleet"
)

// Limits of boot configurations.
const (
	MaxFirmwareMessage = 256     // bytes
	MaxFirmwareDiff    = 4 << 10 // bytes
	MaxFirmwareBad     = 8       // number of digests
)

// A Firmware is the boot configuration that a device should have.
type Firmware struct {
	Generation int64  `json:"generation"` // a device refuses an older generation than its last
	Digest     string `json:"digest"`     // FirmwareDigest of Document
	Document   []byte `json:"document"`   // canonical JSON of a fleet.BootConfig; at most fleet.MaxBootConfig bytes
	Signature  []byte `json:"signature"`  // Ed25519 over FirmwareText
	// Try is the hub's permission for the trial: the window is open, the node is drained, and its
	// turn has begun.
	Try   bool  `json:"try,omitempty"`
	Retry int64 `json:"retry,omitempty"` // an administrator increments it so that a failed configuration is tried again
	// Undo returns to the configuration before this one.
	Undo bool `json:"undo,omitempty"`
}

// A FirmwareStatus is the state of a device's boot configuration.
type FirmwareStatus struct {
	Digest    string    `json:"digest,omitempty"`    // digest of the kept configuration; empty: the board's original files
	Candidate string    `json:"candidate,omitempty"` // digest of the staged or tried configuration
	State     string    `json:"state"`               // one of the Firmware… constants
	Backend   string    `json:"backend,omitempty"`
	Trial     string    `json:"trial,omitempty"`
	Message   string    `json:"message,omitempty"` // at most MaxFirmwareMessage bytes
	Diff      string    `json:"diff,omitempty"`    // the lines that would change, at most MaxFirmwareDiff bytes
	Bad       []string  `json:"bad,omitempty"`     // digests of configurations that failed on this device, at most MaxFirmwareBad
	Since     time.Time `json:"since,omitzero"`    // start of State by the device's clock
}

// States of a FirmwareStatus; they are also reasons of the condition FirmwareReady.
const (
	FirmwareUpToDate       = "UpToDate"
	FirmwareStaged         = "Staged"
	FirmwareAwaitingWindow = "AwaitingWindow"
	FirmwareDraining       = "Draining"
	FirmwareTrial          = "Trial"
	FirmwareVerifying      = "Verifying"
	FirmwareRolledBack     = "RolledBack"
	FirmwareFailed         = "Failed"
	FirmwareUnsupported    = "Unsupported"
)

var firmwareDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// FirmwareDigest returns the digest of a document.
func FirmwareDigest(document []byte) string {
	sum := sha256.Sum256(document)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// FirmwareText returns the text that the hub signs. It binds a document to one node, to a name of
// its board in /proc/device-tree/compatible ("" without one), and to a generation. So the document
// cannot be sent to another device or replayed.
func FirmwareText(node, compatible string, generation int64, digest string) []byte {
	return []byte(strings.Join([]string{"flotilla.dev/firmware/v1", node, compatible, strconv.FormatInt(generation, 10),
		digest}, "\n"))
}

// SignFirmware creates a Firmware with a signed document.
func SignFirmware(key ed25519.PrivateKey, node, compatible string, generation int64, document []byte) *Firmware {
	f := &Firmware{Generation: generation, Digest: FirmwareDigest(document), Document: document}
	f.Signature = ed25519.Sign(key, FirmwareText(node, compatible, generation, f.Digest))
	return f
}

// Verify checks that the hub with the given key has signed the document for this node and a name of
// its board, and parses the document.
func (f *Firmware) Verify(key ed25519.PublicKey, node string, compatible []string) (*fleet.BootConfig, error) {
	switch {
	case len(key) != ed25519.PublicKeySize:
		return nil, errors.New("this device has no hub key for boot configurations yet")
	case f.Generation < 1:
		return nil, fmt.Errorf("generation is %d, but generations start at 1", f.Generation)
	case !firmwareDigest.MatchString(f.Digest) || FirmwareDigest(f.Document) != f.Digest:
		return nil, errors.New("the digest is not that of the document")
	}
	if len(compatible) == 0 {
		compatible = []string{""}
	}
	for _, board := range compatible {
		if strings.Contains(board, "\n") {
			continue
		}
		if ed25519.Verify(key, FirmwareText(node, board, f.Generation, f.Digest), f.Signature) {
			return fleet.ParseBootConfig(f.Document)
		}
	}
	return nil, fmt.Errorf("it is not signed by this device's hub for node %s and a board that is %s", node,
		strings.Join(compatible, " or "))
}

// sanitize drops parts that the device cannot use. It removes a document that is too long: the
// device refuses the configuration later, and the rest of the desired state stays valid.
func (f *Firmware) sanitize() {
	if f == nil {
		return
	}
	if len(f.Document) > fleet.MaxBootConfig {
		f.Document = nil
	}
	if len(f.Signature) > ed25519.SignatureSize {
		f.Signature = nil
	}
	if !firmwareDigest.MatchString(f.Digest) {
		f.Digest = ""
	}
}

var firmwareStates = map[string]bool{
	FirmwareUpToDate: true, FirmwareStaged: true, FirmwareAwaitingWindow: true, FirmwareDraining: true,
	FirmwareTrial:     true,
	FirmwareVerifying: true, FirmwareRolledBack: true, FirmwareFailed: true, FirmwareUnsupported: true,
}

// sanitizeFirmware keeps the parts that the hub shows and uses. An unknown state removes the whole
// status.
func (s *Status) sanitizeFirmware() {
	f := s.Firmware
	if f == nil {
		return
	}
	if !firmwareStates[f.State] {
		s.Firmware, s.TooMuch = nil,
			fmt.Sprintf("it says that its boot configuration is %.40q, which is not a state", f.State)
		return
	}
	bad := f.Bad[:0]
	for _, d := range f.Bad[:min(len(f.Bad), MaxFirmwareBad)] {
		if firmwareDigest.MatchString(d) {
			bad = append(bad, d)
		}
	}
	f.Bad = bad
	for _, d := range []*string{&f.Digest, &f.Candidate} {
		if !firmwareDigest.MatchString(*d) {
			*d = ""
		}
	}
	f.Backend, f.Trial = bound.Text(f.Backend, 32), bound.Text(f.Trial, 32)
	f.Message, f.Diff = bound.Text(f.Message, MaxFirmwareMessage), bound.Text(f.Diff, MaxFirmwareDiff)
}
