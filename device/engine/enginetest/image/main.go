// Command image builds the test image flotilla.test/tool:1 with package tool and writes it to
// stdout as a docker-archive for "docker load" and "podman load". It needs the Go compiler, but
// neither a registry nor an engine. The image has a health check that always fails and a volume:
// tests check that package engine disables the check and removes the volume.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"flotilla.dev/device/engine/enginetest/imagetest"
)

func main() {
	tags := flag.String("tags", "flotilla.test/tool:1", "names of the image, separated by commas")
	arch := flag.String("arch", runtime.GOARCH, "GOARCH of the image")
	flag.Parse()
	if err := write(os.Stdout, *arch, strings.Split(*tags, ",")); err != nil {
		fmt.Fprintf(os.Stderr, "build the test image: %v\n", err)
		os.Exit(1)
	}
}

func write(to io.Writer, arch string, tags []string) error {
	program, err := compile(arch)
	if err != nil {
		return err
	}
	return imagetest.Write(to, imagetest.Image{
		Arch: arch,
		Tags: tags,
		Config: map[string]any{
			"Entrypoint":  []string{"/tool"},
			"Cmd":         []string{"print", "ready", "then", "wait"},
			"Env":         []string{"PATH=/", "FROM_IMAGE=yes"},
			"WorkingDir":  "/data",
			"Volumes":     map[string]any{"/volume": map[string]any{}},
			"Healthcheck": map[string]any{"Test": []string{"CMD", "/tool", "exit", "1"}, "Interval": time.Second, "Retries": 1},
		},
		Layers: [][]imagetest.Entry{{
			{Name: "tool", Data: program, Mode: 0o755},
			{Name: "tar", Link: "tool"}, // kubectl cp calls tar
			{Name: "data/", Mode: 0o777},
			{Name: "etc/", Mode: 0o755},
			{Name: "etc/passwd", Data: []byte("root:x:0:0::/:/tool\napp:x:1000:1000::/data:/tool\n"), Mode: 0o644},
			{Name: "etc/group", Data: []byte("root:x:0:\napp:x:1000:\n"), Mode: 0o644},
			{Name: "tmp/", Mode: 0o1777},
			{Name: "volume/", Mode: 0o777},
		}},
	})
}

// compile builds package tool as one static file.
func compile(arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "tool")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "tool")
	cmd := exec.Command("go", "build", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-s -w -buildid=", "-o", out,
		"flotilla.dev/device/engine/enginetest/tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=-buildvcs=false")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}
