package main

import (
	"bytes"
	"strings"
	"testing"
)

// An unknown shell or command is an error. Its help is not printed, because it could end up in a
// completion file.
func TestATypingMistakeDoesNotPrintHelp(t *testing.T) {
	for line, want := range map[string]string{
		"completion bsh":    `unknown command "bsh" of flotilla-hub completion`,
		"completion bash x": `unknown command "x" of flotilla-hub completion bash`,
		"help tokn":         `unknown command "tokn" of flotilla-hub;`,
		"help token lst":    `unknown command "lst" of flotilla-hub token`,
		"tokn":              `unknown command "tokn" of flotilla-hub;`,
		"completion bash":   "",
		"completion":        "",
		"help":              "",
		"help token create": "",
		"token --help":      "",
	} {
		var out, said bytes.Buffer
		code := run(t.Context(), strings.Fields(line), &out, &said)
		switch {
		case want == "" && (code != 0 || out.Len() == 0 || said.Len() > 0):
			t.Errorf("%s: %d: %s", line, code, &said)
		case want != "" && (code != 2 || out.Len() > 0 || !strings.Contains(said.String(), want)):
			t.Errorf("%s: %d: %s, and %d bytes of output", line, code, &said, out.Len())
		}
	}
}
