package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"flotilla.dev/device/engine/enginetest/imagetest"
)

// A picture is an image that specs use, with its content.
type picture struct {
	name   string   // last part of the image's repository
	layers []string // sources of the layers: see content.layer
	config map[string]any
}

// pictures are all images of claimed specs. Busybox and its shell come from Debian, agnhost and
// nonewprivs from the suite's sources, applets from this repository.
var pictures = []picture{
	{"busybox", []string{"base"}, map[string]any{"Cmd": []string{"sh"}}},
	{"agnhost", []string{"base", "agnhost", "tools"},
		map[string]any{"Entrypoint": []string{"/agnhost"}, "Cmd": []string{"pause"}}},
	{"kitten", []string{"base", "agnhost", "kitten"},
		map[string]any{"Entrypoint": []string{"/agnhost"}, "Cmd": []string{"test-webserver"}}},
	{"nautilus", []string{"base", "agnhost", "nautilus"},
		map[string]any{"Entrypoint": []string{"/agnhost"}, "Cmd": []string{"test-webserver"}}},
	{"nginx", []string{"base", "nginx"}, map[string]any{"Cmd": []string{"/usr/sbin/nginx"}}},
	{"nonewprivs", []string{"base", "nonewprivs"}, map[string]any{"Cmd": []string{"nnp"}}},
	{"nonroot", []string{"base"}, map[string]any{"User": "1234", "Cmd": []string{"sh"}}},
	{"pause", []string{"pause"}, map[string]any{"Entrypoint": []string{"/pause"}}},
}

// images builds the images and imports them into the engine behind a socket.
func (r *run) images(ctx context.Context, socket string) error {
	if err := r.suite.build(ctx, contents); err != nil {
		return err
	}
	busybox, err := debian(ctx, "busybox-static", "busybox", r.suite.dir, r.work)
	if err != nil {
		return fmt.Errorf("get busybox: %w", err)
	}
	shell, err := debian(ctx, "bash-static", "bash-static", r.suite.dir, r.work)
	if err != nil {
		return fmt.Errorf("get a shell: %w", err)
	}
	sources, err := r.suite.sources(ctx)
	if err != nil {
		return err
	}
	out, err := output(exec.CommandContext(ctx, r.suite.program("e2e.test"), "--list-images"))
	if err != nil {
		return err
	}
	applets := filepath.Join(r.work, "applets")
	if err := goBuild(ctx, applets, "flotilla.dev/hub/e2e/conformance/applets"); err != nil {
		return err
	}
	c := content{suite: r.suite, sources: sources, busybox: busybox, shell: shell, applets: applets}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	for _, p := range pictures {
		var tags []string
		for tag := range strings.FieldsSeq(string(out)) {
			if repository, _, ok := strings.Cut(tag, ":"); ok && path.Base(repository) == p.name &&
				strings.HasPrefix(tag, "registry.k8s.io/") {
				tags = append(tags, tag)
			}
		}
		if len(tags) == 0 {
			return fmt.Errorf("the suite no longer has the image %s", p.name)
		}
		img := imagetest.Image{Arch: runtime.GOARCH, Config: p.config, Tags: tags}
		p.config["Env"] = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		for _, name := range p.layers {
			layer, err := c.layer(ctx, name)
			if err != nil {
				return fmt.Errorf("build the image %s: %w", p.name, err)
			}
			img.Layers = append(img.Layers, layer)
		}
		var archive bytes.Buffer
		if err := imagetest.Write(&archive, img); err != nil {
			return fmt.Errorf("build the image %s: %w", p.name, err)
		}
		if err := load(ctx, client, &archive); err != nil {
			return fmt.Errorf("import the image %s into %s: %w", p.name, socket, err)
		}
	}
	return nil
}

func load(ctx context.Context, client *http.Client, archive io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1.40/images/load", archive)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/x-tar")
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != http.StatusOK || bytes.Contains(text, []byte(`"error"`))) {
		err = fmt.Errorf("%s: %.300s", answer.Status, text)
	}
	return err
}

