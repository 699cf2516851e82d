package wire

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryParserRefusesWithOneSentence(t *testing.T) {
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for _, c := range []struct{ name, data, want string }{
		{"empty", "", "not a JSON object"},
		{"not an object", `[1]`, "not a JSON object"},
		{"null", `null`, "not a JSON object"},
		{"cut off", `{"boot":"b`, "unexpected end"},
		{"invalid UTF-8", "{\"boot\":\"\xff\"}", "UTF-8"},
		{"a NUL in a string", `{"boot":"a\u0000"}`, "NUL"},
		{"nesting of 100 levels", `{"x":` + deep + `}`, "nested deeper"},
		{"trailing bytes", `{} {}`, "after top-level value"},
	} {
		for _, g := range goldens {
			if g.name == "desired" && c.want == "NUL" {
				continue // the parser marks such a pod as unreadable
			}
			t.Run(g.name+" "+c.name, func(t *testing.T) {
				_, err := g.parse([]byte(c.data))
				sentence(t, err, c.want)
			})
		}
	}
	for _, g := range goldens {
		t.Run(g.name+" of five MiB", func(t *testing.T) {
			_, err := g.parse(bytes.Repeat([]byte(" "), 5<<20))
			sentence(t, err, "at most")
		})
		t.Run(g.name+" with fields of a later version", func(t *testing.T) {
			golden := golden(t, g.name)
			extended := append(bytes.TrimSuffix(golden, []byte("}")), `,"later":{"a":[1,2]}}`...)
			if _, err := g.parse(extended); err != nil {
				t.Errorf("an unknown field is refused: %v", err)
			}
		})
	}
}

func TestErrorsNameTheField(t *testing.T) {
	status := func(field string) string { return `{"boot":"b",` + field + `}` }
	for _, c := range []struct {
		name, data, want string
		parse            func([]byte) (any, error)
	}{
		{"a lease without boot", `{"seq":1}`, "lease: boot is missing", anyParser(ParseLease)},
		{"a boot with a slash", `{"boot":"a/b"}`, "letters, digits", anyParser(ParseLease)},
		{"a boot of 65 characters", `{"boot":"` + strings.Repeat("x", 65) + `"}`, "at most 64", anyParser(ParseLease)},
		{"a seq in a string", `{"boot":"b","seq":"1"}`, "seq is a string, but must be a whole number from 0 that fits 64 bits", anyParser(ParseLease)},
		{"a negative seq", `{"boot":"b","seq":-1}`, "seq is a number -1, but must be a whole number from 0", anyParser(ParseLease)},
		{"a seq beyond 64 bits", `{"boot":"b","seq":18446744073709551616}`, "fits 64 bits", anyParser(ParseLease)},
		{"a seq of 1e308", `{"boot":"b","seq":1e308}`, "seq is a number 1e308", anyParser(ParseLease)},
		{"a seq of NaN", `{"boot":"b","seq":NaN}`, "invalid character", anyParser(ParseLease)},
		{"a repeated field", `{"boot":"b","seq":1,"seq":2}`, `duplicate field "seq"`, anyParser(ParseLease)},
		{"a generation beyond the limit", `{"boot":"b","seq":1,"status":1,"pods":1,"desired":9223372036854775807}`, "none is above", anyParser(ParseLease)},
		{"a negative generation", `{"boot":"b","seq":1,"desired":-1}`, "generations start at 0", anyParser(ParseLease)},
		{"a lease of more than 1 KiB", `{"boot":"b","x":"` + strings.Repeat("x", 1024) + `"}`, "at most 1024", anyParser(ParseLease)},
		{"an invalid time", status(`"time":"yesterday"`), "yesterday", anyParser(ParseStatus)},
		{"an invalid machine id", status(`"machineID":"../etc"`), "16 lower case hex", anyParser(ParseStatus)},
		{"labels in a list", status(`"registration":{"labels":[]}`), "registration.labels is an array", anyParser(ParseStatus)},
		{"an invalid capacity", status(`"status":{"capacity":{"cpu":"four"}}`), "quantities must match", anyParser(ParseStatus)},
		{"a repeated label", status(`"registration":{"labels":{"a":"1","a":"2"}}`), "duplicate field", anyParser(ParseStatus)},
		{"a pod without uid", status(`"pods":[{"namespace":"a","name":"b"}]`), "pods[0] must have uid", anyParser(ParsePods)},
		{"a pod with a long uid", status(`"pods":[{"uid":"` + strings.Repeat("1", 129) + `","namespace":"a","name":"b"}]`), "uid has 129 bytes", anyParser(ParsePods)},
		{"a repeated pod", status(`"pods":[{"uid":"1","namespace":"a","name":"b"},{"uid":"1","namespace":"a","name":"b"}]`), "is repeated", anyParser(ParsePods)},
		{"more than 1024 pods", status(`"pods":[` + strings.TrimSuffix(strings.Repeat(`{"uid":"1","namespace":"a","name":"b"},`, 1025), ",") + `]`), "1025 pods", anyParser(ParsePods)},
		{"an event of unknown type", status(`"type":"Fatal"`), "Normal or Warning", anyParser(ParseEvent)},
		{"an event without reason", status(`"type":"Normal"`), "reason", anyParser(ParseEvent)},
		{"a presence of unknown state", status(`"state":"asleep"`), "lost or shutdown", anyParser(ParsePresence)},
		{"a presence of more than 512 bytes", status(`"state":"lost","reason":"` + strings.Repeat("x", 512) + `"`), "at most 512", anyParser(ParsePresence)},
		{"a desired without hub", `{"generation":1}`, "hub is missing", anyParser(ParseDesired)},
		{"a lease interval of an hour", `{"generation":1,"hub":"h","leaseIntervalSeconds":3600}`, "1 to 300", anyParser(ParseDesired)},
		{"a request without type", `{}`, "type", anyParser(ParseRequest)},
		{"an ack without an id", `{"type":"ack","seq":3}`, "ack without the id", anyParser(ParseRequest)},
		{"an exec without a command", `{"type":"exec","command":[]}`, "exec without a command", anyParser(ParseRequest)},
		{"an exec with an empty word", `{"type":"exec","command":["","x"]}`, "exec without a command", anyParser(ParseRequest)},
		{"a command of 4097 words", `{"type":"exec","command":["x"` + strings.Repeat(`,""`, 4096) + `]}`, "4097 words", anyParser(ParseRequest)},
		{"input without a number", `{"type":"stdin","data":"AA=="}`, "counted from 1", anyParser(ParseRequest)},
		{"the end of input without a number", `{"type":"close-stdin"}`, "counted from 1", anyParser(ParseRequest)},
		{"input of more than 32 KiB", `{"type":"stdin","seq":1,"data":"` + strings.Repeat("AAAA", 32<<10/3+1) + `"}`, "at most 32768", anyParser(ParseRequest)},
		{"data in a logs request", `{"type":"logs","data":"AA=="}`, "logs with data", anyParser(ParseRequest)},
		{"a terminal without rows", `{"type":"resize","seq":1,"width":80}`, "80x0", anyParser(ParseRequest)},
		{"a terminal of 65536 columns", `{"type":"resize","seq":1,"width":65536,"height":1}`, "fits 16 bits", anyParser(ParseRequest)},
		{"port 0", `{"type":"port-forward"}`, "port 0 is not one of", anyParser(ParseRequest)},
		{"port 65536", `{"type":"port-forward","port":65536}`, "port 65536 is not one of", anyParser(ParseRequest)},
		{"a deadline in the past", `{"type":"logs","deadlineSeconds":-1}`, "must be positive", anyParser(ParseRequest)},
		{"an exit code before the end", `{"seq":1,"exitCode":1}`, "only the last chunk", anyParser(ParseReply)},
		{"an error before the end", `{"seq":1,"error":"x"}`, "only the last chunk", anyParser(ParseReply)},
		{"a usage of more than 1024 pods", `{"pods":[` + strings.TrimSuffix(strings.Repeat(`{},`, 1025), ",") + `]}`, "1025 pods", anyParser(ParseUsage)},
		{"an invalid usage", `{"node":{"cpu":"much"}}`, "quantities must match", anyParser(ParseUsage)},
		{"a window that ends before it begins", `{"window":"-1s"}`, "must not be negative", anyParser(ParseUsage)},
		{"invalid base64", `{"seq":1,"data":"%"}`, "base64", anyParser(ParseReply)},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.parse([]byte(c.data))
			sentence(t, err, c.want)
		})
	}
}

