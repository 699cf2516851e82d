package boothelper

import (
	"bytes"
	"crypto/ed25519"

	"flotilla.dev/shared/fleet"
)

var (
	HubKey  = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	HubsKey = HubKey.Public().(ed25519.PublicKey)
)

// The kinds of boards in these tests: firmware with trials, firmware without, U-Boot, GRUB.
const (
	ByTryboot = "tryboot"
	ByDeadman = "deadman"
	ByUEnv    = "uEnv.txt"
	ByGrub    = "GRUB"
)

func TrialProfile() *fleet.BootConfig {
	b := memoryProfile()
	b.Config.All = map[string]string{"gpu_mem": "16"}
	return b
}

func ProfileOf(way string) *fleet.BootConfig {
	b := TrialProfile()
	switch way {
	case ByUEnv:
		b.Backend, b.Config = fleet.BootUEnv, fleet.BootSettings{}
	case ByGrub:
		b.Backend, b.Config = fleet.BootGrub, fleet.BootSettings{}
	}
	return b
}

func EmptyEnv() []byte {
	return append([]byte(envHead), bytes.Repeat([]byte("#"), envSize-len(envHead))...)
}

// Internal names for the tests of agent and helper together.
const (
	ConfigTxt, CmdlineTxt, UEnvTxt, CustomCfg = configTxt, cmdlineTxt, uEnvTxt, customCfg
	TryTxt, TryCmdline, TrialMark             = tryTxt, tryCmdline, trialMark
	GrubTry, GrubSet, GrubBlock, GrubTrialOf  = grubTry, grubSet, grubBlock, grubTrialOf
	BeginMark, EndMark                        = beginMark, endMark
	EnvSize, MaxRequest                       = envSize, maxRequest
)

var (
	Render, Untried, SetEnv       = render, untried, setEnv
	GrubArgs, UEnvLine, TrialName = grubArgs, uEnvLine, trialName
	ReadRequest                   = readRequest
)
