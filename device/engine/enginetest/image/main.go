// Command image builds the test image flotilla.test/tool:1 and writes it to stdout as a docker-archive, which
// "docker load" and "podman load" read. It needs the Go compiler, but neither a registry nor an engine. Its only content
// is package tool. The image asks for a health check that always fails and declares a volume, so that tests see that
// package engine switches the one off and removes the other.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
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
	layer, err := archive([]entry{
		{name: "tool", data: program, mode: 0o755},
		{name: "tar", link: "tool"}, // for kubectl cp
		{name: "data/", mode: 0o777},
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", data: []byte("root:x:0:0::/:/tool\napp:x:1000:1000::/data:/tool\n"), mode: 0o644},
		{name: "etc/group", data: []byte("root:x:0:\napp:x:1000:\n"), mode: 0o644},
		{name: "tmp/", mode: 0o1777},
		{name: "volume/", mode: 0o777},
	})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": arch,
		"os":           "linux",
		"created":      "2026-01-01T00:00:00Z",
		"config": map[string]any{
			"Entrypoint":  []string{"/tool"},
			"Cmd":         []string{"print", "ready", "then", "wait"},
			"Env":         []string{"PATH=/", "FROM_IMAGE=yes"},
			"WorkingDir":  "/data",
			"Volumes":     map[string]any{"/volume": map[string]any{}},
			"Healthcheck": map[string]any{"Test": []string{"CMD", "/tool", "exit", "1"}, "Interval": time.Second, "Retries": 1},
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
		"history": []any{map[string]any{"created": "2026-01-01T00:00:00Z", "created_by": "tool"}},
	})
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": tags, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	whole, err := archive([]entry{
		{name: configName, data: config, mode: 0o644},
		{name: "layer.tar", data: layer, mode: 0o644},
		{name: "manifest.json", data: manifest, mode: 0o644},
	})
	if err != nil {
		return err
	}
	_, err = to.Write(whole)
	return err
}

// compile builds package tool as one static file.
func compile(arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "tool")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "tool")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w -buildid=", "-o", out, "flotilla.dev/device/engine/enginetest/tool")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=-buildvcs=false")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

type entry struct {
	name string // a directory ends with a slash
	data []byte
	mode int64
	link string // what a symbolic link points at
}

// archive is a tar file that depends on nothing but its entries, so that the image's id stays the same.
func archive(entries []entry) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		kind := byte(tar.TypeReg)
		if strings.HasSuffix(e.name, "/") {
			kind = tar.TypeDir
		}
		if e.link != "" {
			kind = tar.TypeSymlink
		}
		h := &tar.Header{Typeflag: kind, Name: e.name, Linkname: e.link, Size: int64(len(e.data)), Mode: e.mode, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}