func TestFieldNamesAreCaseSensitive(t *testing.T) {
	l, err := ParseLease([]byte(`{"boot":"b","seq":1,"SEQ":9}`))
	if err != nil || l.Seq != 1 {
		t.Errorf("seq is %d, %v; want 1, because SEQ is an unknown field", l.Seq, err)
	}
}

// sentence checks that an error is one short line that contains want.
func sentence(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("the payload is accepted, want an error with %q", want)
	case !strings.Contains(err.Error(), want):
		t.Errorf("the error is %q, want it to contain %q", err, want)
	case strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 400 ||
		strings.Contains(err.Error(), "Go struct"):
		t.Errorf("the error is not one plain sentence: %q", err)
	}
}

func golden(t testing.TB, name string) []byte {
	data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSpace(data)
}

// fuzz checks three rules of a parser: it does not panic, an error is one line, and an accepted
// payload is accepted again after it was parsed and written.
func fuzz(f *testing.F, name string, parse func([]byte) (any, error), write func(any) []byte) {
	f.Add(golden(f, name))
	for _, seed := range []string{`{}`, `{"boot":"b"}`, `{"boot":"b","boot":"c"}`, `{"seq":1e308}`, "{\"x\":\"\xff\"}",
		`{"x":"\u0000"}`, `[[[[`, `{"pods":[{}]}`, `{"data":"AA=="}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := parse(data)
		if err != nil {
			if s := err.Error(); strings.Contains(s, "\n") || len(s) > 1000 {
				t.Errorf("the error is not one line: %q", s)
			}
			return
		}
		if _, err := parse(write(v)); err != nil && !strings.Contains(err.Error(), "at most") {
			t.Errorf("%q was accepted, but the written payload is refused: %v", data, err)
		}
	})
}
