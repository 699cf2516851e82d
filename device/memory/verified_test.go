package memory

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestVerifiedImagesSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	open := func() *Memory {
		m, err := Open(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := open()
	for i := range maxVerified + 2 {
		if err := m.SetVerified(Verified{fmt.Sprint("web:", i), "web@sha256:old", "key"}); err != nil {
			t.Fatal(err)
		}
	}
	last := Verified{"web:9", "web@sha256:new", "key"}
	if err := m.SetVerified(last); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, verifiedFile)
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SetVerified(last); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) || after.Mode() != 0o600 {
		t.Errorf("an unchanged entry was written, or is readable by others: %v, %v", after, err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m = open()
	if v, ok := m.Verified("web:9"); !ok || v != last || len(m.verified) != maxVerified {
		t.Errorf("the last image is %+v (%v) of %d, want %+v of %d", v, ok, len(m.verified), last, maxVerified)
	}
	if _, ok := m.Verified("web:0"); ok {
		t.Error("the oldest is not dropped")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("zeros"), 0o600); err != nil {
		t.Fatal(err)
	}
	m = open()
	defer func() { _ = m.Close() }()
	if _, ok := m.Verified("web:9"); ok {
		t.Error("a damaged file is used")
	}
}
