package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/shared/policy"
)

// hostPath opens a path of the device, and creates the path if its type says so. It checks the
// policy against the real path, and the opened file stays the same even if links change. fixed
// means that no pod can redirect the path.
func hostPath(h *corev1.HostPathVolumeSource, owner policy.Document) (f *os.File, fixed bool, err error) {
	kind := corev1.HostPathUnset
	if h.Type != nil {
		kind = *h.Type
	}
	if !path.IsAbs(h.Path) || !owner.AllowsPath(h.Path) {
		return nil, false, fmt.Errorf("hostPath %q is not allowed by this device's policy", h.Path)
	}
	f, fixed, err = openAllowed(owner, path.Clean(h.Path), kind)
	if err != nil {
		return nil, false, fmt.Errorf("hostPath %s: %w", h.Path, err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, false, errors.Join(err, f.Close())
	}
	mode := info.Mode()
	ok := true
	switch kind {
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		ok = mode.IsDir()
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		ok = mode.IsRegular()
	case corev1.HostPathSocket:
		ok = mode&fs.ModeSocket != 0
	case corev1.HostPathCharDev:
		ok = mode&fs.ModeCharDevice != 0
	case corev1.HostPathBlockDev:
		ok = mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0
	}
	if !ok {
		return nil, false, errors.Join(fmt.Errorf("hostPath type check failed: %s is not a %s", h.Path, kind), f.Close())
	}
	return f, fixed, nil
}

// openAllowed opens an allowed path of the device, starting at the allowed directory.
func openAllowed(owner policy.Document, name string, kind corev1.HostPathType) (*os.File, bool, error) {
	var create *creation
	switch kind {
	case corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate: // engines treat a missing path differently
		create = &creation{mode: 0o755}
	case corev1.HostPathFileOrCreate:
		create = &creation{mode: 0o755, file: true}
	}
	places := placesOf(owner)
	for _, place := range places {
		if _, ok := relativeTo(place, name); ok && create != nil {
			if err := create.place(place, place == name); err != nil {
				return nil, false, err
			}
		}
	}
	real, err := resolveLinks(name)
	if err != nil {
		return nil, false, err
	}
	for _, place := range places {
		root, err := openPath(place)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		f, fixed, err := openBelow(root, real, create)
		if err := errors.Join(err, root.Close()); err != nil {
			return nil, false, err
		}
		if f != nil {
			return f, fixed, nil
		}
	}
	if _, err := os.Lstat(name); err != nil {
		return nil, false, err
	}
	return nil, false, fmt.Errorf("the path leads to %s, which this device's policy does not allow", real)
}

// openBelow opens a real path at or below a directory; nil: the path is elsewhere.
func openBelow(root *os.File, real string, create *creation) (*os.File, bool, error) {
	at, err := pathOf(root)
	if err != nil {
		return nil, false, err
	}
	rel, ok := relativeTo(at, real)
	if !ok {
		return nil, false, nil
	}
	f, err := walk(root, rel, create)
	return f, rel == ".", err
}

// place creates a missing allowed path with its parents, which no pod can redirect. whole means
// that the pod mounts the allowed path itself, which may be a file.
func (m *creation) place(path string, whole bool) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil // opening the path reports other errors
	}
	if !m.file || !whole {
		return os.MkdirAll(path, m.mode)
	}
	if err := os.MkdirAll(filepath.Dir(path), m.mode); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// placesOf returns the allowed host paths that no pod can redirect: those that are not inside
// another allowed path, directly or through a link.
func placesOf(owner policy.Document) []string {
	var outer policy.Document
	for _, h := range slices.Sorted(slices.Values(owner.HostPaths)) {
		if path.IsAbs(h) && !outer.AllowsPath(h) {
			outer.HostPaths = append(outer.HostPaths, h)
		}
	}
	return slices.DeleteFunc(slices.Clone(outer.HostPaths), func(h string) bool {
		for _, link := range linksOf(h) {
			if slices.ContainsFunc(outer.HostPaths, func(o string) bool {
				real, _ := filepath.EvalSymlinks(o) // empty: the path does not exist
				_, in := relativeTo(o, link)
				_, really := relativeTo(real, link)
				return o != h && (in || really && real != "")
			}) {
				return true
			}
		}
		return false
	})
}

// linksOf returns the symbolic links on a path.
func linksOf(name string) (links []string) {
	at, rest := "/", strings.Split(strings.Trim(name, "/"), "/")
	for len(rest) > 0 && len(links) < 40 {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		target, err := os.Readlink(next)
		if err != nil { // not a link, or missing
			at = next
			continue
		}
		links = append(links, next)
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(strings.Trim(target, "/"), "/"), rest...)
	}
	return links
}