// debian returns a static program of a Debian package, cached in a directory.
func debian(ctx context.Context, pkg, program, dir, work string) (string, error) {
	cached := filepath.Join(dir, program)
	if _, err := os.Stat(cached); err == nil {
		return cached, nil
	}
	fetch := exec.CommandContext(ctx, "apt-get", "download", "-q", pkg)
	fetch.Dir = work
	if _, err := output(fetch); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(work, pkg+"_*.deb"))
	if err != nil || len(found) == 0 {
		return "", fmt.Errorf("apt-get downloaded no package %s to %s (%w)", pkg, work, err)
	}
	unpacked := filepath.Join(work, pkg)
	if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "-x", found[0], unpacked)); err != nil {
		return "", err
	}
	for _, name := range []string{"bin/" + program, "usr/bin/" + program} { // paths before and after Debian merged /usr
		if b, err := os.ReadFile(filepath.Join(unpacked, name)); err == nil {
			return cached, os.WriteFile(cached, b, 0o755)
		}
	}
	return "", fmt.Errorf("%s has no %s", filepath.Base(found[0]), program)
}

// content has the sources of layers.
type content struct {
	suite            suite
	sources, applets string
	busybox, shell   string // shell keeps variables such as data-1, which busybox's shell drops
}

func (c content) layer(ctx context.Context, name string) ([]imagetest.Entry, error) {
	l := &layer{}
	switch name {
	case "base":
		out, err := output(exec.CommandContext(ctx, c.busybox, "--list"))
		if err != nil {
			return nil, err
		}
		l.dirs(0o755, "bin/", "dev/", "etc/", "home/", "proc/", "root/", "sbin/", "sys/", "usr/", "usr/bin/", "usr/sbin/",
			"usr/local/", "usr/local/bin/", "var/")
		l.dirs(0o1777, "tmp/", "var/tmp/")
		l.file("bin/busybox", c.busybox, 0o755)
		l.file("bin/bash", c.shell, 0o755)
		l.file("bin/sh", c.applets, 0o755)
		for applet := range strings.FieldsSeq(string(out)) {
			if applet != "busybox" && applet != "sh" {
				l.link("bin/"+applet, "/bin/busybox")
			}
		}
		l.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nbin:x:1:1:bin:/bin:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n", 0o644)
		l.text("etc/group", "root:x:0:\nbin:x:1:\nnogroup:x:65534:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n", 0o644)
	case "agnhost":
		l.file("agnhost", c.suite.program("agnhost"), 0o755)
		l.link("agnhost-2", "agnhost")
		l.dirs(0o777, "uploads/")
		porter := filepath.Join(c.sources, "test", "images", "agnhost", "porter")
		l.file("localhost.crt", filepath.Join(porter, "localhost.crt"), 0o644)
		l.file("localhost.key", filepath.Join(porter, "localhost.key"), 0o644)
	case "tools":
		l.file("usr/local/bin/curl", c.applets, 0o755)
		l.link("usr/local/bin/nc", "curl")
	case "kitten", "nautilus":
		html := filepath.Join(c.sources, "test", "images", name, "html")
		l.file(name+".jpg", filepath.Join(html, name+".jpg"), 0o644)
		l.file("data.json", filepath.Join(html, "data.json"), 0o644)
	case "nginx":
		l.dirs(0o755, "usr/share/", "usr/share/nginx/", "usr/share/nginx/html/")
		l.file("usr/sbin/nginx", c.applets, 0o755)
		l.text("usr/share/nginx/html/index.html", "<html><body><h1>It works!</h1></body></html>\n", 0o644)
	case "nonewprivs":
		l.file("usr/local/bin/nnp", c.suite.program("nnp"), 0o4755)
	case "pause":
		l.file("pause", c.applets, 0o755)
	}
	return l.entries, l.err
}

// A layer is a tar under construction.
type layer struct {
	entries []imagetest.Entry
	err     error
}

func (l *layer) dirs(mode int64, names ...string) {
	for _, name := range names {
		l.entries = append(l.entries, imagetest.Entry{Name: name, Mode: mode})
	}
}

func (l *layer) link(name, to string) {
	l.entries = append(l.entries, imagetest.Entry{Name: name, Link: to, Mode: 0o777})
}

func (l *layer) text(name, text string, mode int64) {
	l.entries = append(l.entries, imagetest.Entry{Name: name, Data: []byte(text), Mode: mode})
}

func (l *layer) file(name, from string, mode int64) {
	data, err := os.ReadFile(from)
	if err != nil && l.err == nil {
		l.err = err
	}
	l.entries = append(l.entries, imagetest.Entry{Name: name, Data: data, Mode: mode})
}
