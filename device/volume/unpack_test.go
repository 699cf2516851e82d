package volume

import (
	"archive/tar"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"flotilla.dev/device/engine/enginetest"
)

// treeOf lists a directory tree, one line for each entry: name, mode, and content or target.
func treeOf(t *testing.T, dir string) (lines []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		info, err := e.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %v", rel, info.Mode())
		switch {
		case info.Mode().IsRegular():
			b, _ := os.ReadFile(name)
			line += fmt.Sprintf(" %.20q", b)
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(name)
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	}))
	return lines
}

func of(uid, gid int) func(*tar.Header)     { return func(h *tar.Header) { h.Uid, h.Gid = uid, gid } }
func claims(size int64) func(h *tar.Header) { return func(h *tar.Header) { h.Size = size } }

// Every archive is unpacked inside its directory, within limits and without special files, or is an
// error.
func TestAHostileArchiveStaysInside(t *testing.T) {
	const reg, dir, sym, link = tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink
	type archive = []enginetest.Entry
	many := archive{}
	for i := range maxEntries + 1 {
		many = append(many, entryOf(sym, fmt.Sprintf("many-%d", i%3), "x"))
	}
	for name, c := range map[string]struct {
		in   archive
		want []string
		err  string
	}{
		"an ordinary archive": {archive{entryOf(dir, "./", ""), entryOf(dir, "a/", "", modedAs(0o750)), entryOf(reg, "a/b", "text", modedAs(0o640)), entryOf(sym, "a/c", "b"), entryOf(link, "d", "a/b")},
			[]string{"a drwxr-x---", `a/b -rw-r----- "text"`, "a/c Lrwxrwxrwx -> b", `d -rw-r----- "text"`}, ""},
		"missing parents are created":                          {archive{entryOf(reg, "a/b/c", "x")}, []string{"a drwxr-xr-x", "a/b drwxr-xr-x", `a/b/c -rwxr-xr-x "x"`}, ""},
		"absolute names are relative to the root":              {archive{entryOf(reg, "/etc/passwd", "x")}, []string{"etc drwxr-xr-x", `etc/passwd -rwxr-xr-x "x"`}, ""},
		"set-user-ID bits are dropped":                         {archive{entryOf(reg, "su", "x", modedAs(0o6755)), entryOf(dir, "tmp", "", modedAs(0o7777))}, []string{`su -rwxr-xr-x "x"`, "tmp drwxrwxrwx"}, ""},
		"special files are left out":                           {archive{entryOf(tar.TypeChar, "null", ""), entryOf(tar.TypeBlock, "sda", ""), entryOf(tar.TypeFifo, "pipe", ""), entryOf('9', "what", ""), entryOf(reg, "a", "x")}, []string{`a -rwxr-xr-x "x"`}, ""},
		"the last entry of a name counts":                      {archive{entryOf(reg, "a", "1"), entryOf(sym, "a", "/etc/passwd"), entryOf(reg, "a", "3"), entryOf(dir, "d", "", modedAs(0o700)), entryOf(dir, "d", "", modedAs(0o755))}, []string{`a -rwxr-xr-x "3"`, "d drwxr-xr-x"}, ""},
		"links that lead out are kept but not followed":        {archive{entryOf(sym, "a", "/etc/shadow"), entryOf(sym, "b", "../../../etc")}, []string{"a Lrwxrwxrwx -> /etc/shadow", "b Lrwxrwxrwx -> ../../../etc"}, ""},
		"directories without write permission get their files": {archive{entryOf(dir, "a", "", modedAs(0o500)), entryOf(dir, "a/b", "", modedAs(0)), entryOf(reg, "a/b/c", "x")}, []string{"a dr-x------", "a/b d---------", `a/b/c -rwxr-xr-x "x"`}, ""},
		"steps up":                                {archive{entryOf(reg, "../out", "x")}, nil, `"../out" leads out of the image`},
		".. inside a path":                        {archive{entryOf(reg, "a/../../out", "x")}, nil, "leads out of the image"},
		"a file through a link that leads out":    {archive{entryOf(sym, "a", "@/elsewhere"), entryOf(reg, "a/out", "x")}, nil, "escapes from parent"},
		"a file through a relative link":          {archive{entryOf(sym, "a", "../elsewhere"), entryOf(reg, "a/out", "x")}, nil, "escapes from parent"},
		"a directory through a link":              {archive{entryOf(sym, "a", "@/elsewhere"), entryOf(dir, "a/out", "")}, nil, "escapes from parent"},
		"a file replaces a link":                  {archive{entryOf(sym, "a", "@/elsewhere/kept"), entryOf(reg, "a", "x")}, []string{`a -rwxr-xr-x "x"`}, ""},
		"a directory with a mode replaces a link": {archive{entryOf(sym, "a", "@/elsewhere/kept"), entryOf(dir, "a", "", modedAs(0o777))}, []string{"a drwxrwxrwx"}, ""},
		"a hard link to the outside":              {archive{entryOf(link, "a", "../elsewhere/kept")}, nil, "leads out of the image"},
		"a hard link through a symbolic link":     {archive{entryOf(sym, "l", "@/elsewhere"), entryOf(link, "a", "l/kept")}, nil, "escapes from parent"},
		"a hard link to a symbolic link":          {archive{entryOf(sym, "l", "@/elsewhere/kept"), entryOf(link, "a", "l")}, []string{"a Lrwxrwxrwx -> @/elsewhere/kept", "l Lrwxrwxrwx -> @/elsewhere/kept"}, ""},
		"a hard link to a directory":              {archive{entryOf(dir, "d", ""), entryOf(link, "a", "d")}, nil, "which is not a file"},
		"a hard link to a missing file":           {archive{entryOf(link, "a", "b")}, nil, "which is not a file"},
		"a file over a directory with content":    {archive{entryOf(reg, "d/x", ""), entryOf(reg, "d", "x")}, nil, "directory not empty"},
		"a file in a file":                        {archive{entryOf(reg, "a", "x"), entryOf(reg, "a/b", "x")}, nil, `"a/b": `},
		"more bytes than fit on the disk":         {archive{entryOf(reg, "a", "x"), entryOf(reg, "b", "x", claims(1<<30))}, nil, "is too full for the image"},
		"many empty files":                        {many, nil, "is too full for the image"},
		"a truncated file":                        {archive{entryOf(reg, "a", "x", claims(5))}, nil, "EOF"},
		"a name with a NUL":                       {archive{entryOf(reg, "a\x00b", "x")}, nil, "without a name"},
		"no name":                                 {archive{entryOf(reg, "", "x")}, nil, "without a name"},
		"a thousand nested directories":           {archive{entryOf(reg, strings.Repeat("d/", 1000)+"x", "x")}, nil, "nested directories"},
		"a long link":                             {archive{entryOf(sym, "a", strings.Repeat("x", 5000))}, nil, "symbolic link of 5000 bytes"},
		"a file of an invalid owner":              {archive{entryOf(reg, "a", "x", of(-1, 0))}, nil, "is not a valid id"},
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			in, elsewhere := filepath.Join(base, "in"), filepath.Join(base, "elsewhere")
			must(t, os.Mkdir(in, 0o755))
			must(t, os.Mkdir(elsewhere, 0o755))
			must(t, os.WriteFile(filepath.Join(elsewhere, "kept"), []byte("kept"), 0o600))
			before := treeOf(t, elsewhere)
			root, err := os.OpenRoot(in)
			must(t, err)
			defer root.Close()
			u := &unpacking{root: root, left: 64 << 20, owned: os.Geteuid() == 0, closed: map[string]fs.FileMode{}}
			for _, e := range c.in {
				e.Header.Linkname = strings.ReplaceAll(e.Header.Linkname, "@", base)
				if err = u.put(&e.Header, strings.NewReader(e.Data)); err != nil {
					break
				}
			}
			if err == nil {
				err = u.end()
			}
			switch {
			case (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err):
				t.Errorf("got error %v, want %s", err, c.err)
			case err == nil:
				got := treeOf(t, in)
				for i := range got {
					got[i] = strings.ReplaceAll(got[i], base, "@")
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
				}
			}
			if after := treeOf(t, elsewhere); !slices.Equal(after, before) {
				t.Errorf("the directory outside contained %q, now %q", before, after)
			}
			if all := namesIn(base); len(all) != 2 {
				t.Errorf("the parent directory contains %q", all)
			}
		})
	}
}

