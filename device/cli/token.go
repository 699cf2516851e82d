package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// maxTokenText bounds a token file: a join token with text around it is smaller.
const maxTokenText = 4 << 10 // bytes

// readToken returns the join token from the command line (visible in the process list), from a file
// or, as "-", from standard input.
func readToken(word, file string, stdin io.Reader) (string, error) {
	switch {
	case word != "" && file != "":
		return "", usagef("--token and --token-file exclude each other: give one")
	case word == "-":
		file = "-"
	case word == "" && file == "":
		return "", usagef("--token is missing; flotilla-hub token create prints the whole command")
	case file == "":
		return word, nil
	}
	from, name := stdin, "the standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", usagef("--token-file: %w", err)
		}
		defer f.Close()
		from, name = f, file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxTokenText+1))
	if err != nil {
		return "", fmt.Errorf("read the join token from %s: %w", name, err)
	}
	token := strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff")) // the byte order mark of Windows editors
	if len(text) > maxTokenText || token == "" || strings.ContainsAny(token, " \t\r\n\x00") {
		return "", usagef("%s must contain only the join token, which begins with FLT1, as UTF-8 text", name)
	}
	return token, nil
}
