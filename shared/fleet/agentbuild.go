package fleet

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MaxAgentSize is the size limit of an agent, which has about 16 MB.
const MaxAgentSize = 64 << 20

// An AgentBuild is a version of the agent for one processor architecture. The build writes it
// beside the program; the hub passes it on and cannot change it.
type AgentBuild struct {
	Version   string `json:"version"`
	Arch      string `json:"arch"` // amd64, arm64, armv7 or armv6
	Size      int64  `json:"size"`
	SHA256    string `json:"sha256"`              // hex
	Signature []byte `json:"signature,omitempty"` // Ed25519 over Text, by the key of the release
}

var (
	sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)
	agentArch = regexp.MustCompile(`^[0-9a-z]{1,16}$`)
)

// ValidAgentArch reports whether a text can be the processor architecture of an agent.
func ValidAgentArch(text string) bool { return agentArch.MatchString(text) }

// Text returns the text that the key of the release signs.
func (b AgentBuild) Text() []byte {
	return []byte(strings.Join([]string{"flotilla.dev/agent/v1", b.Version, b.Arch, strconv.FormatInt(b.Size, 10),
		b.SHA256}, "\n"))
}

// Valid reports whether all fields but the signature have valid values.
func (b AgentBuild) Valid() bool {
	return ValidAgentVersion(b.Version) && ValidAgentArch(b.Arch) && sha256Hex.MatchString(b.SHA256) &&
		b.Size > 0 && b.Size <= MaxAgentSize && len(b.Signature) <= ed25519.SignatureSize
}

// Verify checks the signature by any of the keys.
func (b AgentBuild) Verify(keys []ed25519.PublicKey) error {
	switch {
	case len(keys) == 0:
		return errors.New("this agent knows no release key: it is a development build")
	case len(b.Signature) == 0:
		return fmt.Errorf("agent %s is not signed", b.Version)
	case !slices.ContainsFunc(keys, func(k ed25519.PublicKey) bool {
		return len(k) == ed25519.PublicKeySize && ed25519.Verify(k, b.Text(), b.Signature)
	}):
		return fmt.Errorf("agent %s is not signed by this device's release key", b.Version)
	}
	return nil
}

// ParseAgentBuild parses an AgentBuild.
func ParseAgentBuild(text []byte) (b AgentBuild, err error) {
	if err = json.Unmarshal(text, &b); err == nil && !b.Valid() {
		err = errors.New("its version, arch, size, sha256 or signature is invalid")
	}
	return b, err
}
