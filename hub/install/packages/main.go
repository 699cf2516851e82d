// Command packages is `make packages`: Debian packages of both programs and an image of the hub for
// each architecture, with a bill of materials for each, and the checksums.
//
// It packs what `make release agents` has built. Builds of one commit are identical, because each
// file has the commit's time.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/install"
)

// platforms are Debian's architectures, each with the directory of its programs and the
// architecture of its agent. Debian's armhf gets the programs for ARMv6, which also run on a Pi
// Zero.
var platforms = []struct{ debian, dir, agent string }{
	{"amd64", "linux/amd64", "amd64"}, {"arm64", "linux/arm64", "arm64"}, {"armhf", "linux/arm/v6", "armv6"},
}

func main() {
	version := flag.String("version", "0.1.0", "version of the packages")
	bin := flag.String("bin", "bin", "directory of the programs, as make release agents builds them")
	out := flag.String("out", "dist", "directory for the packages")
	when := flag.Int64("time", 0, "time of the commit, and of all files, in seconds since 1970")
	flag.Parse()
	if err := run(*version, *bin, *out, time.Unix(*when, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "packages:", err)
		os.Exit(1)
	}
}

func run(version, bin, out string, when time.Time) error {
	agents := map[string]string{}
	for _, arch := range []string{"amd64", "arm64", "armv6", "armv7"} {
		agents[arch] = filepath.Join(bin, "agents", "flotilla-device-"+arch)
	}
	builds := map[string]string{} // the files that describe the agents, so that devices can be upgraded
	for arch, file := range agents {
		text, err := os.ReadFile(file + install.BuildSuffix)
		if err != nil {
			return fmt.Errorf("describe the agent for %s: %w; build it with `make agents`", arch, err)
		}
		builds[arch] = string(text)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	var sums []string
	for _, p := range platforms {
		for name, pack := range map[string]install.Package{
			"flotilla-hub":    install.HubPackage(p.debian, version, agents, builds, when),
			"flotilla-device": install.DevicePackage(p.agent, version, when),
		} {
			program := filepath.Join(bin, p.dir, name)
			base := filepath.Join(out, fmt.Sprintf("%s_%s_%s", name, version, p.debian))
			if err := writeFile(base+".deb", func(w io.Writer) error { return pack.Write(w, program) }); err != nil {
				return err
			}
			if err := writeFile(base+".cdx.json", func(w io.Writer) error {
				return writeBill(w, program, version)
			}); err != nil {
				return err
			}
			files := []string{base + ".deb", base + ".cdx.json"}
			if name == "flotilla-hub" {
				files = append(files, base+".image.tar")
				if err := writeFile(files[2], func(w io.Writer) error {
					return writeImage(w, p.debian, version, program, agents, when)
				}); err != nil {
					return err
				}
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				sums = append(sums, fmt.Sprintf("%x  %s\n", sha256.Sum256(text), filepath.Base(file)))
			}
		}
	}
	compose := strings.ReplaceAll(composeFile, "@VERSION@", strings.TrimPrefix(version, "v"))
	if err := os.WriteFile(filepath.Join(out, "compose.yaml"), []byte(compose), 0o644); err != nil {
		return err
	}
	slices.SortFunc(sums, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(strings.Join(sums, "")), 0o644)
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// A component is an entry of a bill of materials.
type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
}

// writeBill writes the bill of materials of a Go program as CycloneDX 1.5.
func writeBill(w io.Writer, program, version string) error {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read the modules of %s: %w; build it with `make release agents`", program, err)
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	all := []component{{"library", "stdlib", goVersion, "pkg:golang/stdlib@" + goVersion}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		all = append(all, component{"library", m.Path, m.Version, "pkg:golang/" + m.Path + "@" + m.Version})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
		"metadata":   map[string]any{"component": component{"application", filepath.Base(program), version, ""}},
		"components": all,
	})
}
