package policy

import (
	"path"
	"strings"
	"unicode"
)

// MountPath says what is wrong with a place in a container where a volume is to be
// mounted; empty: nothing. Beside what Kubernetes refuses these are characters that
// engines read as the end of a path and the beginning of another wish, such as
// Podman's commas, and places that are the container itself.
func MountPath(name string) string {
	switch clean := path.Clean(name); {
	case strings.Contains(name, ":"):
		return "must not contain ':'"
	case strings.ContainsAny(name, `,"`) || strings.ContainsFunc(name, unicode.IsControl):
		return "must not contain commas, quotes or control characters, which container engines take for more than a path"
	case !path.IsAbs(name):
		return "must be an absolute path"
	case clean == "/":
		return "must not be the root of the container"
	case inProc(clean):
		return "must not be /proc or below it, through which the container is confined"
	}
	return ""
}

// WorkingDir says what is wrong with the directory in which a container is to begin; empty:
// nothing. Through /proc/self/fd older runtimes let a container out (CVE-2024-21626).
func WorkingDir(name string) string {
	if inProc(path.Clean("/" + name)) {
		return "must not be /proc or below it"
	}
	return ""
}

func inProc(clean string) bool { return clean == "/proc" || strings.HasPrefix(clean, "/proc/") }
