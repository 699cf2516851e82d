// Command sign writes beside each agent the file that describes it: version, processor, size,
// SHA-256, and the signature by the key of the release. Devices upgrade themselves to agents that
// have it. `make agents` runs it after the build.
package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"flotilla.dev/hub/install"
	"flotilla.dev/shared/fleet"
)

func main() {
	version := flag.String("version", "", "version of the agents")
	key := flag.String("key", "", "file with the Ed25519 key of the release, as `openssl genpkey -algorithm ed25519` makes it")
	public := flag.Bool("public", false, "print the public half of --key, as devices keep it")
	flag.Parse()
	if err := run(*version, *key, *public, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sign:", err)
		os.Exit(1)
	}
}

func run(version, keyFile string, public bool, agents []string) error {
	var key ed25519.PrivateKey
	if keyFile != "" {
		var err error
		if key, err = readKey(keyFile); err != nil {
			return fmt.Errorf("read the key of the release: %s: %w", keyFile, err)
		}
	}
	if public {
		if key == nil {
			return errors.New("--public needs --key")
		}
		fmt.Println(base64.StdEncoding.EncodeToString(key.Public().(ed25519.PublicKey)))
		return nil
	}
	for _, file := range agents {
		if strings.HasSuffix(file, install.BuildSuffix) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(text)
		b := fleet.AgentBuild{Version: version, Arch: strings.TrimPrefix(filepath.Base(file), "flotilla-device-"),
			Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}
		if !b.Valid() {
			return fmt.Errorf("%s: its name must be flotilla-device-ARCH, and --version such as 1.3.0", file)
		}
		if key != nil {
			b.Signature = ed25519.Sign(key, b.Text())
		}
		out, err := json.Marshal(b)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file+install.BuildSuffix, append(out, '\n'), 0o644); err != nil {
			return err
		}
	}
	if key == nil {
		fmt.Fprintln(os.Stderr, "sign: the agents are not signed: devices upgrade to them only with --upgrade-unsigned. "+
			"To sign them, make a key with `openssl genpkey -algorithm ed25519 -out FILE`, and set RELEASE_KEY=FILE")
	}
	return nil
}

func readKey(file string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is not a PEM file")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	if k, ok := key.(ed25519.PrivateKey); ok {
		return k, nil
	}
	return nil, errors.New("it is not an Ed25519 key")
}
