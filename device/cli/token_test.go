package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("FLT1.file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, word, file, stdin, want, wrong string }{
		{"a token on the command line", "FLT1.word", "", "FLT1.stdin", "FLT1.word", ""},
		{"a file", "", file, "", "FLT1.file", ""},
		{"the standard input", "-", "", " FLT1.stdin\r\n", "FLT1.stdin", ""},
		{"the standard input as --token-file", "", "-", "FLT1.stdin", "FLT1.stdin", ""},
		{"a file of a Windows editor", "", "-", "\ufeffFLT1.stdin\r\n", "FLT1.stdin", ""},
		{"a UTF-16 file of PowerShell", "", "-", "\xff\xfeF\x00L\x00T\x001\x00.\x00x\x00\r\x00\n\x00", "", "must contain only the join token"},
		{"a token and a file", "FLT1.word", file, "", "", "exclude each other"},
		{"neither a token nor a file", "", "", "", "", "--token is missing"},
		{"no such file", "", file + "x", "", "", "no such file"},
		{"an empty file", "", "-", "\n", "", "must contain only the join token"},
		{"a whole join command", "-", "", "flotilla-device join https://gateway --token FLT1.secret", "", "must contain only the join token"},
		{"a text of 1 MB", "-", "", strings.Repeat("a", 1<<20), "", "must contain only the join token"},
	} {
		got, err := readToken(tt.word, tt.file, strings.NewReader(tt.stdin))
		if got != tt.want || (err == nil) != (tt.wrong == "") ||
			err != nil && (!strings.Contains(err.Error(), tt.wrong) || strings.Contains(err.Error(), "FLT1.secret")) {
			t.Errorf("%s: the token is %q, error %v; want %q, error %q", tt.name, got, err, tt.want, tt.wrong)
		}
	}
}
