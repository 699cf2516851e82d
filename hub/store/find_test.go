package store

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func TestAuditIsFoundByWordsAndPage(t *testing.T) {
	s := openIn(t, t.TempDir())
	for i := range 10 {
		a := Audit{
			At: time.Now(), Who: "Anna", Via: "session", Source: "10.1.2.3", Verb: "patch", Resource: "nodes",
			Name: fmt.Sprintf("pi-%d", i), Code: 200,
		}
		if i%3 == 0 {
			a.Code, a.Message = 403, "not allowed, 100%"
		}
		if i == 5 {
			a.Via = "command line"
		}
		if err := s.AddAudit(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		q    AuditQuery
		want string
	}{
		{"the newest records come first", AuditQuery{Limit: 3}, "pi-9 pi-8 pi-7"},
		{
			"a page continues before a record", AuditQuery{Before: 5, NotVerbs: []string{auditBegins}, Limit: 9},
			"pi-2 pi-1 pi-0",
		},
		{"only refused requests", AuditQuery{Refused: true, Limit: 9}, "pi-9 pi-6 pi-3 pi-0"},
		{"only certain ways of access", AuditQuery{Via: []string{"token", "command line"}, Limit: 9}, "pi-5"},
		{"a way of access is not SQL", AuditQuery{Via: []string{`session') OR ('a' = 'a`}, Limit: 9}, ""},
		{"every word must occur, in any case", AuditQuery{Words: []string{"ANNA", "pi-4"}, Limit: 9}, "pi-4"},
		{"a word is not a pattern", AuditQuery{Words: []string{"%"}, Limit: 2}, "pi-9 pi-6"},
		{"a word is not SQL", AuditQuery{Words: []string{`') OR 1=1 --`}, Limit: 9}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found, err := s.FindAudits(t.Context(), tt.q)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, a := range found {
				got += " " + a.Name
			}
			if got != "" {
				got = got[1:]
			}
			if got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

func TestAManualBackupCountsAsDaily(t *testing.T) {
	s := openIn(t, t.TempDir())
	file, err := s.BackUpNow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	copies, next, err := s.Copies()
	if err != nil || len(copies) != 1 || copies[0].File != file || copies[0].Bytes == 0 ||
		time.Until(next) < 23*time.Hour {
		t.Errorf("%+v, next %s, %v", copies, next, err)
	}
}

// The name of a directory is never used as a pattern.
func TestADirectoryNameIsNotAPattern(t *testing.T) {
	for _, name := range []string{"hub[1]", "hub[", `hub*?\`} {
		s := openIn(t, filepath.Join(t.TempDir(), name))
		file, err := s.BackUpNow(t.Context())
		must(t, err)
		if copies, _, err := s.Copies(); err != nil || len(copies) != 1 || copies[0].File != file {
			t.Errorf("in %s: %+v, %v", name, copies, err)
		}
		before, err := s.copyBeforeMigration(t.Context())
		must(t, err)
		if again, err := s.copyBeforeMigration(t.Context()); err != nil || again != before {
			t.Errorf("in %s: the copy %s was made again as %s, %v", name, before, again, err)
		}
	}
}

// A backup from a clock that was ahead does not count as the newest, because its age is unknown and
// it may exist for years.
func TestABackupFromTheFutureIsNotTheNewest(t *testing.T) {
	s := openIn(t, t.TempDir())
	if at, err := s.LastBackup(); !at.IsZero() || err != nil {
		t.Fatal(at, err)
	}
	file, err := s.BackUpNow(t.Context())
	must(t, err)
	must(t, copyFile(file, filepath.Join(filepath.Dir(file), "hub-20990101T000000Z.db")))
	if at, err := s.LastBackup(); err != nil || at.After(time.Now()) || time.Since(at) > time.Hour {
		t.Errorf("the newest backup is of %s, %v", at, err)
	}
}
