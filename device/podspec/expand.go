package podspec

import (
	"errors"
	"fmt"
	"strings"
)

func ceilDiv(a, b int64) int64 {
	if b <= 0 {
		return a
	}
	return (a + b - 1) / b
}

// Linux's limits for one argument or variable, and for all together. Without a limit, four
// variables that each repeat the previous one a thousand times would expand to terabytes.
const (
	maxText  = 128 << 10
	maxTexts = 2 << 20
)

var errTooLong = errors.New("the container's arguments and variables, after $(…) is replaced, may have 128 KiB each and 2 MiB " +
	"together, Linux's limits: use a file")

// ExpandSubPath expands a subPathExpr. As with the kubelet, each variable must have a value: an
// empty value would select the whole volume, or one path for many pods.
func ExpandSubPath(s string, values map[string]string) (string, error) {
	missing := ""
	out := replace(s, func(name string) string {
		if values[name] == "" {
			missing = name
		}
		return values[name]
	})
	if missing != "" {
		return "", fmt.Errorf("missing value for %s: the container has no such environment variable, or it is empty", missing)
	}
	return out, nil
}

// expand replaces $(NAME) by the value of a known variable; unknown names stay as they are.
func expand(s string, values map[string]string) string {
	return replace(s, func(name string) string {
		if v, ok := values[name]; ok {
			return v
		}
		return "$(" + name + ")"
	})
}

// replace replaces each $(NAME), and $$ by $. It stops at maxText.
func replace(s string, value func(name string) string) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s) && b.Len() <= maxText; i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		switch s[i+1] {
		case '$':
			b.WriteByte('$')
			i++
		case '(':
			end := strings.IndexByte(s[i+2:], ')')
			if end < 0 {
				b.WriteString("$(")
				i++
				continue
			}
			b.WriteString(value(s[i+2 : i+2+end]))
			i += 2 + end
		default:
			b.WriteByte('$')
			b.WriteByte(s[i+1])
			i++
		}
	}
	return b.String()
}

// ExpandAll replaces $(NAME) in the arguments of a command.
func ExpandAll(in []string, values map[string]string) ([]string, error) {
	if in == nil {
		return nil, nil
	}
	out, room := make([]string, len(in)), maxTexts
	for i, s := range in {
		out[i] = expand(s, values)
		if room -= len(out[i]); room < 0 || len(out[i]) > maxText {
			return nil, errTooLong
		}
	}
	return out, nil
}
