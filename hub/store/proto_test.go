package store

import (
	"fmt"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"flotilla.dev/hub/e2e/postgrestest"
	"flotilla.dev/hub/state"
)

// A database of schema 3 has Nodes as JSON. The hub reads them, and stores a Node as protobuf when
// it changes.
func TestNodesOfOlderDatabasesAreReadAndRewrittenWhenTheyChange(t *testing.T) {
	server := postgrestest.Start(t)
	for name, address := range map[string]string{"SQLite": "", "PostgreSQL": server.Database()} {
		t.Run(name, func(t *testing.T) {
			o := Options{Dir: t.TempDir(), Database: address, Version: "test", Log: slog.New(slog.DiscardHandler)}
			all, allPostgres := migrations, postgresMigrations
			migrations, postgresMigrations = all[:3], allPostgres[:1]
			restore := func() { migrations, postgresMigrations = all, allPostgres }
			defer restore()
			s, err := Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			text := func(name string) []byte {
				return fmt.Appendf(nil, `{"metadata":{"name":%q,"uid":"u-%s","labels":{"a":"b\\n\"é"}}}`, name, name)
			}
			row := func(name string, rev uint64) Row {
				return Row{Kind: "nodes", Name: name, UID: "u-" + name, Rev: rev, Object: text(name)}
			}
			mustWrite := func(s *Store, rev uint64, rows ...Row) {
				t.Helper()
				if err := s.Commit(t.Context(), Commit{Rev: rev, Rows: rows}); err != nil {
					t.Fatal(err)
				}
			}
			if address == "" { // the column accepts text, which schema 3 wrote
				mustWrite(s, 1, pod("p", 1))
				for _, name := range []string{"a", "b"} {
					if err := s.openKind(t.Context(), "nodes"); err != nil {
						t.Fatal(err)
					}
					if _, err := s.conn.ExecContext(t.Context(), "INSERT INTO nodes VALUES ('', ?, ?, 1, '', '', ?)", name, "u-"+name,
						string(text(name))); err != nil {
						t.Fatal(err)
					}
				}
			} else {
				mustWrite(s, 1, row("a", 1), row("b", 1), pod("p", 1))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			restore()
			if s, err = Open(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			data, err := state.Encode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "u"}})
			if err != nil {
				t.Fatal(err)
			}
			mustWrite(s, 2, Row{Kind: "nodes", Name: "b", UID: "u", Rev: 2, Object: data}, pod("p", 2))
			for range 2 {
				got := map[string][]byte{}
				if err := s.Load(t.Context(), func(r Row) error {
					got[r.Name] = append([]byte(nil), r.Object...)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
				if string(got["a"]) != string(text("a")) || string(got["b"]) != string(data) {
					t.Errorf("node a is %s, node b is %q", got["a"], got["b"])
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = Open(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			defer s.Close()
			if address == "" {
				if err := unreadable(t.Context(), s.read.DB); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
