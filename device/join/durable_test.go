package join

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// keeper is the environment variable that makes a child process of the test store an identity.
const keeper = "FLOTILLA_TEST_KEEP_IN"

// When a join returns, the hub counts the token as used, so the device must have key and
// certificate on the disk even if the power is cut. A file's name is durable only after its
// directory was synced.
func TestAJoinSurvivesAPowerCut(t *testing.T) {
	if dir := os.Getenv(keeper); dir != "" {
		key, _, err := pendingKey(dir)
		if err == nil {
			err = Save(dir, Identity{Node: "pi-1", Key: string(key)})
		}
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is missing: ", err)
	}
	dir := filepath.Join(t.TempDir(), "state")
	cmd := exec.Command(strace, "-f", "-y", "-e", "trace=fsync,rename,renameat,renameat2,unlink,unlinkat", "-o",
		dir+".calls", os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), keeper+"="+dir)
	if output, err := cmd.CombinedOutput(); err != nil {
		if _, e := os.Stat(filepath.Join(dir, IdentityFile)); e != nil {
			t.Skipf("cannot trace processes: %v: %s", err, output)
		}
		t.Fatalf("trace the join: %v: %s", err, output)
	}
	calls, err := os.ReadFile(dir + ".calls")
	if err != nil {
		t.Fatal(err)
	}
	rest := string(calls)
	for _, step := range []string{`rename.*/` + pendingFile + `"`, `fsync\(.*<` + dir + `>[ )]`,
		`rename.*/` + IdentityFile + `"`, `fsync\(.*<` + dir + `>[ )]`, `unlink.*/` + pendingFile + `"`} {
		at := regexp.MustCompile(step).FindStringIndex(rest)
		if at == nil {
			t.Fatalf("the next call must be %s; all calls:\n%s", step, strings.ReplaceAll(string(calls), dir, "…"))
		}
		rest = rest[at[1]:]
	}
}

// The key exists only in the state directory, so a killed process leaves no copy elsewhere.
func TestAKeyIsWrittenOnlyIntoTheStateDirectory(t *testing.T) {
	elsewhere, dir, old := t.TempDir(), t.TempDir(), time.Unix(1, 0)
	t.Setenv("TMPDIR", elsewhere)
	if err := os.Chtimes(elsewhere, old, old); err != nil {
		t.Fatal(err)
	}
	key, _, err := pendingKey(dir)
	if err == nil {
		err = Save(dir, Identity{Node: "pi-1", Key: string(key)})
	}
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(elsewhere); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("a file was written to $TMPDIR (%v)", err)
	}
}
