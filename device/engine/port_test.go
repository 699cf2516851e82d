package engine

import (
	"errors"
	"strings"
	"testing"
)

// An engine's message about a used port has up to 250 characters, most of them ids. Users get one
// sentence.
func TestAUsedPortIsReportedInOneSentence(t *testing.T) {
	id := strings.Repeat("7b", 32)
	for message, port := range map[string]string{
		"driver failed programming external connectivity on endpoint web (" + id +
			"): Bind for 0.0.0.0:8080 failed: port is already allocated": "0.0.0.0:8080",
		"driver failed programming external connectivity on endpoint web (" + id +
			"): Error starting userland proxy: listen tcp4 127.0.0.1:19292: bind: address already in use": "127.0.0.1:19292",
		"failed to set up container networking: driver failed programming external connectivity on endpoint web (" + id +
			"): failed to bind host port for 0.0.0.0:8080:172.17.0.2:80/tcp: address already in use": "0.0.0.0:8080",
		"failed to set up container networking: driver failed programming external connectivity on endpoint web (" + id +
			"): failed to bind host port 0.0.0.0:8080/tcp: address already in use": "0.0.0.0:8080",
		"cannot listen on the TCP port: listen tcp4 127.0.0.1:19191: bind: address already in use": "127.0.0.1:19191",
		"cannot listen on the UDP port: listen udp4 :53: bind: address already in use":             ":53",
		"rootlessport listen tcp 0.0.0.0:80: bind: address already in use":                         "0.0.0.0:80",
		"driver failed programming external connectivity on endpoint web (" + id +
			"): Error starting userland proxy: listen tcp6 [::1]:80: bind: address already in use": "[::1]:80",
	} {
		got := explain(errors.New("Error response from daemon: "+message), "start container", id).Error()
		if !strings.HasPrefix(got, "host port "+port+" is in use on this device") || strings.Contains(got, id) ||
			len(got) > 160 {
			t.Errorf("message %q becomes %q", message, got)
		}
	}
	for _, message := range []string{"something else", "exec: \"listen 80\": not found"} {
		if got := explain(errors.New(message), "start container", id).Error(); got != "start container "+id+": "+message {
			t.Errorf("message %q becomes %q", message, got)
		}
	}
}
