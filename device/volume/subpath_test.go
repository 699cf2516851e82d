package volume

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// tree makes directories (a name that ends in /), links (with an arrow) and files.
func tree(t *testing.T, root string, names ...string) {
	t.Helper()
	for _, name := range names {
		path := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if name[len(name)-1] == '/' {
			must(t, os.MkdirAll(path, 0o755))
		} else {
			must(t, os.WriteFile(path, []byte(name), 0o644))
		}
	}
}

func link(t *testing.T, target, name string) {
	t.Helper()
	must(t, os.Symlink(target, name))
}

func TestASubPathDoesNotLeadOutOfItsVolume(t *testing.T) {
	out := outside(t)
	for _, c := range []struct {
		name, sub string
		readOnly  bool
		leads     string // path in the volume; empty: refused
	}{
		{"a directory", "a/b", false, "a/b"},
		{"a file", "a/f", false, "a/f"},
		{"the volume itself", ".", false, "."},
		{"a missing directory is created", "new/dir", false, "new/dir"},
		{"in a volume of files a missing directory is refused", "new/dir", true, ""},
		{"a link inside", "in", false, "a"},
		{"a path behind a link inside", "in/b", false, "a/b"},
		{"a link that leads up and comes back", "a/up", false, "a/b"},
		{"a missing path behind a link inside", "in/new", false, "a/new"},
		{"a parent", "../x", false, ""},
		{"a parent from inside", "a/../../b", false, ""},
		{"an absolute path", "/etc", false, ""},
		{"a link out", "out", false, ""},
		{"a path behind a link out", "out/canary", false, ""},
		{"a missing path behind a link out", "out/new", false, ""},
		{"a link to the root of the device", "root", false, ""},
		{"a link to the volume's parent", "dotdot", false, ""},
		{"a chain of links that ends outside", "chain", false, ""},
		{"a link to itself", "self", false, ""},
		{"a link that leads nowhere", "nowhere", false, ""},
		{"the magic link of a process", "magic", false, ""},
		{"a file on the way", "a/f/x", false, ""},
		{"an empty path", "", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := filepath.EvalSymlinks(t.TempDir())
			must(t, err)
			root := filepath.Join(dir, "v")
			tree(t, root, "a/b/", "a/f")
			link(t, "a", filepath.Join(root, "in"))
			link(t, "../a/../a/b", filepath.Join(root, "a/up"))
			link(t, out, filepath.Join(root, "out"))
			link(t, "/", filepath.Join(root, "root"))
			link(t, "..", filepath.Join(root, "dotdot"))
			link(t, "in/../chain2", filepath.Join(root, "chain"))
			link(t, "a/../../..", filepath.Join(root, "chain2"))
			link(t, "self", filepath.Join(root, "self"))
			link(t, "none", filepath.Join(root, "nowhere"))
			link(t, "/proc/self/cwd", filepath.Join(root, "magic"))
			v, err := openPath(root)
			must(t, err)
			defer v.Close()
			f, err := openInside(v, c.sub, c.readOnly)
			if err != nil {
				if c.leads != "" {
					t.Fatal(err)
				}
				return
			}
			defer f.Close()
			if at, err := pathOf(f); c.leads == "" || err != nil || at != filepath.Join(root, c.leads) {
				t.Errorf("the path leads to %s (%v), want %q", at, err, c.leads)
			}
		})
	}
	if got := names(t, out); !slices.Equal(got, []string{"canary"}) {
		t.Errorf("the outside directory contains %v", got)
	}
}

// A walk follows no link, even if the path from resolveLinks is outdated.
func TestAWalkFollowsNoLink(t *testing.T) {
	out := outside(t)
	root := t.TempDir()
	tree(t, root, "a/b/")
	link(t, out, filepath.Join(root, "out"))
	link(t, "a", filepath.Join(root, "in"))
	dir, err := openPath(root)
	must(t, err)
	defer dir.Close()
	for _, rel := range []string{"out", "out/canary", "out/new", "in", "in/b", "..", "../x", "a/../..", "/etc"} {
		if f, err := walk(dir, rel, &creation{mode: 0o755}); err == nil {
			t.Errorf("%s leads to %s", rel, viaProc(f))
		}
	}
	if got := names(t, out); !slices.Equal(got, []string{"canary"}) {
		t.Errorf("the outside directory contains %v", got)
	}
}

func TestModesDoNotDependOnTheUmask(t *testing.T) {
	for _, mask := range []int{0, 0o022, 0o077, 0o777} {
		root := t.TempDir()
		must(t, os.Chmod(root, 0o777|os.ModeSetgid))
		dir, err := openPath(root)
		must(t, err)
		old := umask(mask)
		f, err := openInside(dir, "a/b", false)
		umask(old)
		must(t, err)
		for _, name := range []string{"a", "a/b"} {
			info, err := os.Stat(filepath.Join(root, name))
			must(t, err)
			if info.Mode() != os.ModeDir|0o777|os.ModeSetgid {
				t.Errorf("with umask %03o the mode of %s is %v, want the volume's", mask, name, info.Mode())
			}
		}
		must(t, f.Close())
		must(t, dir.Close())
	}
}

