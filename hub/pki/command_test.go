package pki

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The hub would not know an intermediate that a command beside it issues, and could not revoke it.
func TestACommandIssuesNoIntermediate(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "pki")
	overdue := func(a *Authority) *Authority {
		a.Now = func() time.Time { return time.Now().Add(intermediateLife - LeafLife) } // a new intermediate is due
		return a
	}
	hub := overdue(open(t, dir))
	before := must(os.ReadFile(filepath.Join(dir, "intermediate.crt")))(t)
	command := overdue(must(OpenShared(data, ""))(t))
	cert, _, err := command.IssueClient(Admin, "kim", LeafLife)
	if err != nil {
		t.Fatal(err)
	}
	if after := must(os.ReadFile(filepath.Join(dir, "intermediate.crt")))(t); string(after) != string(before) {
		t.Error("the command has issued an intermediate")
	}
	if h, err := hub.Verify(chain(t, cert)); err != nil || h.Name != "kim" {
		t.Errorf("the hub verifies the command's certificate as %v, %v", h, err)
	}
	if err := hub.RotateIntermediate(); err != nil {
		t.Fatal(err)
	}
	if err := hub.Revoke(); err != nil {
		t.Fatal(err)
	}
	if h, err := hub.Verify(chain(t, cert)); err == nil {
		t.Errorf("a certificate that a command signed before a revocation is valid: %v", h)
	}
	command.Now = func() time.Time { return time.Now().Add(intermediateLife + time.Hour) }
	if _, _, err := command.IssueClient(Admin, "kim", LeafLife); err == nil {
		t.Error("the command signs with an expired intermediate")
	} else {
		t.Log(err)
	}
}
