package format

import (
	"fmt"
	"slices"
	"strings"
)

// Verb returns the verb for a number, such as "is" or "are".
func Verb(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// IsAre is "1 node is" or "2 nodes are".
func IsAre(n int, one string) string {
	if n == 1 {
		return "1 " + one + " is"
	}
	return Plural(n, one) + " are"
}

// HasHave is "1 pod has" or "2 pods have".
func HasHave(n int, one string) string {
	if n == 1 {
		return "1 " + one + " has"
	}
	return Plural(n, one) + " have"
}

// ---- words

// Capital capitalises the first letter.
func Capital(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// Thousands writes a number with commas.
func Thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// List joins the first names and counts the others.
func List(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Plural returns "1 node" or "2 nodes".
func Plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// Join joins the non-empty parts with commas.
func Join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}

// Times is "once" or "3 times".
func Times(n int32) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
