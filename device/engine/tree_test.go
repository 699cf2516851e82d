package engine

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"time"
)

func archived(t *testing.T, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte{0}, int(h.Size))); err != nil { // zeros, like the end of an archive
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func namesOf(t *testing.T, body []byte,
	wrap func(func(*tar.Header, io.Reader) error) func(*tar.Header, io.Reader) error) ([]string, error) {
	t.Helper()
	var names []string
	put := func(h *tar.Header, _ io.Reader) error {
		names = append(names, h.Name)
		return nil
	}
	if wrap != nil {
		put = wrap(put)
	}
	return names, entries(bytes.NewReader(body), put)
}

// An archive that is cut off anywhere, even between two files, is incomplete.
func TestATruncatedTreeIsAnError(t *testing.T) {
	body := archived(t, tar.Header{Name: "a", Mode: 0o644, Size: 3},
		tar.Header{Name: "b/", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "b/c", Mode: 0o644, Size: 2048})
	if names, err := namesOf(t, body, nil); err != nil || !slices.Equal(names, []string{"a", "b/", "b/c"}) {
		t.Fatalf("a complete archive: %q, %v", names, err)
	}
	for n := 0; n < len(body)-trailer; n += 64 {
		if _, err := namesOf(t, body[:n], nil); err == nil {
			t.Errorf("an archive cut off after %d of %d bytes counts as complete", n, len(body))
		}
	}
	stop := errors.New("no")
	if err := entries(bytes.NewReader(body), func(*tar.Header, io.Reader) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("got %v, want the error of the function that takes the entries", err)
	}
}

// Docker adds a dozen files to each container. They are left out, but files of the image stay, even
// with the same names.
func TestFilesThatDockerAddsAreLeftOut(t *testing.T) {
	old, made := time.Unix(0, 0), time.Date(2026, 11, 23, 1, 26, 27, 898_000_000, time.UTC)
	young := made.Truncate(time.Second)
	dir := func(name string, at time.Time) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755, ModTime: at}
	}
	file := func(name string, at time.Time, size int64) tar.Header {
		return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, ModTime: at, Size: size}
	}
	wrap := func(put func(*tar.Header, io.Reader) error) func(*tar.Header, io.Reader) error {
		return withoutStubs(made, put)
	}
	for name, c := range map[string]struct {
		in   []tar.Header
		want []string
	}{
		"all stubs of Docker": {[]tar.Header{file(".dockerenv", young, 0), dir("data/", old), dir("dev/", young), file("dev/console", young, 0), dir("dev/pts/", young), dir("dev/shm/", young),
			dir("etc/", young), file("etc/hostname", young, 0), {Name: "etc/mtab", Typeflag: tar.TypeSymlink,
				Linkname: "/proc/mounts", ModTime: young}, dir("proc/", young), dir("sys/", young)}, []string{"data/"}},
		"a stub directory with a file of the image":      {[]tar.Header{dir("dev/", young), dir("dev/pts/", young), dir("etc/", young), file("etc/group", old, 3), file("etc/hosts", young, 0)}, []string{"etc/", "etc/group"}},
		"older files with names of stubs":                {[]tar.Header{dir("dev/", old), dir("etc/", old), file("etc/hosts", old, 0), file("etc/resolv.conf", old, 5), dir("proc/", old)}, []string{"dev/", "etc/", "etc/hosts", "etc/resolv.conf", "proc/"}},
		"stubs with content":                             {[]tar.Header{dir("etc/", young), file("etc/hosts", young, 5), dir("sys/", young), file("sys/x", young, 1)}, []string{"etc/", "etc/hosts", "sys/", "sys/x"}},
		"names of stubs in other directories":            {[]tar.Header{dir("a/", old), dir("a/proc/", young), file("a/.dockerenv", young, 0)}, []string{"a/", "a/proc/", "a/.dockerenv"}},
		"names of stubs with another file type":          {[]tar.Header{file("proc", young, 0), dir(".dockerenv/", young)}, []string{"proc", ".dockerenv/"}},
		"a file of the image in nested stub directories": {[]tar.Header{dir("dev/", young), dir("dev/shm/", young), file("dev/shm/x", old, 1), dir("proc/", young)}, []string{"dev/", "dev/shm/", "dev/shm/x"}},
	} {
		if got, err := namesOf(t, archived(t, c.in...), wrap); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}