// Each file gets its owner and time from the image.
func TestUnpackingKeepsOwnersAndTimes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can change owners")
	}
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	u := &unpacking{root: root, left: 1 << 20, owned: true, closed: map[string]fs.FileMode{}}
	for _, e := range []enginetest.Entry{entryOf(tar.TypeDir, "d", "", of(1000, 1001)),
		entryOf(tar.TypeReg, "d/f", "x", of(7, 8), modedAs(0o4755)), entryOf(tar.TypeSymlink, "d/l", "f", of(9, 10))} {
		must(t, u.put(&e.Header, strings.NewReader(e.Data)))
	}
	for name, want := range map[string]string{"d": "1000:1001", "d/f": "7:8", "d/l": "9:10"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%d:%d", st.Uid, st.Gid); got != want {
			t.Errorf("%s belongs to %s, want %s", name, got, want)
		}
		if name == "d/f" && (info.ModTime().Unix() != 1e9 || info.Mode() != 0o755) {
			t.Errorf("%s has time %v and mode %v", name, info.ModTime(), info.Mode())
		}
	}
}

func entryOf(kind byte, name, data string, change ...func(*tar.Header)) (e enginetest.Entry) {
	e.Header, e.Data = tar.Header{
		Typeflag: kind,
		Name:     name,
		Mode:     0o755,
		Size:     int64(len(data)),
		ModTime:  time.Unix(1e9, 0),
	}, data
	if kind == tar.TypeSymlink || kind == tar.TypeLink {
		e.Header.Linkname, e.Header.Size, e.Data = data, 0, ""
	}
	for _, f := range change {
		f(&e.Header)
	}
	return e
}

func modedAs(mode int64) func(*tar.Header) { return func(h *tar.Header) { h.Mode = mode } }
