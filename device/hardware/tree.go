package hardware

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/common"
	"golang.org/x/sys/unix"
)

const (
	maxFile = 1 << 20 // most bytes to read of a file; the cpuinfo of 256 processors has 400 KiB
	maxText = 128     // most bytes of a text in a report
	maxList = 64      // most entries of a list in a report
)

// A tree is the file system below a directory.
type tree string

func treeOf(o Options) tree {
	if o.Root == "" {
		return "/"
	}
	return tree(filepath.Clean(o.Root))
}

// real reports whether the tree is this machine, so that system calls are useful.
func (t tree) real() bool { return t == "/" }

func (t tree) path(p string) string { return filepath.Join(string(t), p) }

func (t tree) exists(p string) bool { _, err := os.Stat(t.path(p)); return err == nil }

func (t tree) read(p string) ([]byte, error) {
	if strings.HasPrefix(p, "/sys/") {
		return readDriver(t.path(p))
	}
	return read(t.path(p))
}

func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// patience is the time limit of a read. Some drivers read their chip during the call: a 1-wire
// sensor takes almost a second.
const patience = 2 * time.Second

// questions are reads that have not returned yet. A driver whose bus or disk hangs, or a remote
// file system, may return after minutes or never, and a read cannot be cancelled. Callers stop
// waiting, and do not start the same read again.
var questions = struct {
	sync.Mutex
	due map[string]*pending
}{due: map[string]*pending{}}

// A pending is a read that has not returned yet.
type pending struct {
	asked  time.Time
	there  chan struct{} // closed when the result is set
	answer any
	err    error
}

var errSilent = errors.New("no answer")

// patiently runs a read and returns errSilent after the time limit; what identifies the read.
func patiently(what string, ask func() (any, error)) (any, error) {
	questions.Lock()
	q := questions.due[what]
	if q == nil {
		q = &pending{asked: time.Now(), there: make(chan struct{})}
		questions.due[what] = q
		go func() {
			q.answer, q.err = ask()
			questions.Lock()
			delete(questions.due, what)
			questions.Unlock()
			close(q.there)
		}()
	}
	questions.Unlock()
	late := time.NewTimer(max(patience-time.Since(q.asked), 0))
	defer late.Stop()
	select {
	case <-q.there:
	case <-late.C:
		select {
		case <-q.there: // the answer came while this process was suspended
		default:
			return nil, errSilent
		}
	}
	return q.answer, q.err
}

// readDriver reads a file whose content a driver provides.
func readDriver(name string) ([]byte, error) {
	text, err := patiently("read "+name, func() (any, error) { return read(name) })
	if errors.Is(err, errSilent) {
		return nil, fmt.Errorf("read %s: its driver does not answer", name)
	}
	return text.([]byte), err
}

// statfs describes the file system of a directory that exists or could be created. For another root
// it reads a file with the numbers.
func (t tree) statfs(dir string) (*unix.Statfs_t, error) {
	st, err := patiently("statfs "+t.path(dir), func() (any, error) {
		st := new(unix.Statfs_t)
		return st, unix.Statfs(t.existing(dir), st)
	})
	if err != nil {
		return nil, fmt.Errorf("measure the file system of %s: %w", t.path(dir), err)
	}
	return st.(*unix.Statfs_t), nil
}

// text returns a file's content as one short line, or "".
func (t tree) text(p string) string {
	b, err := t.read(p)
	if err != nil {
		return ""
	}
	return clean(string(b))
}

func (t tree) number(p string) (int64, error) {
	b, err := t.read(p)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s is not a number: %q", t.path(p), clean(string(b)))
	}
	return n, nil
}

// integer returns a number from a file, 0 on an error.
func (t tree) integer(p string) int64 {
	n, _ := t.number(p)
	return n
}

// glob returns the matching names below the tree, sorted.
func (t tree) glob(pattern string) []string {
	full, err := filepath.Glob(t.path(pattern)) // the patterns are constants
	if err != nil {
		panic(err)
	}
	var names []string
	for _, f := range full {
		rel, err := filepath.Rel(string(t), f)
		if err == nil {
			names = append(names, "/"+rel)
		}
	}
	slices.Sort(names)
	return names
}

// gopsutil returns a context that makes gopsutil read below the tree.
func (t tree) gopsutil(ctx context.Context) context.Context {
	return context.WithValue(ctx, common.EnvKey, common.EnvMap{
		common.HostProcEnvKey: t.path("/proc"),
		common.HostSysEnvKey:  t.path("/sys"),
		common.HostEtcEnvKey:  t.path("/etc"),
	})
}

// existing returns p or its nearest parent directory that exists.
func (t tree) existing(p string) string {
	for p != "/" && !t.exists(p) {
		p = filepath.Dir(p)
	}
	return t.path(p)
}

// clean makes a text from firmware or a file safe for logs and pages.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == 0:
			return -1
		case r < ' ' || r == 0x7f:
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.TrimSpace(s)
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	return s
}

func few[T any](list []T) []T { return list[:min(len(list), maxList)] }