func TestAHostPathIsCheckedByItsRealPath(t *testing.T) {
	kind := func(k corev1.HostPathType) *corev1.HostPathType { return &k }
	base, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	allowed, also, other := base+"/allowed", base+"/also", base+"/other"
	tree(t, base, "allowed/dir/", "allowed/f", "also/x/", "other/canary", "owner/real/x/")
	link(t, other, allowed+"/out")
	link(t, other+"/canary", allowed+"/outfile")
	link(t, also, allowed+"/across")
	link(t, allowed+"/dir", allowed+"/in")
	link(t, base+"/owner/real", base+"/owners") // the owner's link
	link(t, allowed+"/turned", base+"/alias")   // the owner's link through a path that pods can write
	link(t, other, allowed+"/turned")           // a pod has redirected it
	link(t, other, allowed+"/nested")           // a pod has replaced it
	policy := allowing(allowed, also, base+"/owners", base+"/alias", allowed+"/nested", base+"/missing", base+"/new.conf")
	for _, c := range []struct {
		name  string
		h     corev1.HostPathVolumeSource
		leads string // empty: refused
		fixed bool
	}{
		{"an allowed path itself", corev1.HostPathVolumeSource{Path: allowed}, allowed, true},
		{"a path inside an allowed path", corev1.HostPathVolumeSource{Path: allowed + "/dir"}, allowed + "/dir", false},
		{"a missing directory is created", corev1.HostPathVolumeSource{Path: allowed + "/a/b"}, allowed + "/a/b", false},
		{"a missing file is created", corev1.HostPathVolumeSource{Path: allowed + "/g", Type: kind(corev1.HostPathFileOrCreate)}, allowed + "/g", false},
		{"a missing allowed directory is created", corev1.HostPathVolumeSource{Path: base + "/missing/x", Type: kind(corev1.HostPathDirectoryOrCreate)}, base + "/missing/x", false},
		{"a missing allowed file is created", corev1.HostPathVolumeSource{Path: base + "/new.conf", Type: kind(corev1.HostPathFileOrCreate)}, base + "/new.conf", true},
		{"a link to another allowed path", corev1.HostPathVolumeSource{Path: allowed + "/across/x"}, also + "/x", false},
		{"a link inside", corev1.HostPathVolumeSource{Path: allowed + "/in"}, allowed + "/dir", false},
		{"an allowed path that is the owner's link", corev1.HostPathVolumeSource{Path: base + "/owners/x"}, base + "/owner/real/x", false},
		{"a file is not a directory", corev1.HostPathVolumeSource{Path: allowed + "/f", Type: kind(corev1.HostPathDirectory)}, "", false},
		{"a file is not replaced by a directory", corev1.HostPathVolumeSource{Path: allowed + "/f", Type: kind(corev1.HostPathDirectoryOrCreate)}, "", false},
		{"a directory is not a socket", corev1.HostPathVolumeSource{Path: allowed + "/dir", Type: kind(corev1.HostPathSocket)}, "", false},
		{"a missing directory that must exist", corev1.HostPathVolumeSource{Path: allowed + "/none", Type: kind(corev1.HostPathDirectory)}, "", false},
		{"a link out of the allowed path", corev1.HostPathVolumeSource{Path: allowed + "/out"}, "", false},
		{"a link to a file outside of the allowed path", corev1.HostPathVolumeSource{Path: allowed + "/outfile", Type: kind(corev1.HostPathFileOrCreate)}, "", false},
		{"a path behind a link out", corev1.HostPathVolumeSource{Path: allowed + "/out/canary"}, "", false},
		{"a missing path behind a link out", corev1.HostPathVolumeSource{Path: allowed + "/out/new"}, "", false},
		{"a missing file behind a link out", corev1.HostPathVolumeSource{Path: allowed + "/out/new", Type: kind(corev1.HostPathFileOrCreate)}, "", false},
		{"an allowed path inside another that a pod has redirected", corev1.HostPathVolumeSource{Path: allowed + "/nested/canary"}, "", false},
		{"an allowed path whose parent a pod has redirected", corev1.HostPathVolumeSource{Path: base + "/alias/canary"}, "", false},
		{"a forbidden path", corev1.HostPathVolumeSource{Path: other}, "", false},
		{"a parent of the allowed path", corev1.HostPathVolumeSource{Path: allowed + "/../other"}, "", false},
		{"a relative path", corev1.HostPathVolumeSource{Path: "etc"}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, fixed, err := hostPath(&c.h, policy)
			if err != nil {
				if c.leads != "" {
					t.Error(err)
				}
				return
			}
			defer f.Close()
			if at, err := pathOf(f); err != nil || at != c.leads || fixed != c.fixed {
				t.Errorf("the path leads to %s (fixed %v), want %q (fixed %v)", at, fixed, c.leads, c.fixed)
			}
		})
	}
	if got := names(t, other); !slices.Equal(got, []string{"canary"}) {
		t.Errorf("the forbidden directory contains %v", got)
	}
}
