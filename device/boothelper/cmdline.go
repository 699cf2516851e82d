package boothelper

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"flotilla.dev/shared/fleet"
)

// cmdline splits cmdline.txt into its line and the line ending.
func cmdline(text []byte) (line, end string, err error) {
	line = strings.TrimRight(string(text), "\r\n")
	end = string(text[len(line):])
	switch {
	case len(text) > 4*MaxCmdlineTxt:
		err = fmt.Errorf("cmdline.txt has %d bytes: kernels read at most %d", len(text), MaxCmdlineTxt)
	case strings.TrimSpace(line) == "":
		err = errors.New("cmdline.txt is empty: the kernel would have no root")
	case strings.ContainsAny(line, "\r\n\x00"):
		err = errors.New("cmdline.txt has more than one line, and the kernel reads only the first: write one line")
	}
	return line, end, err
}

// A word is the position of one kernel parameter in the line. Quoted blanks belong to the word.
type word struct{ from, to int }

func words(line string) (list []word) {
	from, quoted := -1, false
	for i := range len(line) {
		blank := (line[i] == ' ' || line[i] == '\t') && !quoted
		if line[i] == '"' {
			quoted = !quoted
		}
		if !blank && from < 0 {
			from = i
		} else if blank && from >= 0 {
			list, from = append(list, word{from, i}), -1
		}
	}
	if from >= 0 {
		list = append(list, word{from, len(line)})
	}
	return list
}

func has(line, w string) bool {
	return slices.ContainsFunc(words(line), func(x word) bool { return line[x.from:x.to] == w })
}

// change applies c to the line and records in r how to undo it.
func (r *record) change(line string, c fleet.BootCmdline) string {
	for _, w := range c.Remove {
		for {
			var r1 removal
			if line, r1 = without(line, w); r1.Text == "" {
				break
			}
			r.Remove = append(r.Remove, r1)
		}
	}
	for _, w := range c.Add {
		if !has(line, w) {
			line += " " + w
			r.Add = append(r.Add, w)
		}
	}
	return line
}

// without removes the last occurrence of a word with the blanks before it; for the first word, the
// blanks after it.
func without(line, w string) (string, removal) {
	list := words(line)
	for i := len(list) - 1; i >= 0; i-- {
		x := list[i]
		if line[x.from:x.to] != w {
			continue
		}
		if i > 0 {
			x.from = list[i-1].to
		} else if len(list) > 1 {
			x.to = list[1].from
		}
		return line[:x.from] + line[x.to:], removal{x.from, line[x.from:x.to]}
	}
	return line, removal{}
}

func (r *record) undo(line string, file []byte) (string, error) {
	if r.Sum == "" {
		return line, nil
	}
	if sum(file) == r.Sum {
		text := line
		for _, w := range slices.Backward(r.Add) {
			var ok bool
			if text, ok = strings.CutSuffix(text, " "+w); !ok {
				return "", errors.New(
					"config.txt: the section does not match cmdline.txt: remove the section and the words that it added")
			}
		}
		for _, x := range slices.Backward(r.Remove) {
			if x.At < 0 || x.At > len(text) {
				return "", errors.New(
					"config.txt: the section does not match cmdline.txt: remove the section and the words that it added")
			}
			text = text[:x.At] + x.Text + text[x.At:]
		}
		if strings.ContainsAny(text, "\r\n\x00") || strings.TrimSpace(text) == "" || len(text) > 4*MaxCmdlineTxt {
			return "", errors.New(
				"config.txt: the section does not match cmdline.txt: remove the section and the words that it added")
		}
		return text, nil
	}
	for _, w := range r.Add {
		if cut, _ := without(line, w); strings.TrimSpace(cut) != "" {
			line = cut
		}
	}
	for _, x := range r.Remove {
		if w := strings.Trim(x.Text, " \t"); w != "" && !strings.ContainsAny(w, "\r\n\x00") && !has(line, w) &&
			len(line)+len(w) < 4*MaxCmdlineTxt {
			line += " " + w
		}
	}
	return line, nil
}
