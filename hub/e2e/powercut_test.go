package e2e

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A disk is the hub's database as the file system has it: the synced data, and the writes since the
// last sync.
type disk struct {
	files map[string]*diskFile // by base name
}

type diskFile struct {
	kept    []byte    // data that survives a power cut
	pending []written // writes since the last sync
}

// A written is a write. If cut is set, it is a truncation of the file to at.
type written struct {
	at   int64
	data []byte
	cut  bool
}

func (w written) on(b []byte) []byte {
	if w.cut {
		return append(b[:min(w.at, int64(len(b)))], make([]byte, max(0, w.at-int64(len(b))))...)
	}
	if end := w.at + int64(len(w.data)); end > int64(len(b)) {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	copy(b[w.at:], w.data)
	return b
}

func (d *disk) file(name string) *diskFile {
	if d.files[name] == nil {
		d.files[name] = &diskFile{}
	}
	return d.files[name]
}

// after writes the files as a power cut may leave them: with any part of the unsynced writes, and
// sectors in any order.
func (d *disk) after(t testing.TB, dice *rand.Rand, dir string) {
	t.Helper()
	for name, f := range d.files {
		body := slices.Clone(f.kept)
		part := dice.IntN(3) // the file has none, all or some of its unsynced writes
		for _, w := range f.pending {
			switch {
			case part == 0, part == 2 && dice.IntN(2) == 0:
			case part == 2 && !w.cut && len(w.data) > 512: // a torn write
				for at := 0; at < len(w.data); at += 512 {
					if dice.IntN(2) == 0 {
						body = written{at: w.at + int64(at), data: w.data[at:min(at+512, len(w.data))]}.on(body)
					}
				}
			default:
				body = w.on(body)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, name), body, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A call is a system call on the database, from a line of strace.
type call struct {
	at     float64 // seconds since 1970
	name   string  // return value
	file   string  // base name of the file
	data   []byte
	offset int64
}

var (
	callLine    = regexp.MustCompile(`^(\d+) +(\d+\.\d+) (\w+)\((.*)$`)
	resumedLine = regexp.MustCompile(`^(\d+) +(\d+\.\d+) <\.\.\. (\w+) resumed>`)
	writeArgs   = regexp.MustCompile(`^\d+<([^>]*)>, "([^"]*)", (\d+), (\d+)`)
	fdArg       = regexp.MustCompile(`^\d+<([^>]*)>`)
	cutArgs     = regexp.MustCompile(`^\d+<([^>]*)>, (\d+)`)
	pathArg     = regexp.MustCompile(`^(?:AT_FDCWD(?:<[^>]*>)?, )?"([^"]*)"`)
)

// decodeHex decodes a string that strace -xx prints.
func decodeHex(s string) []byte {
	out := make([]byte, 0, len(s)/4)
	for i := 0; i+4 <= len(s); i += 4 {
		b, err := strconv.ParseUint(s[i+2:i+4], 16, 8)
		if err != nil {
			return nil
		}
		out = append(out, byte(b))
	}
	return out
}

// calls parses the log of strace -f -ttt -y -xx. The time of a write is its beginning, that of a
// sync its end.
func calls(t testing.TB, file string) []call {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var out []call
	syncing := map[string]string{} // file of each thread's unfinished call
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 64<<20)
	name := func(s string) string {
		if strings.HasPrefix(s, `\x`) {
			s = string(decodeHex(s))
		}
		return filepath.Base(s)
	}
	for sc.Scan() {
		line := sc.Text()
		if m := resumedLine.FindStringSubmatch(line); m != nil {
			if file := syncing[m[1]]; file != "" && strings.Contains(m[3], "sync") {
				at, _ := strconv.ParseFloat(m[2], 64)
				out = append(out, call{at: at, name: "fsync", file: file})
				delete(syncing, m[1])
			}
			continue
		}
		m := callLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		at, _ := strconv.ParseFloat(m[2], 64)
		c := call{at: at, name: m[3]}
		switch m[3] {
		case "pwrite64":
			a := writeArgs.FindStringSubmatch(m[4])
			if a == nil {
				continue // a call on another file, or a message of strace
			}
			c.file, c.data = name(a[1]), decodeHex(a[2])
			c.offset, _ = strconv.ParseInt(a[4], 10, 64)
			if n, _ := strconv.Atoi(a[3]); n != len(c.data) {
				t.Fatalf("strace shows %d of %d bytes: %.200s", len(c.data), n, line)
			}
		case "fsync", "fdatasync":
			a := fdArg.FindStringSubmatch(m[4])
			if a == nil {
				continue
			}
			c.name, c.file = "fsync", name(a[1])
			if strings.Contains(line, "<unfinished") {
				syncing[m[1]] = c.file
				continue
			}
		case "ftruncate":
			a := cutArgs.FindStringSubmatch(m[4])
			if a == nil {
				continue
			}
			c.file = name(a[1])
			c.offset, _ = strconv.ParseInt(a[2], 10, 64)
		case "unlink", "unlinkat":
			a := pathArg.FindStringSubmatch(m[4])
			if a == nil {
				continue
			}
			c.name, c.file = "unlink", name(a[1])
		default:
			continue
		}
		if strings.HasPrefix(c.file, "hub.db") && !strings.HasSuffix(c.file, "-shm") {
			out = append(out, c)
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

func (d *disk) does(c call) {
	f := d.file(c.file)
	switch c.name {
	case "pwrite64":
		f.pending = append(f.pending, written{at: c.offset, data: c.data})
	case "ftruncate":
		f.pending = append(f.pending, written{at: c.offset, cut: true})
	case "fsync":
		for _, w := range f.pending {
			f.kept = w.on(f.kept)
		}
		f.pending = nil
	case "unlink":
		delete(d.files, c.file)
	}
}

// An acknowledged is a change that the hub has acknowledged, with the time of the response.
type acknowledged struct {
	at    float64
	name  string
	count int
}

// TestAPowerCutOfTheHub records all writes and syncs of a real hub's database, and simulates power
// cuts at hundreds of moments. Each cut leaves the synced data and any part of the rest. Each
// database opens, is sound, and has all writes that were acknowledged before the cut.
func TestAPowerCutOfTheHub(t *testing.T) {
	t.Parallel()
	long(t)
	strace, err := exec.LookPath("strace")
	if err != nil {
		need(t, "needs strace, which shows what the hub syncs: %v", err)
	}
	h := newHub(t, "--log-level", "warn")
	h.simulate(4, 2)
	h.stop()
	d := &disk{files: map[string]*diskFile{}}
	for _, name := range []string{"hub.db", "hub.db-wal"} {
		if body, err := os.ReadFile(filepath.Join(h.dir, name)); err == nil {
			d.file(name).kept = body
		}
	}
	log := filepath.Join(t.TempDir(), "calls")
	// With -D the hub is this test's child, and strace a grandchild.
	cmd := exec.Command(strace, append([]string{"-D", "-f", "-ttt", "-y", "-xx", "-s", "1000000", "-o",
		log, "--seccomp-bpf",
		"-e", "trace=pwrite64,ftruncate,fsync,fdatasync,unlink,unlinkat", program(t, "hub", here)}, h.args...)...)
	cmd.Env = environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	h.process = startCommand(t, cmd)
	await(t, "the hub starts under strace", patience, h.answers)

	var mu sync.Mutex
	var acks []acknowledged
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var g sync.WaitGroup
	for w := range writers {
		g.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("cut-%d-%d", w, i%50)
				b, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
					"metadata": map[string]any{"name": name},
					"data":     map[string]string{"count": strconv.Itoa(i/50 + 1), "pad": strings.Repeat("x", i%7*700)}})
				var err error
				if i < 50 {
					_, err = h.ask(ctx, "POST", "/api/v1/namespaces/default/configmaps", "application/json", b)
				} else {
					_, err = h.ask(ctx, "PUT", "/api/v1/namespaces/default/configmaps/"+name, "application/json", b)
				}
				if err == nil {
					mu.Lock()
					acks = append(acks, acknowledged{float64(time.Now().UnixNano()) / 1e9, name, i/50 + 1})
					mu.Unlock()
				}
			}
		})
	}
	g.Wait()
	h.kill()
	time.Sleep(time.Second) // strace writes its last lines
	slices.SortFunc(acks, func(a, b acknowledged) int { return int((a.at - b.at) * 1e9) })

	all := calls(t, log)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %d calls", seed, len(all))
	dice := rand.New(rand.NewPCG(seed, 0))
	syncs, cuts, checked := 0, 0, 0
	have := map[string]int{}
	for i, c := range all {
		for len(acks) > 0 && acks[0].at < c.at {
			have[acks[0].name] = acks[0].count
			acks = acks[1:]
			checked++
		}
		d.does(c)
		if c.name == "fsync" {
			syncs++
		}
		// Cut after every few syncs, and sometimes between two syncs.
		if c.name == "fsync" && syncs%5 == 0 || dice.IntN(200) == 0 || i == len(all)-1 {
			cuts++
			powerless(t, d, dice, maps.Clone(have), cuts)
			if t.Failed() {
				t.Fatalf("cut %d, after call %d of %d", cuts, i, len(all))
			}
		}
	}
	if cuts < 20 || checked < 100 {
		t.Errorf("%d cuts and %d acknowledged writes: the test proves nothing", cuts, checked)
	}
	seen(t, fmt.Sprintf("%d power cuts in %d syncs and %d writes: every database sound, none of %d acknowledged changes missing", cuts, syncs, len(all)-syncs, checked))
}

// powerless opens the database after a power cut and checks it.
func powerless(t *testing.T, d *disk, dice *rand.Rand, have map[string]int, cut int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "flotilla-e2e-cut-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	d.after(t, dice, dir)
	db, err := sql.Open("sqlite", filepath.Join(dir, "hub.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var verdict string
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity of the database after cut %d: %q, %v", cut, verdict, err)
		return
	}
	rows, err := db.Query(`SELECT name, object ->> '$.data.count' FROM configmaps WHERE name LIKE 'cut-%'`)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name, count string
		if err := rows.Scan(&name, &count); err != nil {
			t.Error(err)
			return
		}
		if n, _ := strconv.Atoi(count); n >= have[name] {
			delete(have, name)
		}
	}
	if len(have) > 0 || rows.Err() != nil {
		t.Errorf("cut %d loses %d acknowledged changes: %v, %v", cut, len(have), have, rows.Err())
	}
}
