package wire

import (
	"strings"
	"testing"
)

// A body of an unauthenticated client, or a response to a device, is either refused in one sentence
// or can be written and read again.
func FuzzJoinBodies(f *testing.F) {
	for _, seed := range []string{
		`{"token":"FLT1.00112233445566778899aabbccddeeff.abc.secret","node":"pi-1","machineID":"3f2a9c0d1e4b5a67","csr":"-----BEGIN CERTIFICATE REQUEST-----"}`,
		`{"csr":"x"}`, `{"token":"\u0000"}`, `{"machineID":"../../etc"}`, `{"node":"pi-1","leaseIntervalSeconds":301}`,
		`{"node":"pi-1","site":"oslo","hub":"h","mqtt":":8883","certificate":"c","ca":"r","leaseIntervalSeconds":10,"time":"2026-11-20T10:02:11Z"}`,
		`{"token":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`,
	} {
		f.Add([]byte(seed))
	}
	parsers := []func([]byte) (any, error){anyParser(ParseJoinRequest), anyParser(ParseRenewRequest),
		anyParser(ParseJoinAnswer)}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, parse := range parsers {
			v, err := parse(data)
			if err != nil {
				if s := err.Error(); strings.Contains(s, "\n") || len(s) > 1000 {
					t.Errorf("the error is not one line: %q", s)
				}
				continue
			}
			if len(data) > MaxJoin {
				t.Errorf("a body of %d bytes was accepted", len(data))
			}
			if _, err := parse(write(v)); err != nil && !strings.Contains(err.Error(), "at most") {
				t.Errorf("%q was accepted, but the written body is refused: %v", data, err)
			}
		}
	})
}
