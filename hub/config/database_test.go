package config

import (
	"bytes"
	"strings"
	"testing"
)

func TestThePasswordOfTheDatabaseIsNotShown(t *testing.T) {
	for _, address := range []string{
		"postgres://hub:geheim@db:5432/flotilla",
		"postgres://hub:geheim@db/flotilla?sslmode=verify-full&password=geheim&sslpassword=geheim",
		"postgresql://hub@a:1,b:2/flotilla?password=geheim", "postgres://hub:ge%68eim@db/x",
		"postgres://hub:geheim@db:port/x",
	} {
		for from, load := range map[string]func() (Config, []string, error){
			"flag": func() (Config, []string, error) { return load(t, []string{"--database=" + address}, nil) },
			"env":  func() (Config, []string, error) { return load(t, nil, []string{"FLOTILLA_DATABASE=" + address}) },
		} {
			c, warnings, err := load()
			var out bytes.Buffer
			if perr := c.Print(&out); perr != nil {
				t.Fatal(perr)
			}
			shown := out.String() + strings.Join(warnings, "\n")
			for _, s := range c.All() {
				shown += s.Value + "\n"
			}
			if err != nil {
				shown += err.Error()
			}
			if strings.Contains(shown, "geheim") || strings.Contains(shown, "ge%68eim") {
				t.Errorf("%s %s: the password is printed:\n%s", from, address, shown)
			}
			if err == nil && (len(warnings) > 0) != (from == "flag") {
				t.Errorf("%s %s: warnings %q", from, address, warnings)
			}
			if err == nil && c.Database != address {
				t.Errorf("the database is %s, want %s", c.Database, address)
			}
		}
	}
	if _, warnings, err := load(t, []string{"--database=postgres://hub@db/flotilla"}, nil); err != nil ||
		len(warnings) > 0 {
		t.Error("a URL without a password causes a warning or an error:", warnings, err)
	}
}

func TestInvalidDatabaseURLs(t *testing.T) {
	for _, address := range []string{"mysql://x/y", "host=db dbname=flotilla password=geheim", "postgres",
		"hub.db", "https://db/x"} {
		if _, _, err := load(t, []string{"--database=" + address}, nil); err == nil ||
			!strings.Contains(err.Error(), "postgres://USER@HOST:5432/NAME") {
			t.Errorf("%s: %v", address, err)
		} else if strings.Contains(err.Error(), "geheim") {
			t.Errorf("the password is shown: %v", err)
		}
	}
	for _, address := range []string{"", "sqlite", "/etc/flotilla/database", "./database", "postgres://db/flotilla",
		"postgresql:///flotilla?host=/run/postgresql"} {
		if _, _, err := load(t, []string{"--database=" + address}, nil); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}
