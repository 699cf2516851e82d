package wire

import (
	"encoding/json"
	"reflect"
	"testing"
)

func write(v any) []byte { b, _ := json.Marshal(v); return b }

func FuzzParseStatus(f *testing.F) { fuzz(f, "status", anyParser(ParseStatus), write) }
func FuzzParsePods(f *testing.F) {
	f.Add(zip(string(golden(f, "pods"))))
	fuzz(f, "pods", anyParser(ParsePods), write)
}

func FuzzParseEvent(f *testing.F)    { fuzz(f, "event", anyParser(ParseEvent), write) }
func FuzzParsePresence(f *testing.F) { fuzz(f, "presence", anyParser(ParsePresence), write) }
func FuzzParseDesired(f *testing.F)  { fuzz(f, "desired", anyParser(ParseDesired), write) }
func FuzzParseUsage(f *testing.F)    { fuzz(f, "usage", anyParser(ParseUsage), write) }

func FuzzParseRequest(f *testing.F) {
	for _, name := range []string{"exec", "stdin", "resize", "port-forward"} {
		f.Add(golden(f, name))
	}
	for _, seed := range []string{`{"type":"stdin","seq":1}`, `{"type":"stdin","seq":0,"data":"AA=="}`,
		`{"type":"exec","command":[""]}`, `{"type":"port-forward","port":65536}`,
		`{"type":"close-stdin","seq":18446744073709551615}`} {
		f.Add([]byte(seed))
	}
	fuzz(f, "request", anyParser(ParseRequest), write)
}

func FuzzParseReply(f *testing.F) {
	f.Add(golden(f, "exit"))
	for _, seed := range []string{`{"exitCode":1}`, `{"eof":true,"exitCode":-1}`, `{"eof":true,"exitCode":2147483648}`,
		`{"ack":18446744073709551615}`} {
		f.Add([]byte(seed))
	}
	fuzz(f, "reply", anyParser(ParseReply), write)
}

// The fast path and the decoder accept the same leases, with the same result.
func FuzzParseLease(f *testing.F) {
	f.Add(golden(f, "lease"))
	for _, seed := range []string{
		`{"boot":"b","seq":1,"status":2,"pods":3,"desired":4,"time":"2026-11-20T10:02:11Z"}`,
		`{"boot":"b","seq":01,"status":2,"pods":3,"desired":4,"time":"2026-11-20T10:02:11+02:00"}`,
		`{"boot":"b","seq":999999999999999999,"status":2,"pods":3,"desired":4,"time":"2026-11-20T10:02:60Z"}`,
		`{"boot":"b","seq":9999999999999999999,"status":2,"pods":3,"desired":4,"time":"2026-02-30T10:02:11Z"}`,
		`{"boot":"b", "seq":1}`, `{"boot":"a\u0062","seq":1}`,
		`{"boot":"b","seq":1,"status":2,"pods":3,"desired":4,"time":""}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fast, ok := scanLease(data)
		if !ok {
			return
		}
		slow, err := decodeLease(data)
		if err != nil || !reflect.DeepEqual(fast, slow) {
			t.Errorf("%q: the fast path returned %+v, the decoder %+v, %v", data, fast, slow, err)
		}
	})
}

func FuzzParseTopic(f *testing.F) {
	for _, seed := range []string{"fleet/v1/nodes/pi-1/lease", "fleet/v1/nodes/pi-1/reply/7",
		"fleet/v1/nodes/+/desired", "$SYS/x", "fleet/v1/nodes//lease", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, topic string) {
		a, err := ParseTopic(DefaultPrefix, topic)
		if err != nil {
			return
		}
		again := Topic(DefaultPrefix, a.Node, a.Channel)
		if a.ID != "" {
			again += "/" + a.ID
		}
		if again != topic {
			t.Errorf("%q is parsed as %+v, whose topic is %q", topic, a, again)
		}
	})
}

func FuzzParseClientID(f *testing.F) {
	for _, seed := range []string{"pi-1", "pi-1:3f2a9c0d1e4b5a67", ":", "pi-1:", "#", "pi-1:3f2a9c0d1e4b5a67:x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		node, machine, err := ParseClientID(id)
		if err == nil && ClientID(node, machine) != id {
			t.Errorf("%q is parsed as node %q and machine %q", id, node, machine)
		}
	})
}
