package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// maxTokenText is more than a join token with whatever stands around it in a file.
const maxTokenText = 4 << 10 // bytes

// readToken is the join token of a command line: the word itself, which everybody on this
// machine can see in the list of processes, or the text of a file or, as "-", of the
// standard input.
func readToken(word, file string, stdin io.Reader) (string, error) {
	switch {
	case word != "" && file != "":
		return "", usagef("--token and --token-file are both given: leave one out")
	case word == "-":
		file = "-"
	case word == "" && file == "":
		return "", usagef("--token is missing; flotilla-hub token create prints the whole line")
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
	token := strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff")) // with which editors of Windows begin a text
	if len(text) > maxTokenText || token == "" || strings.ContainsAny(token, " \t\r\n\x00") {
		return "", usagef("%s must hold the join token, which begins with FLT1, and nothing else, as a text in UTF-8", name)
	}
	return token, nil
}
