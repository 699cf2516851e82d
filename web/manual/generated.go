package manual

import (
	"fmt"
	"strings"
)

// Generated returns the generated part of a page: the text between the lines <!-- name: begin -->
// and <!-- name: end -->. Tests write it.
func Generated(page, name string) (string, error) {
	_, block, _, err := cut(page, name)
	return block, err
}

// Replace returns the page with a new generated part.
func Replace(page, name, block string) (string, error) {
	before, _, after, err := cut(page, name)
	return before + block + after, err
}

func cut(page, name string) (before, block, after string, err error) {
	begin, end := "<!-- "+name+": begin -->\n", "<!-- "+name+": end -->\n"
	before, rest, ok := strings.Cut(page, begin)
	block, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return "", "", "", fmt.Errorf("the page lacks the lines %q and %q", begin, end)
	}
	return before + begin, block, end + after, nil
}
